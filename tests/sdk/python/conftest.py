import pytest

import gateway


@pytest.fixture(scope="module")
def account() -> gateway.Account:
    """One account with a trial per file of tests."""
    return gateway.create_account()


@pytest.fixture(params=[gateway.ALPHA, gateway.BETA])
def model(request) -> str:
    """One model of each vendor: passed through on one surface, translated on the other."""
    return request.param

import pytest

import gateway


@pytest.fixture(scope="module")
def account() -> gateway.Account:
    """One account with a trial per file of tests."""
    return gateway.create_account()


@pytest.fixture(params=[model for surface, model in gateway.TYPICAL_PAIRS if surface == "chat"])
def chat_model(request) -> str:
    """One model of each vendor that the chat surface reaches."""
    return request.param


@pytest.fixture(params=[model for surface, model in gateway.TYPICAL_PAIRS if surface == "messages"])
def messages_model(request) -> str:
    """One model of each vendor that the messages surface reaches."""
    return request.param

import pytest

import gateway


@pytest.fixture(scope="module")
def account() -> gateway.Account:
    """An account with a trial, shared by the tests of one file."""
    return gateway.create_account()


@pytest.fixture(params=[model for surface, model in gateway.TYPICAL_PAIRS if surface == "chat"])
def chat_model(request) -> str:
    """Runs the test once per vendor, with one model that the chat surface reaches."""
    return request.param


@pytest.fixture(params=[model for surface, model in gateway.TYPICAL_PAIRS if surface == "messages"])
def messages_model(request) -> str:
    """Runs the test once per vendor, with one model that the messages surface reaches."""
    return request.param

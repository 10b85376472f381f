import anthropic
import openai
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


@pytest.fixture
def naps(monkeypatch) -> list[float]:
    """Records the delays between the attempts of an SDK, and skips them."""
    waits: list[float] = []
    for sdk in (openai, anthropic):
        monkeypatch.setattr(sdk._base_client.time, "sleep", waits.append)
    return waits

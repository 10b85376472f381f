"""A model that a surface does not reach yet is refused there: at once, for nothing, and without a call to its vendor."""

from decimal import Decimal

import anthropic
import openai
import pytest

from gateway import CROSSINGS, attempts, chat_client, credits, messages_client, prompt, vendor_requests

CHAT = [model for surface, model in CROSSINGS if surface == "chat"]
MESSAGES = [model for surface, model in CROSSINGS if surface == "messages"]


def ask(text: str, model: str, **more) -> dict:
    return {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}


def words(model: str) -> str:
    return f"The model `{model}` is not available through this surface yet."


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", CHAT)
def test_chat_refuses_a_model_that_it_does_not_reach(account, model, streamed):
    client = chat_client(account.key)
    text = prompt()
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**ask(text, model, stream=streamed))
    assert raised.value.body == {
        "message": words(model),
        "type": "invalid_request_error",
        "param": "model",
        "code": "unsupported_value",
    }
    assert attempts(client) == 1
    assert_nothing_happened(account, raised.value, text)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", MESSAGES)
def test_messages_refuses_a_model_that_it_does_not_reach(account, model, streamed):
    client = messages_client(account.key)
    text = prompt()
    with pytest.raises(anthropic.BadRequestError) as raised:
        client.messages.create(**ask(text, model, stream=streamed))
    assert raised.value.body == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": words(model),
            "details": {"error_code": "unsupported_value"},
        },
        "request_id": raised.value.request_id,
    }
    assert attempts(client) == 1
    assert_nothing_happened(account, raised.value, text)


def assert_nothing_happened(account, error, text):
    assert vendor_requests(text) == []
    assert "x-gateway-credits" not in error.response.headers
    now = credits(account.key)
    assert Decimal(now["held"]) == 0, "it is refused before anything is held"
    assert Decimal(now["balance"]) == Decimal(now["available"]) == 300

"""What the official SDKs raise when something fails, and how often they try."""

import anthropic
import openai
import pytest

import gateway
from gateway import CHAT_AUTH, MESSAGES_AUTH, attempts, chat_client, messages_client, prompt

# Put together here so that no scanner takes them for leaked keys.
VENDOR_KEYS = ["sk-" + "proj-" + "A" * 48, "sk-" + "ant-api03-" + "A" * 80]
MADE_UP_KEY = "gw-" + "sk-" + "0" * 49


def ask(text: str, model: str = gateway.ALPHA, **more) -> dict:
    return {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}


# ---- The caller's own faults: one attempt, since a second one would end the same way.


@pytest.mark.parametrize("key", [*VENDOR_KEYS, MADE_UP_KEY, "nonsense"])
@pytest.mark.parametrize("auth", ["bearer", "x-api-key"])
def test_chat_refuses_a_key_that_is_not_one_of_the_gateways(key, auth):
    client = chat_client(key, auth)
    with pytest.raises(openai.AuthenticationError) as raised:
        client.chat.completions.create(**ask(prompt()))
    assert raised.value.code == "invalid_api_key"
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert key not in raised.value.response.text
    assert attempts(client) == 1


@pytest.mark.parametrize("key", [*VENDOR_KEYS, MADE_UP_KEY, "nonsense"])
@pytest.mark.parametrize("auth", MESSAGES_AUTH)
def test_messages_refuses_a_key_that_is_not_one_of_the_gateways(key, auth):
    client = messages_client(key, auth)
    with pytest.raises(anthropic.AuthenticationError) as raised:
        client.messages.create(**ask(prompt()))
    assert raised.value.body["error"]["type"] == "authentication_error"
    assert raised.value.body["request_id"] == raised.value.request_id
    assert key not in raised.value.response.text
    assert attempts(client) == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_model_that_is_not_in_the_catalog_is_not_found(account, streamed):
    chat = chat_client(account.key)
    with pytest.raises(openai.NotFoundError) as raised:
        chat.chat.completions.create(**ask(prompt(), "no-such-model", stream=streamed))
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")
    assert "no-such-model" in str(raised.value)
    assert attempts(chat) == 1

    messages = messages_client(account.key)
    with pytest.raises(anthropic.NotFoundError) as raised:
        messages.messages.create(**ask(prompt(), "no-such-model", stream=streamed))
    assert raised.value.body["error"]["type"] == "not_found_error"
    assert "no-such-model" in str(raised.value)
    assert attempts(messages) == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_account_without_credits_is_asked_to_pay_once(model, streamed):
    poor = gateway.create_account(trial=False)

    chat = chat_client(poor.key)
    with pytest.raises(openai.APIStatusError) as raised:
        chat.chat.completions.create(**ask(prompt(), model, stream=streamed))
    assert raised.value.status_code == 402
    assert (raised.value.type, raised.value.code) == ("insufficient_quota", "insufficient_credits")
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert attempts(chat) == 1

    messages = messages_client(poor.key)
    with pytest.raises(anthropic.PaymentRequiredError) as raised:
        messages.messages.create(**ask(prompt(), model, stream=streamed))
    assert raised.value.body["error"]["type"] == "billing_error"
    assert raised.value.body["error"]["details"]["error_code"] == "insufficient_credits"
    assert attempts(messages) == 1


def test_a_body_without_messages_is_a_bad_request(account, model):
    chat = chat_client(account.key)
    with pytest.raises(openai.BadRequestError):
        chat.chat.completions.create(model=model, messages=[])
    assert attempts(chat) == 1
    messages = messages_client(account.key)
    with pytest.raises(anthropic.BadRequestError):
        messages.messages.create(model=model, max_tokens=10, messages=[])
    assert attempts(messages) == 1


# ---- The vendor's faults before the first byte: a status, in the shape of the surface.


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_busy_vendor_is_tried_again_and_then_reported(account, model, streamed):
    request = ask(prompt("status=429 retry_after=1"), model, stream=streamed)

    chat = chat_client(account.key)
    with pytest.raises(openai.RateLimitError) as raised:
        chat.chat.completions.create(**request)
    assert raised.value.code == "rate_limit_exceeded"
    assert attempts(chat) == 3

    messages = messages_client(account.key)
    with pytest.raises(anthropic.RateLimitError) as raised:
        messages.messages.create(**request)
    assert raised.value.body["error"]["type"] == "rate_limit_error"
    assert attempts(messages) == 3


@pytest.mark.parametrize(
    ("marker", "chat_status", "messages_error"),
    [
        ("status=400", 400, anthropic.BadRequestError),
        ("status=401", 502, anthropic.InternalServerError),
        ("status=500", 502, anthropic.InternalServerError),
        ("status=529", 503, anthropic.OverloadedError),
        ("cut=headers", 502, anthropic.InternalServerError),
        ("garbage=json", 502, anthropic.InternalServerError),
    ],
)
def test_a_failing_vendor_is_a_status_of_the_surface(account, model, marker, chat_status, messages_error):
    request = ask(prompt(marker), model)

    with pytest.raises(openai.APIStatusError) as raised:
        chat_client(account.key, max_retries=0).chat.completions.create(**request)
    assert raised.value.status_code == chat_status
    assert isinstance(raised.value.body["message"], str)

    with pytest.raises(messages_error) as raised:
        messages_client(account.key, max_retries=0).messages.create(**request)
    assert raised.value.body["type"] == "error"


# ---- The vendor's faults inside a stream: never a clean end, which an SDK takes for success.

MID_STREAM = ["events=8 error_event=2", "events=8 error_event=5", "events=8 cut=2", "events=8 cut=5", "events=8 garbage=sse"]


@pytest.mark.parametrize("marker", MID_STREAM)
def test_chat_raises_when_the_vendor_fails_in_mid_stream(account, model, marker):
    client = chat_client(account.key, max_retries=0)
    request = ask(prompt(marker), model)

    with pytest.raises(openai.APIError):
        for _ in client.chat.completions.create(**request, stream=True):
            pass
    with pytest.raises(openai.APIError):
        with client.chat.completions.stream(**request) as stream:
            stream.get_final_completion()
    assert attempts(client) == 2


@pytest.mark.parametrize("marker", MID_STREAM)
def test_messages_raises_when_the_vendor_fails_in_mid_stream(account, model, marker):
    client = messages_client(account.key, max_retries=0)
    request = ask(prompt(marker), model)

    with pytest.raises(anthropic.APIStatusError):
        for _ in client.messages.create(**request, stream=True):
            pass
    with pytest.raises(anthropic.APIStatusError):
        with client.messages.stream(**request) as stream:
            stream.get_final_message()
    assert attempts(client) == 2


def test_no_fault_costs_anything(account):
    """Last in this file: the account of this file has only ever failed."""
    after = gateway.settled_credits(account.key)
    assert float(after["balance"]) == 300
    assert after["available"] == after["balance"]

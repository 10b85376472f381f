"""Tests which errors the official SDKs raise when a request fails, and how many attempts they make."""

import http.client
import json
from urllib.parse import urlsplit

import anthropic
import openai
import pytest

import gateway
from gateway import (
    ALPHA, BETA, MESSAGES_AUTH, TYPICAL_PAIRS, attempts, chat_client, messages_client, prompt, vendor_requests,
)

# Assembled here so that secret scanners do not take them for leaked keys.
VENDOR_KEYS = ["sk-" + "proj-" + "A" * 48, "sk-" + "ant-api03-" + "A" * 80]
MADE_UP_KEY = "gw-" + "sk-" + "0" * 49


def ask(text: str, model: str, **more) -> dict:
    return {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}


def ask_chat(text: str, model: str, **more) -> dict:
    return {"model": model, "max_completion_tokens": 100, "messages": [{"role": "user", "content": text}], **more}


# ---- The caller's errors: one attempt, since a retry would fail in the same way.


@pytest.mark.parametrize("key", [*VENDOR_KEYS, MADE_UP_KEY, "nonsense"])
@pytest.mark.parametrize("auth", ["bearer", "x-api-key"])
def test_chat_refuses_a_key_that_is_not_one_of_the_gateways(key, auth):
    client = chat_client(key, auth)
    with pytest.raises(openai.AuthenticationError) as raised:
        client.chat.completions.create(**ask_chat(prompt(), BETA))
    assert raised.value.code == "invalid_api_key"
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert key not in raised.value.response.text
    assert attempts(client) == 1


@pytest.mark.parametrize("key", [*VENDOR_KEYS, MADE_UP_KEY, "nonsense"])
@pytest.mark.parametrize("auth", MESSAGES_AUTH)
def test_messages_refuses_a_key_that_is_not_one_of_the_gateways(key, auth):
    client = messages_client(key, auth)
    with pytest.raises(anthropic.AuthenticationError) as raised:
        client.messages.create(**ask(prompt(), ALPHA))
    assert raised.value.body["error"]["type"] == "authentication_error"
    assert raised.value.body["request_id"] == raised.value.request_id
    assert key not in raised.value.response.text
    assert attempts(client) == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_model_that_is_not_in_the_catalog_is_not_found(account, streamed):
    chat = chat_client(account.key)
    with pytest.raises(openai.NotFoundError) as raised:
        chat.chat.completions.create(**ask_chat(prompt(), "no-such-model", stream=streamed))
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
def test_chat_asks_an_account_without_credits_once_to_pay(chat_model, streamed):
    client = chat_client(gateway.create_account(trial=False).key)
    with pytest.raises(openai.APIStatusError) as raised:
        client.chat.completions.create(**ask_chat(prompt(), chat_model, stream=streamed))
    assert raised.value.status_code == 402
    assert (raised.value.type, raised.value.code) == ("insufficient_quota", "insufficient_credits")
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert attempts(client) == 1


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_messages_asks_an_account_without_credits_once_to_pay(messages_model, streamed):
    client = messages_client(gateway.create_account(trial=False).key)
    with pytest.raises(anthropic.PaymentRequiredError) as raised:
        client.messages.create(**ask(prompt(), messages_model, stream=streamed))
    assert raised.value.body["error"]["type"] == "billing_error"
    assert raised.value.body["error"]["details"]["error_code"] == "insufficient_credits"
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert attempts(client) == 1


def test_chat_refuses_a_body_without_messages(account, chat_model):
    client = chat_client(account.key)
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=chat_model, messages=[])
    assert raised.value.param == "messages"
    assert attempts(client) == 1


def test_messages_refuses_a_body_without_messages(account, messages_model):
    client = messages_client(account.key)
    with pytest.raises(anthropic.BadRequestError) as raised:
        client.messages.create(model=messages_model, max_tokens=10, messages=[])
    assert "messages" in str(raised.value)
    assert attempts(client) == 1


# ---- The vendor's failures before the first byte: a status, in the shape of the surface.


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_chat_tries_a_busy_vendor_again_and_then_reports_it(account, naps, chat_model, streamed):
    client = chat_client(account.key)
    with pytest.raises(openai.RateLimitError) as raised:
        client.chat.completions.create(**ask_chat(prompt("status=429 retry_after=1"), chat_model, stream=streamed))
    assert raised.value.code == "rate_limit_exceeded"
    assert attempts(client) == 3
    assert naps == [1, 1]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_messages_tries_a_busy_vendor_again_and_then_reports_it(account, naps, messages_model, streamed):
    client = messages_client(account.key)
    with pytest.raises(anthropic.RateLimitError) as raised:
        client.messages.create(**ask(prompt("status=429 retry_after=1"), messages_model, stream=streamed))
    assert raised.value.body["error"]["type"] == "rate_limit_error"
    assert attempts(client) == 3
    assert naps == [1, 1]


@pytest.mark.parametrize(
    ("marker", "status"),
    [
        ("status=400", 400),
        ("status=401", 502),
        ("status=500", 502),
        ("status=529", 503),
        ("cut=headers", 502),
        ("garbage=json", 502),
    ],
)
def test_chat_gives_a_failing_vendor_a_status_of_its_own(account, chat_model, marker, status):
    text = prompt(marker)
    with pytest.raises(openai.APIStatusError) as raised:
        chat_client(account.key, max_retries=0).chat.completions.create(**ask_chat(text, chat_model))
    assert raised.value.status_code == status
    assert isinstance(raised.value.body["message"], str)
    assert vendor_requests(text), "the fault is the vendor's"


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        ("status=400", anthropic.BadRequestError),
        ("status=401", anthropic.InternalServerError),
        ("status=500", anthropic.InternalServerError),
        ("status=529", anthropic.OverloadedError),
        ("cut=headers", anthropic.InternalServerError),
        ("garbage=json", anthropic.InternalServerError),
    ],
)
def test_messages_gives_a_failing_vendor_a_status_of_its_own(account, messages_model, marker, error):
    text = prompt(marker)
    with pytest.raises(error) as raised:
        messages_client(account.key, max_retries=0).messages.create(**ask(text, messages_model))
    assert raised.value.body["type"] == "error"
    assert vendor_requests(text), "the fault is the vendor's"


# ---- The vendor's failures inside a stream: never a clean end, which an SDK takes for success.

MID_STREAM = ["events=8 error_event=2", "events=8 error_event=5", "events=8 cut=2", "events=8 cut=5", "events=8 garbage=sse"]


@pytest.mark.parametrize("marker", MID_STREAM)
def test_chat_raises_when_the_vendor_fails_in_mid_stream(account, chat_model, marker):
    client = chat_client(account.key, max_retries=0)
    request = ask_chat(prompt(marker), chat_model)

    with pytest.raises(openai.APIError):
        for _ in client.chat.completions.create(**request, stream=True):
            pass
    with pytest.raises(openai.APIError):
        with client.chat.completions.stream(**request) as stream:
            stream.get_final_completion()
    assert attempts(client) == 2


@pytest.mark.parametrize("marker", MID_STREAM)
def test_messages_raises_when_the_vendor_fails_in_mid_stream(account, messages_model, marker):
    client = messages_client(account.key, max_retries=0)
    request = ask(prompt(marker), messages_model)

    with pytest.raises(anthropic.APIStatusError):
        for _ in client.messages.create(**request, stream=True):
            pass
    with pytest.raises(anthropic.APIStatusError):
        with client.messages.stream(**request) as stream:
            stream.get_final_message()
    assert attempts(client) == 2


@pytest.mark.parametrize("marker", MID_STREAM)
@pytest.mark.parametrize(("surface", "model"), TYPICAL_PAIRS)
def test_a_connection_that_was_not_called_closed_serves_on(account, surface, model, marker):
    """If the gateway closes a pooled connection without announcing it, the next request fails without cause."""
    path = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}[surface]
    connection = http.client.HTTPConnection(urlsplit(gateway.BASE_URL).netloc, timeout=300)
    connection.connect()
    connection.auto_open = 0  # do not reconnect silently

    def post(**more) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {account.key}", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(ask(model=model, **more)), headers)
        return connection.getresponse()

    failed = post(text=prompt(marker), stream=True)
    failed.read()
    if not failed.will_close:
        answer = post(text=prompt("status=400"))  # free of charge
        assert answer.status == 400, answer.read()
    connection.close()


def test_no_fault_costs_anything(account):
    """Must stay last in this file: every request of this file's account has failed, so none is billed."""
    after = gateway.settled_credits(account.key)
    assert float(after["balance"]) == 300
    assert after["available"] == after["balance"]

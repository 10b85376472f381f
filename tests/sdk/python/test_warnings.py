"""Tests that a header names each change that the gateway makes to a request, and that strict mode rejects it."""

import anthropic
import openai
import pytest

from gateway import ALPHA, BETA, TRANSLATED_PAIRS, attempts, chat_client, messages_client, prompt, vendor_requests

HEADER = "x-gateway-warnings"
STRICT = {"x-gateway-strict": "true"}

TOOL = {"type": "function", "function": {"name": "get.weather", "parameters": {"type": "object", "properties": {}}}}
CHANGED = {
    "chat": [
        ({"seed": 7}, "dropped:seed"),
        ({"temperature": 1.5}, "clamped:temperature"),
        ({"stop": ["END", " "]}, "dropped:stop[1]"),
        ({"response_format": {"type": "json_object"}}, "emulated:response_format"),
        ({"max_tokens": 100_000}, "clamped:max_tokens"),
        ({"tools": [TOOL]}, "renamed:tools[0].function.name"),
        (
            {"seed": 7, "logit_bias": {"50": 1}, "temperature": 1.5, "store": True},
            "clamped:temperature, dropped:logit_bias, dropped:seed, dropped:store",
        ),
        ({"extra_body": {"x_unknown": 1}}, "dropped:x_unknown"),
    ],
    "messages": [
        ({"extra_body": {"top_k": 5}}, "dropped:top_k"),
        ({"extra_body": {"temperature": 0.5}}, "dropped:temperature"),
        ({"stop_sequences": ["END"]}, "dropped:stop_sequences"),
        ({"max_tokens": 200_000}, "clamped:max_tokens"),
        ({"tools": [{"name": "f" * 100, "input_schema": {"type": "object"}}]}, "renamed:tools[0].name"),
        (
            {"extra_body": {"temperature": 0.5, "top_p": 0.5}, "stop_sequences": ["END"]},
            "dropped:stop_sequences, dropped:temperature, dropped:top_p",
        ),
        ({"extra_body": {"x_unknown": 1}}, "dropped:x_unknown"),
    ],
}
ROWS = [
    (surface, model, *row)
    for surface, model in TRANSLATED_PAIRS
    if model in (ALPHA, BETA)
    for row in CHANGED[surface]
]


def completions(surface: str, key: str):
    client = chat_client(key) if surface == "chat" else messages_client(key)
    return client, client.chat.completions if surface == "chat" else client.messages


def ask(text: str, model: str, more: dict) -> dict:
    return {"model": model, "max_tokens": 300, "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(("surface", "model", "more", "warning"), ROWS)
def test_what_was_changed_is_told(account, surface, model, more, warning):
    _, api = completions(surface, account.key)
    request = ask(prompt("input=5 output=5"), model, more)
    whole = api.with_raw_response.create(**request)
    assert whole.headers[HEADER] == warning
    assert whole.parse().usage is not None
    streamed = api.with_raw_response.create(**request, stream=True)
    assert streamed.headers[HEADER] == warning
    assert list(streamed.parse())


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("surface", "model", "more", "warning"), ROWS)
def test_who_is_strict_is_refused_instead(account, surface, model, more, warning, streamed):
    client, api = completions(surface, account.key)
    text = prompt("input=5 output=5")
    error = {"chat": openai.BadRequestError, "messages": anthropic.BadRequestError}[surface]
    with pytest.raises(error) as raised:
        api.create(**ask(text, model, more), stream=streamed, extra_headers=STRICT)
    message = raised.value.body["message"] if surface == "chat" else raised.value.body["error"]["message"]
    assert message in [f"Strict mode: {token}" for token in warning.split(", ")]
    assert HEADER not in raised.value.response.headers
    assert attempts(client) == 1
    assert vendor_requests(text) == []


@pytest.mark.parametrize("headers", [{}, STRICT])
@pytest.mark.parametrize(("surface", "model"), TRANSLATED_PAIRS)
def test_where_nothing_was_changed_nothing_is_told(account, surface, model, headers):
    _, api = completions(surface, account.key)
    more = {"extra_headers": headers, "extra_body": {"temperature": 1}}
    for streamed in (False, True):
        raw = api.with_raw_response.create(**ask(prompt("input=5 output=5"), model, more), stream=streamed)
        assert HEADER not in raw.headers

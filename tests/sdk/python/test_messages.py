"""Tests the messages surface through the official anthropic SDK."""

import json
import re

import pytest

from gateway import (
    ALPHA, MESSAGES_AUTH, METERED, MODELS, REQUEST_ID, attempts, last_vendor_requests, messages_client, passed_on,
    prompt, settled_credits, vendor_requests,
)

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def ask(text: str, model: str, **more) -> dict:
    return {"model": model, "max_tokens": 200, "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize("auth", MESSAGES_AUTH)
def test_a_streamed_answer_equals_the_whole_one(account, messages_model, auth):
    client = messages_client(account.key, auth)
    text = prompt('text="Grüße, two words and 漢字 🎈" events=7 input=50 output=20')

    whole = client.messages.create(**ask(text, messages_model))
    with client.messages.stream(**ask(text, messages_model)) as stream:
        streamed = stream.get_final_message()

    assert [(block.type, block.text) for block in whole.content] == [("text", "Grüße, two words and 漢字 🎈")]
    assert whole.stop_reason == "end_turn"
    for answer in (whole, streamed):
        assert answer.model == messages_model
        assert (answer.type, answer.role) == ("message", "assistant")
    assert [(block.type, block.text) for block in streamed.content] == [
        (block.type, block.text) for block in whole.content
    ]
    assert streamed.stop_reason == whole.stop_reason
    for count in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert (getattr(streamed.usage, count) or 0) == (getattr(whole.usage, count) or 0), count
    assert whole.usage.input_tokens > 0 and whole.usage.output_tokens > 0
    assert re.fullmatch(REQUEST_ID, whole._request_id)
    assert re.fullmatch(REQUEST_ID, stream.request_id)
    assert attempts(client) == 2


def test_both_names_of_the_request_id_are_sent_and_agree(account, messages_model):
    raw = messages_client(account.key).messages.with_raw_response.create(**ask(prompt(), messages_model))
    assert re.fullmatch(REQUEST_ID, raw.headers["request-id"])
    assert raw.headers["request-id"] == raw.headers["x-request-id"]


def test_a_query_string_is_no_other_path(account, messages_model):
    text = prompt('text="yes"')
    answer = messages_client(account.key).messages.create(**ask(text, messages_model, extra_query={"beta": "true"}))
    assert answer.content[0].text == "yes"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_tool_call_makes_the_round_trip(account, messages_model, streamed):
    client = messages_client(account.key)
    question = {"role": "user", "content": prompt('tool=get_weather args={"city":"Oslo"}')}

    def turn(messages):
        request = {"model": messages_model, "max_tokens": 200, "messages": messages, "tools": [WEATHER]}
        if not streamed:
            return client.messages.create(**request)
        with client.messages.stream(**request) as stream:
            return stream.get_final_message()

    first = turn([question])
    assert first.stop_reason == "tool_use"
    [call] = [block for block in first.content if block.type == "tool_use"]
    assert call.name == "get_weather"
    assert call.input == {"city": "Oslo"}

    called = {"role": "assistant", "content": [block.to_dict() for block in first.content]}
    then = prompt('text="It is 7 degrees."')
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"celsius": 7}'}
    second = turn([question, called, {"role": "user", "content": [result, {"type": "text", "text": then}]}])
    assert second.stop_reason == "end_turn"
    assert second.content[0].text == "It is 7 degrees."

    [seen] = vendor_requests(then)
    assert call.id in json.dumps(seen["body"]), "the vendor must see the id that it gave the call"
    assert "celsius" in json.dumps(seen["body"])


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_prompt_of_five_megabytes_arrives_whole(account, messages_model, streamed):
    client = messages_client(account.key)
    text = f'{"lorem ipsum " * 420_000}{prompt("input=1000 output=5")}'
    if streamed:
        with client.messages.stream(**ask(text, messages_model)) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**ask(text, messages_model))
    assert answer.content[0].text
    assert answer.stop_reason == "end_turn"
    [seen] = last_vendor_requests(1)
    assert seen["body_length"] > 5_000_000


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_body_for_a_vendor_of_the_same_protocol_is_passed_on_byte_for_byte(account, streamed):
    client = messages_client(account.key)
    text = prompt("lenient=1")
    cached = {"type": "ephemeral", "ttl": "1h"}
    request = ask(text, ALPHA, extra_body={"x_unknown": {"n": [1.50, None, "ü"]}})
    request["system"] = [{"type": "text", "text": "Be brief.", "cache_control": cached}]
    request["messages"][0]["content"] = [{"type": "text", "text": text, "cache_control": cached}]
    request["tools"] = [{**WEATHER, "cache_control": {"type": "ephemeral"}}]
    if streamed:
        with client.messages.stream(**request) as stream:
            stream.until_done()
    else:
        client.messages.create(**request)

    [seen] = vendor_requests(text)
    assert seen["body"]["x_unknown"] == {"n": [1.5, None, "ü"]}
    assert seen["body"]["system"][0]["cache_control"] == cached
    assert seen["body"]["messages"][0]["content"][0]["cache_control"] == cached
    assert seen["body"]["tools"][0]["cache_control"] == {"type": "ephemeral"}
    assert passed_on(client, seen)


def test_no_key_of_a_caller_reaches_a_vendor(account, messages_model):
    text = prompt()
    messages_client(account.key).messages.create(**ask(text, messages_model))
    [seen] = vendor_requests(text)
    headers = json.dumps(seen["headers"])
    assert account.key not in headers
    assert f"sim-{messages_model.split('-')[0]}-key" in headers


def test_the_version_header_is_passed_on_as_received(account):
    client = messages_client(account.key)
    text = prompt()
    client.messages.create(**ask(text, ALPHA))
    [seen] = vendor_requests(text)
    assert client._client.sent[-1].headers["anthropic-version"] in json.dumps(seen["headers"])


def test_counting_tokens_is_free(account, messages_model):
    before = settled_credits(account.key)
    counted = messages_client(account.key).messages.count_tokens(
        model=messages_model, messages=[{"role": "user", "content": "How many tokens are these?"}]
    )
    assert counted.input_tokens > 0
    assert settled_credits(account.key) == before


@pytest.mark.parametrize("auth", MESSAGES_AUTH)
def test_all_chat_models_are_listed(account, auth):
    listed = messages_client(account.key, auth).models.list()
    more = [name for name, model in METERED.items() if model["kind"] == "chat"]
    assert sorted(model.id for model in listed) == sorted([*MODELS, *more])
    assert messages_client(account.key, auth).models.retrieve(ALPHA).id == ALPHA

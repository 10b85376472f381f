"""Tests the chat-completions surface through the official openai SDK."""

import json
import re

import pytest

from gateway import (
    ALPHA, BETA, CHAT_AUTH, METERED, MODELS, REQUEST_ID, attempts, chat_client, last_vendor_requests, messages_client, passed_on,
    prompt, vendor_requests,
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(text: str, model: str, **more) -> dict:
    return {"model": model, "max_completion_tokens": 200, "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize("auth", CHAT_AUTH)
def test_a_streamed_answer_equals_the_whole_one(account, chat_model, auth):
    client = chat_client(account.key, auth)
    text = prompt('text="Grüße, two words and 漢字 🎈" events=7 input=50 output=20')

    whole = client.chat.completions.create(**ask(text, chat_model))
    with client.chat.completions.stream(**ask(text, chat_model, stream_options={"include_usage": True})) as stream:
        streamed = stream.get_final_completion()

    assert whole.choices[0].message.content == "Grüße, two words and 漢字 🎈"
    assert whole.choices[0].finish_reason == "stop"
    for answer in (whole, streamed):
        assert answer.model == chat_model
        assert answer.choices[0].message.role == "assistant"
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason
    assert streamed.usage.to_dict() == whole.usage.to_dict()
    assert re.fullmatch(REQUEST_ID, whole._request_id)
    assert attempts(client) == 2


def test_one_key_serves_both_surfaces(account, chat_model, messages_model):
    text = prompt('text="same"')
    chat = chat_client(account.key).chat.completions.create(**ask(text, chat_model))
    question = [{"role": "user", "content": text}]
    messages = messages_client(account.key).messages.create(model=messages_model, max_tokens=200, messages=question)
    assert chat.choices[0].message.content == messages.content[0].text == "same"


def test_both_names_of_the_request_id_are_sent_and_agree(account, chat_model):
    raw = chat_client(account.key).chat.completions.with_raw_response.create(**ask(prompt(), chat_model))
    assert re.fullmatch(REQUEST_ID, raw.headers["x-request-id"])
    assert raw.headers["request-id"] == raw.headers["x-request-id"]


def test_a_stream_has_usage_only_if_the_caller_asked(account, chat_model):
    client = chat_client(account.key)
    request = ask(prompt("events=4"), chat_model, stream=True)

    silent = list(client.chat.completions.create(**request))
    assert all(chunk.choices for chunk in silent)
    assert not any("usage" in chunk.to_dict() for chunk in silent)

    *chunks, last = client.chat.completions.create(**request, stream_options={"include_usage": True})
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.prompt_tokens > 0 and last.usage.completion_tokens > 0
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_tool_call_makes_the_round_trip(account, chat_model, streamed):
    client = chat_client(account.key)
    question = {"role": "user", "content": prompt('tool=get_weather args={"city":"Oslo"}')}

    def turn(messages):
        request = {"model": chat_model, "max_completion_tokens": 200, "messages": messages, "tools": [WEATHER]}
        if not streamed:
            return client.chat.completions.create(**request).choices[0]
        with client.chat.completions.stream(**request) as stream:
            return stream.get_final_completion().choices[0]

    first = turn([question])
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}

    called = {
        "role": "assistant",
        "content": first.message.content,
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
        ],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"celsius": 7}'}
    then = {"role": "user", "content": prompt('text="It is 7 degrees."')}
    second = turn([question, called, result, then])
    assert second.finish_reason == "stop"
    assert second.message.content == "It is 7 degrees."

    [seen] = vendor_requests(then["content"])
    assert call.id in json.dumps(seen["body"]), "the vendor must see the id that it gave the call"
    assert "celsius" in json.dumps(seen["body"])


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_prompt_of_five_megabytes_arrives_whole(account, chat_model, streamed):
    client = chat_client(account.key)
    text = f'{"lorem ipsum " * 420_000}{prompt("input=1000 output=5")}'
    request = ask(text, chat_model)
    if streamed:
        with client.chat.completions.stream(**request) as stream:
            answer = stream.get_final_completion()
    else:
        answer = client.chat.completions.create(**request)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    [seen] = last_vendor_requests(1)
    assert seen["body_length"] > 5_000_000


def test_a_body_for_a_vendor_of_the_same_protocol_is_passed_on_byte_for_byte(account):
    client = chat_client(account.key)
    text = prompt("lenient=1")
    client.chat.completions.create(**ask(text, BETA, extra_body={"x_unknown": {"n": [1.50, None, "ü"]}}))
    [seen] = vendor_requests(text)
    assert seen["body"]["x_unknown"] == {"n": [1.5, None, "ü"]}
    assert passed_on(client, seen)


def test_no_key_of_a_caller_reaches_a_vendor(account, chat_model):
    text = prompt()
    chat_client(account.key, "both").chat.completions.create(**ask(text, chat_model))
    [seen] = vendor_requests(text)
    headers = json.dumps(seen["headers"])
    assert account.key not in headers and "not-a-gateway-key" not in headers
    assert f"sim-{chat_model.split('-')[0]}-key" in headers


@pytest.mark.parametrize("auth", CHAT_AUTH)
def test_all_models_are_listed(account, auth):
    listed = chat_client(account.key, auth).models.list()
    assert sorted(model.id for model in listed) == sorted([*MODELS, *METERED])
    assert chat_client(account.key, auth).models.retrieve(ALPHA).id == ALPHA

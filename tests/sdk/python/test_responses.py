"""Tests the responses surface through the official openai SDK, with both vendors."""

import json

import openai
import pytest

from gateway import ALPHA, BETA, MODELS, chat_client, last_vendor_requests, prompt

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
USAGE = {"input_tokens": 50, "output_tokens": 20, "total_tokens": 70}


def ask(text, model: str, **more) -> dict:
    return {"model": model, "max_output_tokens": 200, "store": False, "input": text, **more}


def without_ids(response) -> dict:
    """Returns the response without the fields that differ between two responses to the same request."""
    told = response.to_dict()
    for name in ("id", "created_at", "completed_at"):
        told.pop(name)
    for item in told["output"]:
        item.pop("id")
        # The encrypted content differs each time.
        item.pop("encrypted_content", None)
        # The SDK's stream helper adds this field.
        for part in item.get("content") or []:
            part.pop("parsed", None)
    return told


@pytest.mark.parametrize("model", MODELS)
def test_a_streamed_answer_equals_the_whole_one(account, model):
    client = chat_client(account.key)
    text = prompt('text="Grüße, two words and 漢字 🎈" events=7 input=50 output=20')
    whole = client.responses.create(**ask(text, model))
    deltas = []
    with client.responses.stream(**ask(text, model)) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
        streamed = stream.get_final_response()
    assert whole.output_text == streamed.output_text == "".join(deltas) == "Grüße, two words and 漢字 🎈"
    for answer in (whole, streamed):
        assert (answer.model, answer.status, answer.object) == (model, "completed", "response")
        assert USAGE.items() <= answer.usage.to_dict().items()
    assert without_ids(whole) == without_ids(streamed)


@pytest.mark.parametrize("model", [ALPHA, BETA])
def test_a_tool_is_called_and_its_result_goes_back_with_all_that_was_said(account, model):
    client = chat_client(account.key)
    question = {"role": "user", "content": prompt('thinking="Hm." text="Let me see." tool=get_weather args={"city":"Oslo"}')}
    asked = ask([question], model, tools=[WEATHER], reasoning={"effort": "low", "summary": "auto"})
    with client.responses.stream(**asked) as stream:
        first = stream.until_done().get_final_response()
    call = next(item for item in first.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments), call.status) == ("get_weather", {"city": "Oslo"}, "completed")

    history = [question, *(item.to_dict() for item in first.output)]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "Rain"})
    second = client.responses.create(**ask(history, model, tools=[WEATHER]))
    assert second.status == "completed"
    sent = json.dumps(last_vendor_requests(1)[-1], ensure_ascii=False)
    assert "Rain" in sent and call.call_id in sent


@pytest.mark.parametrize("model", [ALPHA, BETA])
def test_a_custom_tool_gets_its_text_as_it_is(account, model):
    patch = '*** Begin Patch\n"quoted" \\d 🎈'
    marker = "tool=apply_patch args=" + json.dumps({"input": patch}, ensure_ascii=False)
    tool = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
    client = chat_client(account.key)
    with client.responses.stream(**ask(prompt(marker), model, tools=[tool])) as stream:
        answer = stream.until_done().get_final_response()
    call = next(item for item in answer.output if item.type == "custom_tool_call")
    assert (call.name, call.input) == ("apply_patch", patch)


@pytest.mark.parametrize("model", [ALPHA, BETA])
def test_a_stream_that_breaks_off_throws_with_our_words(account, model):
    client = chat_client(account.key, max_retries=0)
    with pytest.raises(openai.APIError, match="ended its answer early"):
        for _ in client.responses.create(**ask(prompt("events=8 cut=5"), model, stream=True)):
            pass
    with pytest.raises(openai.APIError, match="ended its answer early"):
        with client.responses.stream(**ask(prompt("events=8 cut=5"), model)) as stream:
            stream.until_done()


def test_what_is_kept_nowhere_is_refused_with_the_vendors_code(account):
    client = chat_client(account.key, max_retries=0)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**ask("Hi", ALPHA, previous_response_id="resp_1"))
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_input_tokens_are_counted(account):
    counted = chat_client(account.key).responses.input_tokens.count(model=ALPHA, input="One, two, three.")
    assert counted.object == "response.input_tokens" and counted.input_tokens > 3

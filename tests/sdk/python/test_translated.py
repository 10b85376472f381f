"""Tests the responses of a vendor that speaks the other protocol, through the official SDKs' own accumulators.

`Completions` requests each response three times: whole; whole, with an output limit so high that the gateway streams
from the vendor; and streamed. `Messages` requests it whole and streamed. All forms must be equal.
"""

import json
import re
from hashlib import sha256

import openai
import pytest
from pydantic import BaseModel

from gateway import ALPHA, BETA, attempts, chat_client, messages_client, prompt, vendor_requests, warnings

UNICODE = "Grüße, 漢字, e\u0301, 👩‍👩‍👧 and \U0001d11e"
LONG = "the quick brown fox jumps over the lazy dog " * 40
USAGE = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"]

PARAMETERS = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "get_time": {"type": "object", "properties": {}},
}
CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": schema}}
    for name, schema in PARAMETERS.items()
]
MESSAGES_TOOLS = [
    {"name": name, "description": f"{name}.", "input_schema": schema} for name, schema in PARAMETERS.items()
]


def weather(city: str, id: str) -> dict:
    return {"tool": "get_weather", "args": {"city": city}, "id": id}


def blocks(*parts: dict) -> str:
    return f"blocks={json.dumps(list(parts))} "


OSLO, ROME = weather("Oslo", "call_oslo"), weather("Rome", "call_rome")
OSLO_ARGUMENTS, ROME_ARGUMENTS = '{"city":"Oslo"}', '{"city":"Rome"}'


def counted(marker: str) -> str:
    """Fixes the input tokens. By default the vendor counts the bytes of a request, and a streaming request has more."""
    return marker if "input=" in marker else f"{marker} input=50"


def calls(*wanted: tuple[str, str]) -> list[dict]:
    return [{"type": "function", "function": {"name": name, "arguments": words}} for name, words in wanted]


OSLO_CALL, ROME_CALL = ("get_weather", OSLO_ARGUMENTS), ("get_weather", ROME_ARGUMENTS)


def comparable(value, key: str = ""):
    """Returns the value without the fields that differ in each response (ids and times) and those that the SDKs'
    helpers add. Replaces a signature, which differs each time too, by its length: one that an accumulator joined
    twice is twice as long. Treats null, an empty string and an absent member as equal."""
    if isinstance(value, dict):
        skipped = {"id", "created", "parsed", "parsed_arguments", "parsed_output"}
        if key in ("tool_calls", "annotations"):  # the index of the entry that a streamed piece belongs to
            skipped.add("index")
        kept = {name: comparable(member, name) for name, member in value.items() if name not in skipped}
        return {name: member for name, member in kept.items() if member not in (None, "")}
    if isinstance(value, list):
        return [comparable(member, key) for member in value]
    if key in ("signature", "data") and value != "gw1.":
        return len(value)
    if key == "arguments":
        return json.dumps(json.loads(value), separators=(",", ":"), ensure_ascii=False)
    return value


# ---- The chat surface, the messages vendor.


class Completions:
    """A request to a model of the messages vendor on the chat surface, and its three responses."""

    def __init__(self, account, marker: str, *, limit: int | None = None, **more) -> None:
        self.client = chat_client(account.key, max_retries=0)
        request = {"model": ALPHA, "messages": [{"role": "user", "content": prompt(counted(marker))}]}
        request |= {"tools": CHAT_TOOLS, **more}
        limits = {"max_tokens": limit or 1_000}
        self.whole = self.client.chat.completions.create(**request, **limits)
        self.folded = self.client.chat.completions.create(**request, max_tokens=limit or 12_000)
        with self.client.chat.completions.stream(
            **request, **limits, stream_options={"include_usage": True}
        ) as stream:
            self.chunks = [event for event in stream if event.type == "chunk"]
            # The last snapshot is the final object. The SDK itself returns that object only for a response that was not cut.
            self.streamed = self.chunks[-1].snapshot
        assert attempts(self.client) == 3

    @property
    def all(self) -> list:
        return [self.whole, self.folded, self.streamed]

    def agree(self) -> dict:
        """Checks that the three responses are equal, and returns their choice."""
        told = comparable(self.whole.to_dict())
        assert comparable(self.folded.to_dict()) == told
        assert comparable(self.streamed.to_dict()) == told
        assert told["model"] == ALPHA and told["object"] == "chat.completion"
        [choice] = told["choices"]
        assert choice["message"]["role"] == "assistant"
        return choice


CHAT_ANSWERS = {
    "text": ('text="Hello there."', "stop", {"content": "Hello there."}),
    "text in many pieces": (f'text="{UNICODE}" events=30', "stop", {"content": UNICODE}),
    "nothing": ('text=""', "stop", {}),
    "one tool": (blocks(OSLO), "tool_calls", {"tool_calls": calls(OSLO_CALL)}),
    "text and a tool": (
        blocks({"text": "I shall look."}, OSLO),
        "tool_calls",
        {"content": "I shall look.", "tool_calls": calls(OSLO_CALL)},
    ),
    "parallel tools": (blocks(OSLO, ROME), "tool_calls", {"tool_calls": calls(OSLO_CALL, ROME_CALL)}),
    "arguments at the start of a block": (
        blocks(OSLO, ROME) + "calls=whole",
        "tool_calls",
        {"tool_calls": calls(OSLO_CALL, ROME_CALL)},
    ),
    "a tool without arguments": (
        blocks({"tool": "get_time", "args": {}, "id": "call_time"}),
        "tool_calls",
        {"tool_calls": calls(("get_time", "{}"))},
    ),
    "a tool whose arguments are never begun": (
        blocks({"tool": "get_time", "args": "", "id": "call_time"}),
        "tool_calls",
        {"tool_calls": calls(("get_time", "{}"))},
    ),
    "unicode in arguments": (
        blocks(weather(UNICODE, "call_1")),
        "tool_calls",
        {"tool_calls": calls(("get_weather", f'{{"city":"{UNICODE}"}}'))},
    ),
    "text on both sides of a search": (
        blocks(
            {"text": "Let me see."},
            {"search": "oslo", "hits": [{"url": "https://oslo.example", "title": "Oslo"}]},
            {"text": "It rains."},
        ),
        "stop",
        {"content": "Let me see.\n\nIt rains."},
    ),
    "a block that nobody knows": (
        blocks({"text": "One, "}, {"unknown": "hologram"}, {"text": "two."}) + "unknown=1",
        "stop",
        {"content": "One, two."},
    ),
    "a refusal": ("refusal=1", "content_filter", {"refusal": "The model declined to answer."}),
    "a refusal with words": (
        'refusal=1 explanation="Not this." category=bio',
        "content_filter",
        {"refusal": "Not this."},
    ),
    "a refusal after text": (
        'text="First, take" refusal=after explanation="Not this."',
        "content_filter",
        {"content": "First, take", "refusal": "Not this."},
    ),
    "a stop sequence": ('text="One, two" stop_sequence=three', "stop", {"content": "One, two"}),
    "a full context": ('text="One" finish=model_context_window_exceeded', "length", {"content": "One"}),
    "a pause": ('text="One" finish=pause_turn', "stop", {"content": "One"}),
    "a compaction": ('text="One" finish=compaction', "stop", {"content": "One"}),
    "an end without a terminator": ("text=One nodone=1", "stop", {"content": "One"}),
    "an unknown stop reason": ('text="One" finish=tired', "length", {"content": "One"}),
    "an unknown stop reason and a tool": (
        blocks(OSLO) + "finish=tired",
        "tool_calls",
        {"tool_calls": calls(OSLO_CALL)},
    ),
    "odd framing": (f'text="{UNICODE}" crlf=1 split=7 keepalive=comment unknown=1', "stop", {"content": UNICODE}),
}


@pytest.mark.parametrize("case", CHAT_ANSWERS)
def test_a_completion_streamed_equals_the_whole_one(account, case):
    marker, finish_reason, message = CHAT_ANSWERS[case]
    answers = Completions(account, marker)
    choice = answers.agree()
    assert choice["finish_reason"] == finish_reason
    found = {name: member for name, member in choice["message"].items() if name != "role"}
    if case == "text on both sides of a search":
        found.pop("annotations", None)
    assert found == message
    for answer in answers.all:
        ids = [call.id for call in answer.choices[0].message.tool_calls or []]
        assert ids == re.findall('"id": "(.*?)"', marker), "the vendor's own"


def test_a_completion_at_the_output_limit_is_cut_there(account):
    choice = Completions(account, f'text="{LONG}"', limit=20).agree()
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == LONG[:80]


def test_a_call_that_the_output_limit_cuts_is_told_as_far_as_it_came(account):
    client = chat_client(account.key, max_retries=0)
    marker = blocks(weather(LONG, "call_1"))
    request = {"model": ALPHA, "messages": [{"role": "user", "content": prompt(marker)}], "tools": CHAT_TOOLS}
    with client.chat.completions.stream(**request, max_tokens=20) as stream:
        *_, last = (event for event in stream if event.type == "chunk")
    [choice] = last.snapshot.choices
    assert choice.finish_reason == "length"
    [call] = choice.message.tool_calls
    assert ('{"city": "' + LONG).startswith(call.function.arguments) and len(call.function.arguments) == 80


def test_a_tool_goes_by_the_callers_name_for_it(account):
    """The gateway renames a tool whose name the vendor would refuse, and restores the name in the response."""
    name = "get.weather of the day"
    alias = f"get_weather_of_the_day_{sha256(name.encode()).hexdigest()[:8]}"
    tool = {"type": "function", "function": {"name": name, "parameters": PARAMETERS["get_weather"]}}
    answers = Completions(account, blocks({"tool": alias, "args": {"city": "Oslo"}, "id": "call_1"}), tools=[tool])
    assert answers.agree()["message"]["tool_calls"] == calls((name, OSLO_ARGUMENTS))
    assert warnings(answers.client) == "renamed:tools[0].function.name"


def test_a_call_of_a_custom_tool_is_a_custom_call(account):
    client = chat_client(account.key, max_retries=0)
    marker = blocks({"tool": "run", "args": {"input": "ls -la"}, "id": "call_1"})
    request = {"model": ALPHA, "max_tokens": 500, "messages": [{"role": "user", "content": prompt(marker)}]}
    request["tools"] = [{"type": "custom", "custom": {"name": "run", "description": "Runs a command."}}]
    [call] = client.chat.completions.create(**request).choices[0].message.tool_calls
    assert (call.id, call.type, call.custom.name, call.custom.input) == ("call_1", "custom", "run", "ls -la")
    assert warnings(client) == "rewritten:tools[0]"
    chunks = list(client.chat.completions.create(**request, stream=True))
    entries = [entry.to_dict() for chunk in chunks for entry in chunk.choices[0].delta.tool_calls or []]
    assert (entries[0]["id"], entries[0]["type"], entries[0]["custom"]["name"]) == ("call_1", "custom", "run")
    assert "".join(entry["custom"].get("input", "") for entry in entries) == "ls -la"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_who_knows_functions_only_gets_a_function_call(account):
    functions = [{"name": "get_weather", "parameters": PARAMETERS["get_weather"]}]
    answers = Completions(account, blocks(OSLO), tools=openai.omit, functions=functions)
    choice = answers.agree()
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": OSLO_ARGUMENTS}
    assert "tool_calls" not in choice["message"]


THOUGHTS = {
    "thinking, text and a tool": [{"thinking": "Rain, I think."}, {"text": "I shall look."}, OSLO],
    "thinking in between": [
        {"text": "Größe 🎈: "},
        {"thinking": "Now Oslo."},
        {"text": "first Oslo."},
        OSLO,
        {"thinking": "Now Rome."},
        ROME,
    ],
    "thinking that is not shown": [{"thinking": "Secret.", "omitted": True}, {"text": "Done."}],
    "redacted thinking": [{"redacted": True}, {"thinking": "And then?"}, {"text": "Done."}],
    "nothing but redacted thinking before a tool": [{"redacted": True}, OSLO],
}


@pytest.mark.parametrize("case", THOUGHTS)
def test_the_reasoning_of_a_completion_streamed_equals_the_whole_one(account, case):
    parts = THOUGHTS[case]
    choice = Completions(account, blocks(*parts)).agree()
    message = choice["message"]

    details, text, made = [], "", 0
    for part in parts:
        place = {"format": "anthropic-claude-v1", "index": len(details), "anchor": f"{len(text)}:{made}"}
        if "thinking" in part:
            shown = {} if part.get("omitted") else {"text": part["thinking"]}
            details.append({"type": "reasoning.text", **shown, **place})
        elif "redacted" in part:
            details.append({"type": "reasoning.encrypted", **place})
        text += part.get("text", "")
        made += "tool" in part
    sealed = [member.pop("signature", None) or member.pop("data") for member in message["reasoning_details"]]
    assert message["reasoning_details"] == details
    assert set(sealed) == {196}, "each is sealed once, as its vendor did"
    assert message.get("content", "") == text
    shown = "".join(detail.get("text", "") for detail in details)
    assert message.get("reasoning_content", "") == shown


def test_the_details_of_reasoning_come_once_and_whole(account):
    """If the gateway repeated the details, one SDK accumulator would join them and another would keep only the last."""
    answers = Completions(account, blocks(*THOUGHTS["thinking in between"]))
    deltas = [choice.delta.to_dict() for event in answers.chunks for choice in event.chunk.choices]
    [details] = [delta["reasoning_details"] for delta in deltas if "reasoning_details" in delta]
    assert details == answers.streamed.choices[0].message.to_dict()["reasoning_details"]
    assert sum("role" in delta for delta in deltas) == 1


@pytest.mark.parametrize("mode", ["", "usage=twice", "usage=every", "usage=nosplit"])
def test_the_usage_of_a_completion_counts_what_was_cached_and_thought(account, mode):
    answers = Completions(account, f"input=1001 cache_read=2003 write_5m=307 output=99 reasoning=40 {mode}")
    for answer in answers.all:
        usage = answer.usage.to_dict()
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3311, 99, 3410)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 2003, "cache_write_tokens": 307, "audio_tokens": 0}
        assert usage["completion_tokens_details"] == {
            "reasoning_tokens": 40,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        }
    answers.agree()


@pytest.mark.parametrize("mode", ["none", "zero", "negative"])
def test_a_completion_whose_vendor_counts_nothing_has_numbers_all_the_same(account, mode):
    for answer in Completions(account, f"text=hello usage={mode}").all:
        usage = answer.usage
        assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert None not in usage.to_dict()["prompt_tokens_details"].values()
        assert None not in usage.to_dict()["completion_tokens_details"].values()


@pytest.mark.parametrize("mode", ["late", "early", "start", "before"])
def test_the_usage_of_a_streamed_completion_is_found_wherever_it_stands(account, mode):
    usage = Completions(account, f"input=1001 cache_read=203 output=99 usage={mode}").streamed.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (1204, 99)
    assert usage.prompt_tokens_details.cached_tokens == 203


def test_citations_of_a_completion_name_their_sources(account):
    source = {"url": "https://oslo.example", "title": "Oslo", "cited": "rain"}
    parts = [{"text": "So: "}, {"text": "It rains.", "citations": [source]}]
    message = Completions(account, blocks(*parts)).agree()["message"]
    assert message["content"] == "So: It rains."
    [annotation] = message["annotations"]
    assert annotation == {
        "type": "url_citation",
        "url_citation": {"start_index": 4, "end_index": 13, "title": "Oslo", "url": "https://oslo.example"},
    }


# ---- The messages surface, the chat vendor.


class Messages:
    """A request to a model of the chat vendor on the messages surface, and its two responses."""

    def __init__(self, account, marker: str, *, limit: int = 2_000, **more) -> None:
        self.client = messages_client(account.key, max_retries=0)
        self.text = prompt(counted(marker))
        content = {"messages": [{"role": "user", "content": self.text}], "tools": MESSAGES_TOOLS}
        request = {"model": BETA, "max_tokens": limit, **content, **more}
        self.whole = self.client.messages.create(**request)
        with self.client.messages.stream(**request) as stream:
            self.events = list(stream)
            self.streamed = stream.get_final_message()
        assert attempts(self.client) == 2

    @property
    def all(self) -> list:
        return [self.whole, self.streamed]

    def agree(self) -> dict:
        """Checks that the two responses are equal, and returns the whole one."""
        told, streamed = (comparable(answer.to_dict()) for answer in self.all)
        # A stream reports only the usage fields that change during the stream.
        for answer in (told, streamed):
            usage = answer.pop("usage")
            answer["usage"] = [usage[name] for name in USAGE] + [usage["output_tokens_details"]["thinking_tokens"]]
        assert streamed == told
        assert told["model"] == BETA
        assert (told["type"], told["role"]) == ("message", "assistant")
        return told


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def use(city: str) -> dict:
    return {"type": "tool_use", "name": "get_weather", "input": {"city": city}}


MESSAGES_ANSWERS = {
    "text": ('text="Hello there."', "end_turn", [text("Hello there.")]),
    "text in many pieces": (f'text="{UNICODE}" events=30', "end_turn", [text(UNICODE)]),
    "nothing": ('text=""', "end_turn", []),
    "white space": ('text=" \\n "', "end_turn", []),
    "one tool": (blocks(OSLO), "tool_use", [use("Oslo")]),
    "text and a tool": (blocks({"text": "I shall look."}, OSLO), "tool_use", [text("I shall look."), use("Oslo")]),
    "parallel tools": (blocks(OSLO, ROME), "tool_use", [use("Oslo"), use("Rome")]),
    "a tool without arguments": (
        blocks({"tool": "get_time", "args": {}, "id": "call_time"}),
        "tool_use",
        [{"type": "tool_use", "name": "get_time", "input": {}}],
    ),
    "a tool whose arguments are never begun": (
        blocks({"tool": "get_time", "args": "", "id": "call_time"}),
        "tool_use",
        [{"type": "tool_use", "name": "get_time", "input": {}}],
    ),
    "unicode in arguments": (blocks(weather(UNICODE, "call_1")), "tool_use", [use(UNICODE)]),
    "a stop although it called": (blocks(OSLO) + "finish=stop", "tool_use", [use("Oslo")]),
    "calls announced and not made": ("text=Hm finish=tool_calls", "end_turn", [text("Hm")]),
    "no finish reason but a call": (blocks(OSLO) + "finish=tired", "tool_use", [use("Oslo")]),
    "an unknown finish reason": ("text=One finish=tired", "max_tokens", [text("One")]),
    "a refusal": ('refusal=1 text="Not this."', "refusal", [text("Not this.")]),
    "a refusal after text": (
        'text="First, take" refusal=after explanation="Not this."',
        "refusal",
        [text("First, take"), text("Not this.")],
    ),
    "a content filter": ("text=Hm finish=content_filter", "refusal", [text("Hm")]),
    "the output limit": ("text=One finish=length", "max_tokens", [text("One")]),
    "odd framing": (f'text="{UNICODE}" crlf=1 split=7 keepalive=comment unknown=1', "end_turn", [text(UNICODE)]),
    "comments as data": ("text=One keepalive=data", "end_turn", [text("One")]),
    "an end without a terminator": ("text=One nodone=1", "end_turn", [text("One")]),
    "content in parts": ("text=One shape=array", "end_turn", [text("One")]),
}


@pytest.mark.parametrize("case", MESSAGES_ANSWERS)
def test_a_message_streamed_equals_the_whole_one(account, case):
    marker, stop_reason, content = MESSAGES_ANSWERS[case]
    told = Messages(account, marker).agree()
    assert told["stop_reason"] == stop_reason
    assert "stop_sequence" not in told
    assert told["content"] == content
    if stop_reason == "refusal":
        assert told["stop_details"]["type"] == "refusal"
        if "filter" not in case:
            assert told["stop_details"]["explanation"] == "Not this."


@pytest.mark.parametrize("mode", ["interleaved", "zero", "noid", "noindex", "whole", "repeat", "double"])
def test_parallel_calls_are_told_apart_however_the_vendor_writes_them(account, mode):
    answers = Messages(account, blocks({"text": "Both."}, OSLO, ROME) + f"calls={mode}")
    assert answers.agree()["content"] == [text("Both."), use("Oslo"), use("Rome")]
    for answer in answers.all:
        first, second = (block.id for block in answer.content[1:])
        if mode == "noid":
            assert first != second and first.startswith("call_") and second.startswith("call_")
        else:
            assert (first, second) == ("call_oslo", "call_rome")


def test_a_call_in_the_older_form_is_a_call(account):
    answers = Messages(account, blocks(OSLO) + "calls=legacy")
    told = answers.agree()
    assert (told["stop_reason"], told["content"]) == ("tool_use", [use("Oslo")])
    assert all(answer.content[0].id.startswith("call_") for answer in answers.all)


@pytest.mark.parametrize("mode", ["", "calls=whole"])
def test_a_call_with_broken_arguments_stays_what_it_was(account, mode):
    client = messages_client(account.key, max_retries=0)
    marker = blocks({"tool": "get_weather", "args": "{city: Oslo}", "id": "call_1"}) + mode
    request = {"model": BETA, "max_tokens": 500, "messages": [{"role": "user", "content": prompt(marker)}]}
    whole = client.messages.create(**request, tools=MESSAGES_TOOLS)
    assert whole.content[0].input == {"_invalid_arguments": "{city: Oslo}"}
    if mode:
        with client.messages.stream(**request, tools=MESSAGES_TOOLS) as stream:
            assert stream.get_final_message().content[0].input == {"_invalid_arguments": "{city: Oslo}"}


def test_a_message_at_the_output_limit_is_cut_there(account):
    told = Messages(account, f'text="{LONG}"', limit=20).agree()
    assert (told["stop_reason"], told["content"]) == ("max_tokens", [text(LONG[:80])])
    assert told["usage"][3] == 20


def test_a_limit_in_which_a_model_cannot_finish_is_an_empty_message(account):
    answers = Messages(account, "min_output=16", limit=1)
    for answer in answers.all:
        assert (answer.content, answer.stop_reason) == ([], "max_tokens")
        assert answer.usage.input_tokens > 0 and answer.usage.output_tokens == 1


def test_a_stop_sequence_that_the_model_does_not_take_is_named(account):
    answers = Messages(account, "text=One", stop_sequences=["END"])
    assert warnings(answers.client) == "dropped:stop_sequences"
    assert answers.agree()["stop_reason"] == "end_turn"
    assert "stop" not in vendor_requests(answers.text)[0]["body"]


ENABLED = {"type": "enabled", "budget_tokens": 1_024}


@pytest.mark.parametrize("spelling", ["reasoning_content", "reasoning", "reasoning_details", "all"])
def test_reasoning_is_a_thinking_block_for_who_switched_it_on(account, spelling):
    marker = blocks({"thinking": "Rain, I think."}, {"text": "I shall look."}, OSLO) + f"spelling={spelling}"
    answers = Messages(account, marker, thinking=ENABLED)
    told = answers.agree()
    assert told["content"] == [
        {"type": "thinking", "thinking": "Rain, I think.", "signature": "gw1."},
        text("I shall look."),
        use("Oslo"),
    ]
    assert vendor_requests(answers.text)[0]["body"]["reasoning_effort"] == "low"


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}, {**ENABLED, "display": "omitted"}])
def test_reasoning_is_hidden_from_who_did_not(account, thinking):
    marker = blocks({"thinking": "Rain, I think."}, {"text": "I shall look."}, OSLO)
    more = {"thinking": thinking} if thinking else {}
    assert Messages(account, marker, **more).agree()["content"] == [text("I shall look."), use("Oslo")]


def test_reasoning_after_text_and_a_tool_is_a_block_of_its_own(account):
    parts = [{"thinking": "One."}, {"text": "Two."}, {"thinking": "Three."}, OSLO]
    parts += [{"thinking": "Four."}, {"text": "Five."}]
    client = messages_client(account.key, max_retries=0)
    request = {"model": BETA, "max_tokens": 2_000, "messages": [{"role": "user", "content": prompt(blocks(*parts))}]}
    with client.messages.stream(**request, tools=MESSAGES_TOOLS, thinking=ENABLED) as stream:
        message = stream.get_final_message()
    found = [
        block.thinking if block.type == "thinking" else block.text if block.type == "text" else block.name
        for block in message.content
    ]
    assert found == ["One.", "Two.", "Three.", "get_weather", "Four.", "Five."]


def test_a_tool_has_the_callers_name_in_a_message(account):
    name = "f" * 100
    alias = f"{name[:55]}_{sha256(name.encode()).hexdigest()[:8]}"
    marker = blocks({"tool": alias, "args": {"city": "Oslo"}, "id": "call_1"})
    tools = [{"name": name, "input_schema": PARAMETERS["get_weather"]}]
    answers = Messages(account, marker, tools=tools)
    assert answers.agree()["content"] == [{**use("Oslo"), "name": name}]
    assert warnings(answers.client) == "renamed:tools[0].name"


def test_redacted_reasoning_is_kept_in_a_signature(account):
    marker = blocks({"redacted": True}, {"text": "Done."}) + "spelling=reasoning_details"
    for answer in Messages(account, marker, thinking=ENABLED).all:
        thought, said = answer.content
        assert (thought.type, thought.thinking) == ("thinking", "")
        assert thought.signature.startswith("gw1.") and len(thought.signature) > 100
        assert said.text == "Done."


@pytest.mark.parametrize("mode", ["", "usage=twice", "usage=every", "usage=finish", "usage=before"])
def test_the_usage_of_a_message_counts_what_was_cached_and_thought(account, mode):
    told = Messages(account, f"input=1001 cache_read=2003 write_5m=307 output=99 reasoning=40 {mode}").agree()
    assert told["usage"] == [1001, 2003, 307, 99, 40]


@pytest.mark.parametrize("mode", ["none", "zero", "negative"])
def test_a_message_whose_vendor_counts_nothing_has_numbers_all_the_same(account, mode):
    answers = Messages(account, f"text=hello usage={mode}")
    for answer in answers.all:
        assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0
        assert answer.usage.cache_read_input_tokens == answer.usage.cache_creation_input_tokens == 0
    started = next(event for event in answers.events if event.type == "message_start")
    assert started.message.usage.input_tokens > 0


# ---- Structured output, as the SDKs read it.


class Weather(BaseModel):
    city: str
    celsius: int


ANSWER = '{"city":"Oslo","celsius":7}'


def test_a_completion_is_parsed_by_its_schema(account):
    client = chat_client(account.key, max_retries=0)
    text = prompt(f"text='{ANSWER}'")
    request = {"model": ALPHA, "max_tokens": 500, "messages": [{"role": "user", "content": text}]}
    whole = client.chat.completions.parse(**request, response_format=Weather)
    assert whole.choices[0].message.parsed == Weather(city="Oslo", celsius=7)
    with client.chat.completions.stream(**request, response_format=Weather) as stream:
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.parsed == Weather(city="Oslo", celsius=7)
    for seen in vendor_requests(text):
        assert seen["body"]["output_config"]["format"]["schema"]["required"] == ["city", "celsius"]
    assert warnings(client) is None


def test_a_call_is_parsed_by_its_schema(account):
    client = chat_client(account.key, max_retries=0)
    text = prompt(blocks({"tool": "Weather", "args": json.loads(ANSWER), "id": "call_1"}))
    request = {"model": ALPHA, "max_tokens": 500, "messages": [{"role": "user", "content": text}]}
    tools = [openai.pydantic_function_tool(Weather)]
    whole = client.chat.completions.parse(**request, tools=tools)
    with client.chat.completions.stream(**request, tools=tools) as stream:
        streamed = stream.get_final_completion()
    for answer in (whole, streamed):
        [call] = answer.choices[0].message.tool_calls
        assert call.function.parsed_arguments == Weather(city="Oslo", celsius=7)
    assert all(seen["body"]["tools"][0]["strict"] is True for seen in vendor_requests(text))


def test_a_message_is_parsed_by_its_schema(account):
    client = messages_client(account.key, max_retries=0)
    text = prompt(f"text='{ANSWER}'")
    request = {"model": BETA, "max_tokens": 500, "messages": [{"role": "user", "content": text}]}
    whole = client.messages.parse(**request, output_format=Weather)
    assert whole.parsed_output == Weather(city="Oslo", celsius=7)
    with client.messages.stream(**request, output_format=Weather) as stream:
        streamed = stream.get_final_message()
    assert streamed.parsed_output == Weather(city="Oslo", celsius=7)
    for seen in vendor_requests(text):
        asked = seen["body"]["response_format"]["json_schema"]
        assert asked["strict"] is True and asked["schema"]["required"] == ["city", "celsius"]
    assert warnings(client) is None

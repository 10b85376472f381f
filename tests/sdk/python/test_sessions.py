"""Tests conversations as agents hold them: tools, thinking and results over several turns. The client sends each
response back exactly as the SDK returned it. The simulated vendors check a history as strictly as the real ones do,
including the signatures of thinking. The tests also check what the vendor got, because the gateway may retry a refused
request without its thinking.
"""

import json

import pytest

from gateway import ALPHA, BETA, attempts, chat_client, messages_client, prompt, protocol, vendor_requests, warnings

ADAPTIVE = "alpha-opus-4-7"  # thinks as much as it likes, and returns it only on request
TWO_SURFACES = ["chat", "messages"]
FORMS = ["whole", "streamed", "dumped"]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LONG_ID = "toolu_" + "x" * 50  # longer than the chat vendor accepts
ODD_ID = "functions.get_weather:0"  # has characters that the messages vendor does not accept


class Talk:
    """A conversation on one surface. `form` selects how it requests a response and how it adds it to the history."""

    def __init__(self, account, form: str) -> None:
        self.form = form
        self.messages: list = []
        self.client = self.open(account.key)
        self.thoughts: list[str] = []  # the signatures that the messages vendor issued, in order
        self.ids: list[str] = []

    def say(self, model: str, text: str, expected=None, **more) -> str:
        """Sends a user message, answers the tool calls and returns the text of the last response.
        `expected` computes from the history the warnings that the gateway must send."""
        self.messages.append({"role": "user", "content": text})
        for sent in (1, 2):
            tell = expected(self.messages) if expected else None
            answer = self.ask(model, **more)
            assert warnings(self.client) == tell
            seen = vendor_requests(text)
            assert len(seen) == sent, "the gateway asked once"
            self.check(model, seen[-1]["body"])
            self.remember(model, answer)
            ids = self.calls(answer)
            if not ids:
                assert sent == 2, "the tool is called once in each turn"
                return self.text(answer)
            assert len(ids) == 2 and sent == 1
            self.ids += ids
            self.answer(ids)
        raise AssertionError("the tool was called again")

    def check(self, model: str, body: dict) -> None:
        """Checks that the vendor got every tool call, and its own thinking with the signatures that it issued."""
        if protocol(model) == "messages":
            blocks = [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]
            sealed = [block["signature"] for block in blocks if block["type"] == "thinking"]
            calls = [block["name"] for block in blocks if block["type"] == "tool_use"]
        else:
            sealed = self.thoughts
            calls = [
                call["function"]["name"] for message in body["messages"] for call in message.get("tool_calls") or []
            ]
            assert "signature" not in json.dumps(body)
        assert sealed == self.thoughts
        assert calls == ["get_weather"] * len(self.ids)


class ChatTalk(Talk):
    def open(self, key: str):
        return chat_client(key, max_retries=0)

    def ask(self, model: str, effort: str | None = "low"):
        request = {"model": model, "max_completion_tokens": 6_000, "messages": self.messages}
        request["tools"] = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
        if effort:
            request["reasoning_effort"] = effort
        if self.form == "streamed":
            with self.client.chat.completions.stream(**request) as stream:
                return stream.get_final_completion().choices[0].message
        return self.client.chat.completions.create(**request).choices[0].message

    def remember(self, model: str, message) -> None:
        if protocol(model) == "messages":
            assert message.reasoning_content == "Rain, I think."
            self.thoughts += [detail["signature"] for detail in message.reasoning_details]
        self.messages.append(message.model_dump() if self.form == "dumped" else message)

    def calls(self, message) -> list[str]:
        return [call.id for call in message.tool_calls or []]

    def answer(self, ids: list[str]) -> None:
        self.messages += [{"role": "tool", "tool_call_id": id, "content": '{"celsius": 7}'} for id in ids]

    def text(self, message) -> str:
        return message.content


class MessagesTalk(Talk):
    def open(self, key: str):
        return messages_client(key, max_retries=0)

    def ask(self, model: str):
        request = {"model": model, "max_tokens": 6_000, "messages": self.messages}
        request["tools"] = [{"name": "get_weather", "input_schema": SCHEMA}]
        thinking = {"type": "enabled", "budget_tokens": 1_024}
        request["thinking"] = {"type": "adaptive", "display": "summarized"} if model == ADAPTIVE else thinking
        if self.form == "streamed":
            with self.client.messages.stream(**request) as stream:
                return stream.get_final_message()
        return self.client.messages.create(**request)

    def remember(self, model: str, message) -> None:
        thoughts = [block for block in message.content if block.type == "thinking"]
        assert [thought.thinking for thought in thoughts] == ["Rain, I think."]
        if protocol(model) == "messages":
            self.thoughts += [thought.signature for thought in thoughts]
        content = [block.model_dump() for block in message.content] if self.form == "dumped" else message.content
        self.messages.append({"role": "assistant", "content": content})

    def calls(self, message) -> list[str]:
        return [block.id for block in message.content if block.type == "tool_use"]

    def answer(self, ids: list[str]) -> None:
        results = [{"type": "tool_result", "tool_use_id": id, "content": '{"celsius": 7}'} for id in ids]
        self.messages.append({"role": "user", "content": results})

    def text(self, message) -> str:
        [text] = [block.text for block in message.content if block.type == "text"]
        return text


TALKS = {"chat": ChatTalk, "messages": MessagesTalk}


def question(text: str, more: str = "") -> str:
    """Makes the vendor think, write the text and call the tool twice; after the results, think and write the text."""
    return prompt(f'thinking="Rain, I think." text="{text}" tool=get_weather args={{"city":"Oslo"}} tools=2 {more}')


def unsigned_is_dropped(surface: str, model: str):
    """Returns a function that computes the expected warnings from a history, or None where none can occur.
    The chat vendor accepts no thinking, not even its own, so the gateway drops it and warns the client. It does not
    warn about another vendor's thinking, which comes with `reasoning_details` that hold its signature."""
    if surface != "chat" or protocol(model) != "chat":
        return None

    def warned(history: list) -> str | None:
        told = [message if isinstance(message, dict) else message.to_dict() for message in history]
        tokens = [
            f"dropped:messages[{index}].reasoning_content"
            for index, message in enumerate(told)
            if message.get("reasoning_content") and not message.get("reasoning_details")
        ]
        return ", ".join(sorted(tokens)) or None

    return warned


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", [ALPHA, ADAPTIVE, BETA])
@pytest.mark.parametrize("surface", TWO_SURFACES)
def test_three_turns_with_tools_and_thinking(account, surface, model, form):
    talk = TALKS[surface](account, form)
    expected = unsigned_is_dropped(surface, model) if model == BETA else None
    for text in ("One.", "Grüße 🎈, two.", "Three."):
        assert talk.say(model, question(text), expected) == text
    assert attempts(talk.client) == 6
    assert len(talk.thoughts) == (0 if model == BETA else 6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", [ALPHA, ADAPTIVE])
@pytest.mark.parametrize("surface", TWO_SURFACES)
def test_the_model_is_changed_in_the_middle_and_changed_back(account, surface, alpha, form):
    talk = TALKS[surface](account, form)
    turns = [
        (alpha, "One.", f"tool_id={LONG_ID}"),
        (BETA, "Two.", f"tool_id={ODD_ID}"),
        (alpha, "Three.", ""),
        (BETA, "Four.", ""),
    ]
    for model, text, marker in turns:
        assert talk.say(model, question(text, marker), unsigned_is_dropped(surface, model)) == text
    assert talk.ids[:4] == [LONG_ID, f"{LONG_ID}_2", ODD_ID, f"{ODD_ID}_2"], "to the caller ids are what they were"
    assert len(talk.thoughts) == 4


def test_a_model_that_takes_over_between_call_and_result_is_not_made_to_think(account):
    """The messages vendor resumes thinking only if the history contains its own thinking."""
    talk = ChatTalk(account, "whole")
    text = question("One.")
    talk.messages.append({"role": "user", "content": text})
    called = talk.ask(BETA)
    talk.messages.append(called)
    talk.answer(talk.calls(called))
    assert talk.ask(ALPHA).content == "One."
    assert warnings(talk.client) == "dropped:reasoning_effort"
    assert "thinking" not in vendor_requests(text)[-1]["body"]


def test_a_model_that_thinks_beside_tools_by_responses_alone_is_asked_there(account):
    talk = MessagesTalk(account, "whole")
    text = question("One.")
    talk.messages.append({"role": "user", "content": text})
    talk.ask("beta-5.5")
    asked = vendor_requests(text)[0]
    assert asked["path"] == "/v1/responses"
    assert asked["body"]["reasoning"]["effort"] != "none"
    assert asked["body"]["tools"]
    assert warnings(talk.client) != "downgraded:thinking"


@pytest.mark.parametrize("model", [ALPHA, ADAPTIVE])
def test_redacted_thinking_comes_back_as_it_was(account, model):
    call = {"tool": "get_weather", "args": {"city": "Oslo"}}
    parts = [{"redacted": True}, {"thinking": "Hm."}, {"text": "So."}, call]
    talk = ChatTalk(account, "streamed")
    text = prompt(f"blocks={json.dumps(parts)}")
    talk.messages.append({"role": "user", "content": text})
    called = talk.ask(model)
    talk.messages.append(called)
    talk.answer(talk.calls(called))
    talk.ask(model)
    assert warnings(talk.client) is None
    first, second = vendor_requests(text)
    turn = second["body"]["messages"][1]["content"]
    assert [block["type"] for block in turn] == ["redacted_thinking", "thinking", "text", "tool_use"]
    assert turn[0]["data"] == called.reasoning_details[0]["data"]

"""Lists what the installed SDKs' types say about answers: members, counts of the usage, types of blocks and events, and the
values of members that decide what the gateway does. The table of verdicts must cover them all.

Each line holds a surface, a category and a name in it.

    python answer_fields.py
"""

import typing

import anthropic.types as messages
import anthropic.types.beta as preview
import openai.types.chat as chat
import openai.types.responses as responses

from request_fields import variants

# The answer, its stream's events, and the members whose values count.
SURFACES = {
    "chat": ([chat.ChatCompletion, chat.ChatCompletionChunk], []),
    "messages": (
        [messages.Message, preview.BetaMessage],
        [messages.RawMessageStreamEvent, preview.BetaRawMessageStreamEvent],
    ),
    # Its events and items have a table of their own: response_kinds.py.
    "responses": ([responses.Response], []),
}
# Members of an answer whose own members matter: they decide what is billed, and how the answer ends.
DEEP = ("choices", "error", "incomplete_details", "prompt_cache_diagnostics", "stop_details", "tool_usage", "usage")
# Members below these whose own members nothing depends on.
FLAT = ("annotations", "audio", "fallback_credit", "logprobs", "misalignment")
# Members whose values decide it.
VALUES = ("category", "code", "finish_reason", "reason", "service_tier", "speed", "status", "stop_reason")
# The types of the objects in these lists are names of their own.
LISTS = {"content": "block", "iterations": "iteration"}


def members(kind) -> dict:
    return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}


def literals(kind) -> list[str]:
    return [str(value) for one in variants(kind) if typing.get_origin(one) is typing.Literal for value in typing.get_args(one)]


def types_of(kind) -> list[str]:
    return literals(members(kind).get("type"))


def objects(kind) -> list:
    """Returns the objects in a type: of a union, of a list, or the object itself."""
    found = []
    for one in variants(kind):
        if typing.get_origin(one) is list:
            found += objects(typing.get_args(one)[0])
        elif hasattr(one, "model_fields"):
            found.append(one)
    return found


def walk(kind, path: str, found: set[str]) -> None:
    for name, member in members(kind).items():
        here = f"{path}.{name}" if path else name
        found.add(f"member {here}")
        if name in VALUES:
            found.update(f"value {here}={value}" for value in literals(member))
        for one in objects(member):
            if name in LISTS:
                found.update(f"{LISTS[name]} {of}" for of in types_of(one))
            elif name not in FLAT and (path or name in DEEP):
                walk(one, here, found)


def walk_event(kind, found: set[str]) -> None:
    """The usage and the end of an answer in an event have the names of those in a whole answer."""
    for event in types_of(kind):
        found.add(f"event {event}")
        for name, member in members(kind).items():
            found.add(f"member {event}.{name}")
            for one in objects(member):
                if name == "content_block":
                    found.update(f"block {of}" for of in types_of(one))
                elif name == "delta" and types_of(one):
                    found.update(f"delta {of}" for of in types_of(one))
                elif name in ("delta", "usage"):
                    walk(one, "" if name == "delta" else name, found)


def names() -> list[str]:
    lines = []
    for surface, (answers, events) in SURFACES.items():
        found: set[str] = set()
        for answer in answers:
            walk(answer, "", found)
        for event in (one for kind in events for one in variants(kind)):
            walk_event(event, found)
        lines += [f"{surface} {name}" for name in sorted(found)]
    return lines


if __name__ == "__main__":
    print("\n".join(names()))

"""Lists every member of the request types of the installed SDKs, as paths. The tables of outcomes must cover them all.

A path of the chat surface looks like `messages[].content[].image_url.detail`. On the messages surface, a path names the
type of each list item: `messages[].content[image].source`. A block inside another block has the same path as outside.
The list includes the members that a vendor accepts only in its preview API.

    python request_fields.py chat|messages|responses
"""

import sys
import types
import typing
from typing import Annotated, Literal, Required, Union, get_args, get_origin

import typing_extensions

MARKS = (Annotated, Required, typing.NotRequired, typing_extensions.Required, typing_extensions.NotRequired)
LISTS = ("Iterable", "Sequence", "list", "SequenceNotStr")
# The path of content blocks: fields inside any of them are listed under this path.
BLOCKS = "messages[].content"


def variants(kind) -> list:
    while get_origin(kind) in MARKS:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        return [one for part in get_args(kind) for one in variants(part)]
    return [kind]


def is_typed_dict(kind) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__required_keys__")


def members(kind) -> dict:
    return typing_extensions.get_type_hints(kind, include_extras=True)


def type_names(kind) -> list[str]:
    literals = (one for one in variants(members(kind).get("type", None)) if get_origin(one) is Literal)
    return [name for one in literals for name in get_args(one)]


def walk(kind, path: str, typed: bool, found: set[str]) -> None:
    for one in variants(kind):
        if getattr(get_origin(one), "__name__", "") in LISTS:
            for item in variants(get_args(one)[0]):
                names = type_names(item) if typed and is_typed_dict(item) else []
                base = BLOCKS if path.startswith(f"{BLOCKS}[") else path
                for here in [f"{base}[{name}]" for name in names] or [f"{path}[]"]:
                    walk(item, here, typed, found)
        elif is_typed_dict(one):
            for name, member in members(one).items():
                here = f"{path}.{name}" if path else name
                if here not in found:
                    found.add(here)
                    walk(member, here, typed, found)
                elif here.count("[") + here.count(".") < 6:
                    walk(member, here, typed, found)


def fields(surface: str) -> list[str]:
    found: set[str] = set()
    if surface == "chat":
        from openai.types.chat import completion_create_params as params

        kinds = [params.CompletionCreateParamsNonStreaming, params.CompletionCreateParamsStreaming]
    elif surface == "responses":
        from openai.types.responses import response_create_params as params

        kinds = [params.ResponseCreateParamsNonStreaming, params.ResponseCreateParamsStreaming]
    else:
        from anthropic.types import message_create_params as params
        from anthropic.types.beta import message_create_params as preview

        kinds = [
            params.MessageCreateParamsNonStreaming,
            params.MessageCreateParamsStreaming,
            preview.MessageCreateParamsNonStreaming,
            preview.MessageCreateParamsStreaming,
        ]
    for kind in kinds:
        walk(kind, "", surface == "messages", found)
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(fields(sys.argv[1])))

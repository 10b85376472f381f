"""Lists every `type` in the installed SDK's types of the responses protocol. The table of kinds must cover them all.

Each line holds a category (`tool`, `event`, …) and a `type` in it.

    python response_kinds.py
"""

import typing

from openai.types import responses
from request_fields import variants

LISTS = {
    "input_item": responses.ResponseInputItemParam,
    "input_part": responses.ResponseInputContentParam,
    "tool": responses.ToolParam,
    "output_item": responses.ResponseOutputItem,
    "event": responses.ResponseStreamEvent,
}


def names(kind) -> set[str]:
    """Returns the literals of the `type` member of every variant."""
    found: set[str] = set()
    for one in variants(kind):
        if hasattr(one, "model_fields"):
            member = one.model_fields["type"].annotation
        else:
            member = typing.get_type_hints(one, include_extras=True)["type"]
        for literal in variants(member):
            found.update(typing.get_args(literal))
    return found


def kinds() -> list[str]:
    return [f"{of} {name}" for of, kind in LISTS.items() for name in sorted(names(kind))]


if __name__ == "__main__":
    print("\n".join(kinds()))

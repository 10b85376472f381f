"""Tests that the tables of verdicts cover every member and kind in the types of the installed SDKs.

A new name fails here until a table has it: for a request and for the kinds of the responses protocol, the list below
`tests/vectors/fields`, whose verdicts are the rows that `tests/vectors.rs` compares it with; for an answer, `answers.txt` there.
"""

from pathlib import Path

import pytest

import answer_fields
import request_fields
import response_kinds

LISTS = Path(__file__).parents[2] / "vectors/fields"
VERDICTS = {"bill", "free", "translate", "pass", "drop", "refuse", "alarm"}


def rows(name: str) -> list[str]:
    return [line for line in (LISTS / name).read_text().splitlines() if not line.startswith("#")]


def differences(listed: list[str], found: list[str]) -> list[str]:
    """Returns each name of the types that is in no row, and each row that is in no type."""
    new = [f"{name}: in the SDK's types, without a verdict" for name in sorted(set(found) - set(listed))]
    gone = [f"{name}: listed, and no longer in the SDK's types" for name in sorted(set(listed) - set(found))]
    return new + gone


@pytest.mark.parametrize("surface", ["chat", "messages", "responses"])
def test_each_member_of_the_official_requests_is_listed(surface):
    listed = rows(f"{surface}.txt")
    assert listed == sorted(set(listed))
    assert differences(listed, request_fields.fields(surface)) == []


def test_each_kind_of_the_official_types_is_listed():
    assert differences(rows("responses-kinds.txt"), response_kinds.kinds()) == []


def test_each_member_and_kind_of_the_official_answers_has_a_verdict():
    names, verdicts = zip(*(row.rsplit(" ", 1) for row in rows("answers.txt")))
    assert list(names) == sorted(set(names))
    assert set(verdicts) == VERDICTS
    assert differences(list(names), answer_fields.names()) == []


def test_an_invented_member_has_no_verdict(monkeypatch):
    from anthropic.types import Usage
    from openai.types.chat import ChatCompletion
    from openai.types.responses import response_create_params as params

    monkeypatch.setitem(Usage.model_fields, "dreams", Usage.model_fields["input_tokens"])
    monkeypatch.setitem(ChatCompletion.model_fields, "mood", ChatCompletion.model_fields["id"])
    names = [row.rsplit(" ", 1)[0] for row in rows("answers.txt")]
    assert differences(names, answer_fields.names()) == [
        "chat member mood: in the SDK's types, without a verdict",
        "messages member usage.dreams: in the SDK's types, without a verdict",
    ]
    monkeypatch.setitem(params.ResponseCreateParamsNonStreaming.__annotations__, "mood", str)
    assert differences(rows("responses.txt"), request_fields.fields("responses")) == [
        "mood: in the SDK's types, without a verdict"
    ]

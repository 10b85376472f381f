"""Tests that the lists of members and kinds, which the translation must cover, match the installed SDKs' types."""

from pathlib import Path

import pytest

import request_fields
import response_kinds

LISTS = Path(__file__).parents[2] / "vectors/fields"


@pytest.mark.parametrize("surface", ["chat", "messages", "responses"])
def test_the_list_of_members_is_that_of_the_official_types(surface):
    listed = (LISTS / f"{surface}.txt").read_text().splitlines()
    assert listed == request_fields.fields(surface)


def test_the_list_of_kinds_is_that_of_the_official_types():
    assert (LISTS / "responses-kinds.txt").read_text().splitlines() == response_kinds.kinds()

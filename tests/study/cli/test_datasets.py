"""Tests of `study datasets`: the list, for people and for scripts."""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import RunCommand
from trainables.data.registry import DATASETS

pytestmark = pytest.mark.split


def test_data_sets_are_listed_with_their_options(study: RunCommand) -> None:
    items = {item["name"]: item for item in json.loads(study("datasets", "--json").out)}
    assert set(items) == set(DATASETS)
    assert items["folder"]["options"]["path"]["required"]
    assert not items["glyphs"]["options"]["classes"]["required"]
    text = study("datasets").out
    for name, item in items.items():
        assert f"\n{name}: {item['title']}\n" in text
        assert all(f"  {option} " in text for option in item["options"])

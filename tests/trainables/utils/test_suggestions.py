"""Hints for misspelt names."""

from __future__ import annotations

import pytest

from trainables.utils.suggestions import (
    MAX_LISTED_NAMES,
    suggest_nearest_name,
    unknown_name_error,
)

pytestmark = pytest.mark.split

NAMES = ["proxy_anchor", "circle", "soft_triple"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("proxy_ancor", "did you mean 'proxy_anchor'?"),
        ("triple", "did you mean 'soft_triple'?"),
        ("x", "known: circle, proxy_anchor, soft_triple"),
    ],
)
def test_the_nearest_name_or_all_names_are_suggested(name: str, hint: str) -> None:
    assert suggest_nearest_name(name, NAMES) == hint


def test_long_lists_are_counted() -> None:
    names = [f"model{i}" for i in range(MAX_LISTED_NAMES + 1)]
    assert suggest_nearest_name("xyz", names) == f"{len(names)} names are known"


def test_the_error_names_the_kind_and_the_name() -> None:
    error = unknown_name_error("loss", "circel", NAMES)
    assert str(error) == "unknown loss 'circel'; did you mean 'circle'?"

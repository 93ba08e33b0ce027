"""Tests of `study confirm`: requested trials on the test classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import RecordedRuns, RunCommand

pytestmark = pytest.mark.split


def test_confirm_waits_for_the_search(
    study: RunCommand, unfinished_study: Path, runs: RecordedRuns
) -> None:
    done = study("confirm", "s")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "study resume s" in done.err
    assert not runs.requests


def test_confirm_requests_the_best_and_the_published_points(
    study: RunCommand, finished_study: Path, runs: RecordedRuns
) -> None:
    assert study("confirm", "s").code == 0
    (confirmed,) = runs.requests
    assert {(j.loss, j.anchor) for j in confirmed} == {
        (loss, anchor)
        for loss in ("proxy_anchor", "triplet")
        for anchor in ("incumbent", "published")
    }
    assert {j.split for j in confirmed} == {"test"}
    assert runs.searches == [False]

"""Tests of `study sweep`: requested trials, and unknown names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import RecordedRuns, RunCommand

pytestmark = pytest.mark.split


def test_a_sweep_requests_values_around_both_anchors(
    study: RunCommand, finished_study: Path, runs: RecordedRuns
) -> None:
    assert study("sweep", "s", "--knob", "alpha", "--values", "3", "--seeds", "2").code == 0
    (swept,) = runs.requests
    assert {(j.loss, j.swept, j.split) for j in swept} == {("proxy_anchor", "alpha", "validation")}
    assert sorted({j.anchor for j in swept}) == ["incumbent", "published"]
    assert len(swept) in (12, 14, 16), "three values and the anchor's own, two seeds, two anchors"
    assert runs.searches == [False]


@pytest.mark.parametrize(
    ("options", "nearest"), [(["--knob", "alpa"], "alpha"), (["--loss", "triplt"], "triplet")]
)
def test_an_unknown_name_is_refused_with_the_nearest(
    study: RunCommand, finished_study: Path, runs: RecordedRuns, options: list[str], nearest: str
) -> None:
    done = study("sweep", "s", "--knob", "alpha", *options)
    assert done.code == 2
    assert nearest in done.err
    assert not runs.requests

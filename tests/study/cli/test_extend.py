"""Tests of `study extend`: a further stage of the search."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.config.plan import load_plan
from tests.support.command_line import RecordedRuns, RunCommand

pytestmark = pytest.mark.split


def test_an_unfinished_study_is_not_extended(
    study: RunCommand, unfinished_study: Path, runs: RecordedRuns
) -> None:
    before = load_plan(unfinished_study)
    done = study("extend", "s", "--trials", "4")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "study resume s" in done.err
    assert not runs.plans
    assert load_plan(unfinished_study) == before


def test_a_stage_is_added_to_the_plan_and_searched(
    study: RunCommand, finished_study: Path, runs: RecordedRuns
) -> None:
    assert study("extend", "s", "--trials", "4").code == 0
    (plan,) = runs.plans
    assert [stage.points for stage in plan.stages] == [3, 4]
    assert load_plan(finished_study) == plan
    assert runs.searches == [True]
    assert not runs.requests[0]

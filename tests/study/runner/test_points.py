"""Requested points: test classes wait for the end of the search."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from study.config.plan import Plan
from study.directory import StudyDirectory
from study.errors import StudyError
from study.runner.points import (
    find_incumbents,
    require_finished_search,
    search_is_finished,
    split_runnable_points,
)
from tests.support.scheduler_simulation import make_plan, open_scheduler, simulate_trials

POINTS = pd.DataFrame(
    {"origin": ["sweep", "confirm", "confirm"], "why": ["a", "claim b", "claim b"]}
)


@pytest.fixture
def plan() -> Plan:
    return make_plan(losses=["triplet"], search={"trials": 4, "repeats": 1})


def test_before_the_end_of_a_search_only_validation_points_run(tmp_path: Path, plan: Plan) -> None:
    study_dir = StudyDirectory(tmp_path)
    open_scheduler(plan, tmp_path)
    assert not search_is_finished(study_dir, plan)
    points, message = split_runnable_points(study_dir, plan, POINTS)
    assert list(points["origin"]) == ["sweep"]
    assert "2 trials on test classes" in message
    assert "(claim b)" in message
    assert f"study resume {study_dir.name}" in message
    with pytest.raises(StudyError, match=f"study resume {study_dir.name}"):
        split_runnable_points(study_dir, plan, POINTS[POINTS["origin"] == "confirm"])
    assert find_incumbents(study_dir, plan) == {}


def test_after_it_all_points_run_and_the_best_are_known(tmp_path: Path, plan: Plan) -> None:
    study_dir = StudyDirectory(tmp_path)
    simulate_trials(open_scheduler(plan, tmp_path))
    require_finished_search(study_dir, plan)
    points, message = split_runnable_points(study_dir, plan, POINTS)
    assert len(points) == 3
    assert message == ""
    assert set(find_incumbents(study_dir, plan)["triplet"]) == set(
        plan.spaces["triplet"].distributions
    )

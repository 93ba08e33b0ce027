"""Running a plan from Python: which existing study it continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from study.config.plan import save_plan
from study.errors import StudyError
from study.runner import run_plan as run_plan_module
from study.runner.run_plan import run_plan
from tests.support.scheduler_simulation import make_plan


def test_a_study_continues_with_the_plan_it_was_stored_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the default of a key has changed since an earlier version stored the plan."""
    runs: list[Any] = []
    monkeypatch.setattr(run_plan_module, "run", lambda study_dir, plan, **_: runs.append(plan))
    stored = make_plan(storage={"checkpoint_every": 1})
    (tmp_path / stored.name).mkdir()
    save_plan(stored, tmp_path / stored.name)
    run_plan(make_plan(), root=tmp_path)
    assert [plan.file for plan in runs] == [stored.file]
    for changes in ({"storage": {"checkpoint_every": 2}}, {"training": {"epochs": 8}}):
        with pytest.raises(StudyError, match="another plan"):
            run_plan(make_plan(**changes), root=tmp_path)
    assert len(runs) == 1

"""Fixtures that run `study ...` in the test process."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from study.cli.main import main
from study.config.plan import Plan, load_plan
from study.directory import StudyDirectory
from tests.support.command_line import (
    CommandResult,
    ImportedStudy,
    RecordedRuns,
    RunCommand,
    save_study_plan,
)
from tests.support.scheduler_simulation import open_scheduler, simulate_trials

_SPACE_FILE = """
objective: map_at_r
epochs: 2
losses:
  mine:
    knobs:
      lr: {low: 1.0e-5, high: 1.0e-1, log: true}
      margin: {low: 0.0, high: 1.0}
    published: {lr: 1.0e-3, margin: 0.2}
"""


@pytest.fixture
def study(
    tmp_path: Path,
    data_cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> RunCommand:
    """Run `study ...` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> CommandResult:
        with pytest.raises(SystemExit) as done:
            main(list(arguments))
        printed = capsys.readouterr()
        code = done.value.code
        return CommandResult(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> RecordedRuns:
    """Record what commands would run, without running it."""
    calls = RecordedRuns()

    def record(study_dir: StudyDirectory, plan: Plan, **options: Any) -> int:
        calls.plans.append(plan)
        calls.requests.append(options.get("requests", ()))
        calls.searches.append(options.get("search", True))
        return 0

    monkeypatch.setattr("study.cli.execute.run_and_print", record)
    return calls


@pytest.fixture
def unfinished_study(study: RunCommand) -> Path:
    """Directory of the study `s`, whose search has not begun."""
    return save_study_plan()


@pytest.fixture
def finished_study(unfinished_study: Path) -> Path:
    """Directory of the study `s`, whose search is finished."""
    scheduler = open_scheduler(load_plan(unfinished_study), unfinished_study)
    simulate_trials(scheduler, lambda job, epoch: 0.1 * epoch + 0.01 * job.number, epochs=2)
    return unfinished_study


@pytest.fixture(scope="session")
def trial_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A CSV file with 24 trials of the loss `mine` and the space file of it."""
    rng = np.random.default_rng(0)
    rows = ["trial,loss,epoch,score,state,seed,lr,margin"]
    for i in range(24):
        lr, margin = 10 ** rng.uniform(-5, -1), rng.uniform()
        for epoch in (1, 2):
            score = epoch * (0.4 - 0.1 * abs(np.log10(lr) + 3) - 0.1 * (margin - 0.5) ** 2)
            rows.append(f"t{i},mine,{epoch},{score:.5f},finished,{i},{lr:.6g},{margin:.4f}")
    folder = tmp_path_factory.mktemp("trials")
    (folder / "trials.csv").write_text("\n".join([*rows, ""]), encoding="utf-8")
    (folder / "space.yaml").write_text(_SPACE_FILE, encoding="utf-8")
    return folder / "trials.csv", folder / "space.yaml"


@pytest.fixture(scope="session")
def imported(
    tmp_path_factory: pytest.TempPathFactory, trial_files: tuple[Path, Path]
) -> ImportedStudy:
    """The study `theirs`, imported from `trial_files`."""
    root, output = tmp_path_factory.mktemp("imported"), io.StringIO()
    csv, space = map(str, trial_files)
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit) as done:
        main(["import", "theirs", "--csv", csv, "--space", space, "--root", str(root)])
    assert not done.value.code
    return ImportedStudy(root, output.getvalue())

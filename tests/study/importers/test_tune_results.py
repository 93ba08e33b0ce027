"""The Ray Tune importer: states, restarted trials and nested metrics."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from optuna.distributions import FloatDistribution

from search_spaces.space import Hyperparameter, SearchSpace
from study.errors import StudyError
from study.importers import read_tune
from study.importers.space_file import SpaceDescription
from tests.support.imported_tables import (
    ImportTrials,
    get_curve,
)

pytestmark = pytest.mark.xdist_group("ray")

LEARNING_RATE = Hyperparameter(FloatDistribution(1e-5, 1e-1, log=True), "η", "")
DESCRIPTION = SpaceDescription({"l": SearchSpace("l", "", {"lr": LEARNING_RATE})}, {})


def _write_trial(folder: Path, name: str, values: list[float], lr: float) -> None:
    place = folder / name
    place.mkdir(parents=True)
    (place / "params.json").write_text(json.dumps({"loss": {"lr": lr}}))
    lines = [
        json.dumps({"acc": v, "training_iteration": i + 1, "time_total_s": i + 1.0})
        for i, v in enumerate(values)
    ]
    (place / "result.json").write_text("\n".join(lines) + "\n")


def test_a_tune_folder_becomes_a_study(tmp_path: Path) -> None:
    _write_trial(tmp_path / "run", "t_0", [0.1, 0.2, 0.3], 1e-3)
    _write_trial(tmp_path / "run", "t_1", [0.1], 1e-2)
    _write_trial(tmp_path / "run", "t_2", [0.1, math.nan], 1e-1)
    _write_trial(tmp_path / "run", "t_3", [0.1, 0.2], 1e-4)
    (tmp_path / "run" / "t_3" / "error.txt").write_text("boom")
    table = read_tune(tmp_path / "run", DESCRIPTION, metric="acc")
    assert list(table.trials["state"]) == ["finished", "stopped", "diverged", "failed"]
    assert list(table.trials["knob.lr"]) == [1e-3, 1e-2, 1e-1, 1e-4]
    with pytest.raises(StudyError, match=r"no result\.json"):
        read_tune(tmp_path / "nothing", DESCRIPTION, metric="acc")
    with pytest.raises(StudyError, match="reports 'accuracy'"):
        read_tune(tmp_path / "run", DESCRIPTION, metric="accuracy")


def test_a_restarted_trial_is_read_once(tmp_path: Path) -> None:
    """Tune continues in the same log after a crash: epochs appear twice; the error file stays."""
    _write_trial(tmp_path / "run", "t_0", [0.1, 0.2, 0.3], 1e-3)
    _write_trial(tmp_path / "run", "t_1", [0.1, 0.2], 1e-2)
    _write_trial(tmp_path / "run", "t_2", [0.1, 0.2], 1e-2)
    log = tmp_path / "run" / "t_1" / "result.json"
    again = [{"acc": v, "training_iteration": i} for i, v in ((2, 0.25), (3, 0.35))]
    cut = '\n{"acc": 0.4, "training_it'  # the machine was switched off
    log.write_text(log.read_text() + "\n".join(map(json.dumps, again)) + cut)
    for name in ("t_1", "t_2"):
        (tmp_path / "run" / name / "error.txt").write_text("boom")
    table = read_tune(tmp_path / "run", DESCRIPTION, metric="acc")
    assert list(table.trials["state"]) == ["finished", "finished", "failed"]
    assert list(table.trials["epochs"]) == [3, 3, 2]
    assert get_curve(table, "l-0001") == {1: 0.1, 2: 0.25, 3: 0.35}


def test_a_metric_may_be_nested(tmp_path: Path) -> None:
    _write_trial(tmp_path / "run", "t_0", [], 1e-3)
    (tmp_path / "run" / "t_0" / "result.json").write_text('{"eval": {"acc": 0.5}}\n')
    assert list(read_tune(tmp_path / "run", DESCRIPTION, metric="eval/acc").trials["score"]) == [
        0.5
    ]


@pytest.mark.slow
def test_a_tune_folder_comes_back_from_its_store(
    tmp_path: Path, import_trials: ImportTrials
) -> None:
    _write_trial(tmp_path / "run", "t_0", [0.1, 0.2, 0.3], 1e-3)
    _write_trial(tmp_path / "run", "t_1", [0.1], 1e-2)
    _write_trial(tmp_path / "run", "t_2", [0.1, math.nan], 1e-1)
    _write_trial(tmp_path / "run", "t_3", [], 1e-4)
    file = tmp_path / "space.yaml"
    file.write_text("losses: {l: {knobs: {lr: {low: 1.0e-5, high: 0.1, log: true}}}}", "utf-8")
    stored = import_trials("--tune", tmp_path / "run", "--space", file, "--metric", "acc")
    assert list(stored.trials["state"]) == ["finished", "stopped", "diverged", "failed"]
    assert list(stored.trials["epochs"]) == [3, 1, 2, 0]
    assert list(stored.trials["score"])[:2] == [0.3, 0.1]
    assert list(stored.trials["seconds"])[:3] == [3.0, 1.0, 2.0]
    file.write_text("losses: {l: {knobs: {lr: {low: 1.0e-5, high: 0.01}}}}", "utf-8")
    with pytest.raises(StudyError, match=r"`lr=0\.1` is outside"):
        import_trials(
            "--tune", tmp_path / "run", "--space", file, "--metric", "acc", "--root", tmp_path
        )


@pytest.mark.ray
def test_a_real_tune_run(tmp_path: Path, shared_ray: None) -> None:
    """The folder is written by Ray Tune itself."""
    from ray import tune

    def train(config: dict[str, float]) -> None:
        for epoch in range(2):
            tune.report({"acc": config["lr"] * (epoch + 1)})

    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([1e-3, 1e-2])},
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="real", verbose=0),
    )
    tuner.fit()
    table = read_tune(tmp_path / "real", DESCRIPTION, metric="acc")
    assert sorted(table.trials["score"]) == pytest.approx([2e-3, 2e-2])
    assert set(table.trials["state"]) == {"finished"}

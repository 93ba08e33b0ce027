"""Real studies in processes of their own, which tests may hurt."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import yaml

from study.home import StudyHome
from study.plan import build_plan, load_plan, save_plan
from study.read_file import parse_study
from study.tracking.reader import read_table
from study.tuning.record import Record, job_of, outcome_of

SMALL: dict[str, Any] = {
    "name": "small",
    "data": {"name": "glyphs", "classes": 200, "samples": 6},
    "losses": ["proxy_anchor", "triplet"],
    "training": {"epochs": 3, "batch_size": 32, "embedding_dim": 16},
    "search": {"trials": 5, "repeats": 2, "stop_early": {"grace_epochs": 1, "reduction": 2}},
}
SEARCHED = ["published", "sobol", "bayes"]


def start(root: Path, **changes: Any) -> StudyHome:
    """The home of a small study on glyphs that can be run; `changes` replace whole sections."""
    plan = build_plan(parse_study({**SMALL, **changes}))
    home = StudyHome(root / plan.name)
    home.directory.mkdir(parents=True)
    save_plan(plan, home.directory)
    return home


def write_features(folder: Path, *, classes: int = 48, images: int = 12, dim: int = 24) -> Path:
    """Features of made-up classes: head-only trials on them take a fraction of a second."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), images)
    features = centres[labels] + 0.9 * rng.normal(size=(len(labels), dim))
    path = folder / "features.npz"
    np.savez(path, features=features.astype(np.float32), labels=labels)
    return path


def write_study(folder: Path, **changes: Any) -> Path:
    """A study file on made-up features; `changes` replace whole sections."""
    content: dict[str, Any] = {
        "name": "s",
        "data": {"name": "arrays", "path": str(write_features(folder))},
        "losses": ["proxy_anchor", "triplet"],
        "training": {"epochs": 4, "batch_size": 32, "embedding_dim": 16},
        "search": {"trials": 8, "repeats": 2, "stop_early": {"grace_epochs": 1, "reduction": 2}},
        **changes,
    }
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def launch(root: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    """`study COMMAND --root ROOT` in a process of its own session."""
    return subprocess.Popen(
        [sys.executable, "-m", "study", *command, "--root", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment},
    )


def ended_trials(home: StudyHome) -> int:
    """How many trials the journal says have ended."""
    journal = home.directory / "optuna.journal"
    return journal.read_text().count('"outcome"') if journal.exists() else 0


def wait_for(home: StudyHome, count: int, process: subprocess.Popen[str]) -> None:
    """Until so many trials have ended."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(process.stdout.read() if process.stdout else "it ended")
        if ended_trials(home) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("the study did not get going")


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The trial processes of a driver."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            # Ray names a process after the actor it holds; Tune wraps StudyTrial in one.
            if any("Trainable" in part or "StudyTrial" in part for part in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def recorded(home: StudyHome) -> pd.DataFrame:
    """What Optuna's journal says: one row per trial."""
    plan = load_plan(home.directory)
    record = Record(home.directory, plan.spaces)
    rows = []
    for loss in plan.losses:
        for trial in record.trials(loss):
            job, outcome = job_of(trial), outcome_of(trial)
            rows.append(
                {
                    "trial": job.trial,
                    "origin": job.origin,
                    "state": outcome.state if outcome else "running",
                    "epochs": outcome.epochs if outcome else 0,
                }
            )
    return pd.DataFrame(rows, columns=["trial", "origin", "state", "epochs"])


def check_consistent(home: StudyHome) -> pd.DataFrame:
    """Optuna's journal and MLflow agree on every trial, each of which is there once."""
    plan = load_plan(home.directory)
    optuna_side = recorded(home)
    table = read_table(home.tracking_uri(plan), plan.name)
    assert optuna_side["trial"].is_unique
    assert table.trials["trial"].is_unique
    both = optuna_side.merge(table.trials, on="trial", suffixes=("_optuna", "_mlflow"))
    assert len(both) == len(optuna_side) == len(table.trials)
    assert (both["state_optuna"] == both["state_mlflow"]).all()
    assert (both["epochs_optuna"] == both["epochs_mlflow"]).all()
    steps = table.curves.groupby("trial")["epoch"].apply(list)
    for trial, epochs in zip(table.trials["trial"], table.trials["epochs"], strict=True):
        assert steps.get(trial, []) == list(range(1, int(epochs) + 1)), trial
    return table.trials


def check_complete(home: StudyHome) -> pd.DataFrame:
    """Every planned point ended, and nothing is open."""
    trials = check_consistent(home)
    plan = load_plan(home.directory)
    searched = trials[trials["origin"].isin(SEARCHED)]
    counts = searched.groupby("loss").size().to_dict()
    assert counts == {loss: plan.points(loss) for loss in plan.losses}
    assert not (trials["state"] == "running").any()
    return trials

"""Real studies in processes of their own, which tests may hurt."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import yaml
from optuna.storages.journal._storage import JournalOperation
from optuna.trial import TrialState

from study.home import StudyHome
from study.plan import load_plan, save_plan
from study.planning import build_plan
from study.read_file import parse_study
from study.tracking.reader import read_table
from study.tuning.record import Record, job_of, outcome_of, starts_of
from tests.study.tuning_simulation import drive, open_ledger
from trainables.checkpoints import checkpoint_path, load_checkpoint, save_checkpoint

MARK = 1000.0
SEARCHED = ("published", "sobol", "bayes")
SEARCH = {"trials": 6, "repeats": 2, "stop_early": {"grace_epochs": 1, "reduction": 2}}

SMALL: dict[str, Any] = {
    "name": "small",
    "data": {"name": "glyphs", "classes": 120, "samples": 4},
    "losses": ["proxy_anchor", "triplet"],
    "training": {"epochs": 3, "batch_size": 32, "embedding_dim": 16},
    "search": {"trials": 5, "repeats": 2, "stop_early": {"grace_epochs": 1, "reduction": 2}},
    "protocol": {"confirm_seeds": 2},
}


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
        "search": SEARCH,
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


def family(process: subprocess.Popen[str] | psutil.Process) -> list[psutil.Process]:
    """A process and everything it started: of a study its trials, Ray and the shipper."""
    with contextlib.suppress(psutil.Error):
        head = psutil.Process(process.pid)
        return [head, *head.children(recursive=True)]
    return []


def cut_power(process: subprocess.Popen[str] | psutil.Process) -> None:
    """Kill a process and everything it started, all at once."""
    for victim in family(process):
        with contextlib.suppress(psutil.Error):
            victim.kill()
    process.wait(timeout=30)


def listener(port: int) -> psutil.Process:
    """The oldest process that listens on a port of this machine."""
    found = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    return min((psutil.Process(pid) for pid in found if pid), key=lambda p: p.create_time())


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
                    "seconds": outcome.seconds if outcome else 0.0,
                }
            )
    return pd.DataFrame(rows, columns=["trial", "origin", "state", "epochs", "seconds"])


def starts(home: StudyHome) -> dict[str, int]:
    """How often each open trial was started since its last epoch, as the journal counts them."""
    plan = load_plan(home.directory)
    record = Record(home.directory, plan.spaces)
    trials = [trial for loss in plan.losses for trial in record.trials(loss)]
    return {job_of(t).trial: starts_of(t) for t in trials if outcome_of(t) is None}


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
    wrong = both[both["epochs_optuna"] != both["epochs_mlflow"]]
    assert wrong.empty, wrong
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


def check_resumed(
    home: StudyHome,
    before: pd.DataFrame,
    marked: Sequence[str] = (),
    unsaved: Collection[str] = (),
) -> None:
    """All that a resume promises.

    What had ended is there once and as it ended; what was open went on, from its checkpoint where
    that was marked; the points are those of a study that nobody interrupted, as far as they do not
    depend on scores; and checkpoints on disk are the best of each loss.

    Args:
        home: The study, run to its end.
        before: `recorded` at the interruption.
        marked: Trials whose checkpoints `mark_checkpoints` marked.
        unsaved: Trials that had ended without a checkpoint, since nothing could be written.
    """
    trials, after = check_complete(home), recorded(home).set_index("trial")
    done = before[before["state"] != "running"].set_index("trial")
    assert set(before["trial"]) <= set(after.index)
    assert after.loc[done.index].equals(done)
    assert continued(home) == sorted(marked), "whoever is missing began again"
    check_suggestions(home)
    plan = load_plan(home.directory)
    search = trials[trials["origin"].isin(SEARCHED) & (trials["state"] == "finished")]
    kept = {path.name.removesuffix(".pt") for path in Path(home.checkpoint_place(plan)).iterdir()}
    for loss, ended in search.groupby("loss"):
        top = ended.nlargest(plan.file.storage.keep_best, "score")
        mine = ended[ended["trial"].isin(kept)]
        missing = top["trial"].isin(unsaved) & ~top["trial"].isin(kept)
        assert sorted(mine["score"]) == sorted(top["score"][~missing]), (loss, kept, top, unsaved)
    assert kept <= set(search["trial"])


def check_suggestions(home: StudyHome) -> None:
    """The points that an uninterrupted study asks for, each part in its order, whatever was killed.

    Which part comes next depends on how many trials had ended, so on the clock.
    """
    plan = load_plan(home.directory)
    free = {"published", "sobol"}
    if plan.file.search.sampler == "random":
        free.add("bayes")  # others also depend on what was known when they were asked
    record = Record(home.directory, plan.spaces)
    with tempfile.TemporaryDirectory() as folder:
        ledger = open_ledger(plan, Path(folder))
        whole = drive(ledger, epochs=plan.epochs(plan.losses[0]), slots=1)
    for loss in plan.losses:
        asked = [job_of(trial) for trial in record.searched(loss)]
        assert len(asked) == plan.points(loss)
        for origin in free:
            points = [job.values for job in asked if job.origin == origin]
            assert points == [j.values for j in whole if (j.loss, j.origin) == (loss, origin)]


def check_machines(home: StudyHome) -> None:
    """Every trial's life by the journal: created, its epochs one by one, ended once, then quiet."""
    lives: dict[int, list[tuple[JournalOperation, Any]]] = {}
    for line in (home.directory / "optuna.journal").read_text().splitlines():
        log = json.loads(line)
        operation = JournalOperation(log["op_code"])
        if operation is JournalOperation.CREATE_TRIAL:
            assert log["state"] == TrialState.RUNNING
            lives[len(lives)] = []
        elif operation is JournalOperation.SET_TRIAL_INTERMEDIATE_VALUE:
            lives[log["trial_id"]].append((operation, log["step"]))
        elif operation is JournalOperation.SET_TRIAL_USER_ATTR:
            lives[log["trial_id"]].append((operation, log["user_attr"]))
        elif operation is JournalOperation.SET_TRIAL_STATE_VALUES:
            lives[log["trial_id"]].append((operation, TrialState(log["state"])))
    assert lives
    for life in lives.values():
        steps = [x for op, x in life if op is JournalOperation.SET_TRIAL_INTERMEDIATE_VALUE]
        assert steps == list(range(1, len(steps) + 1))
        ends = [op for op, _ in life].count(JournalOperation.SET_TRIAL_STATE_VALUES)
        assert ends == 1
        assert life[-1][0] is JournalOperation.SET_TRIAL_STATE_VALUES
        outcomes = [x["outcome"] for op, x in life[:-1] if isinstance(x, dict) and "outcome" in x]
        assert outcomes
        assert all(outcome["epochs"] == len(steps) for outcome in outcomes)


def mark_checkpoints(home: StudyHome, *, least: int = 1) -> list[str]:
    """Make the open trials' checkpoints tell: whoever goes on from one has trained for `MARK` s.

    Only while nobody writes them. Gives the trials; at least so many must have one.
    """
    open_trials = recorded(home).query("state == 'running'")["trial"]
    marked = []
    for trial in open_trials:
        payload = load_checkpoint(home.checkpoints, trial)
        if payload is not None:
            assert payload["epoch"] >= 1
            payload["last_result"]["seconds"] += MARK
            save_checkpoint(home.checkpoints, trial, payload)
            marked.append(trial)
    assert len(marked) >= least
    return marked


def continued(home: StudyHome) -> list[str]:
    """The trials that went on from a marked checkpoint."""
    return sorted(recorded(home).query(f"seconds > {MARK}")["trial"])


def freeze_workers(process: subprocess.Popen[str], home: StudyHome) -> list[psutil.Process]:
    """Stop a study's trials at a moment when one that is open has a checkpoint to go on from."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None
        workers = workers_of(process)
        for worker in workers:
            worker.suspend()
        time.sleep(0.5)  # reports on their way arrive
        open_trials = recorded(home).query("state == 'running'")["trial"]
        if any(checkpoint_path(home.checkpoints, trial).exists() for trial in open_trials):
            return workers
        for worker in workers:
            worker.resume()
        time.sleep(0.05)
    raise AssertionError("no trial got that far")

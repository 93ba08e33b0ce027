"""Real studies in separate processes that tests may kill, and checks of their results."""

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

from study.config.loader import parse_config
from study.config.plan import load_plan, save_plan
from study.config.planner import build_plan
from study.directory import StudyDirectory
from study.search.journal import (
    StudyJournal,
    job_from_trial,
    outcome_from_trial,
    start_count_from_trial,
)
from study.tracking.reader import read_table
from tests.support.scheduler_simulation import open_scheduler, simulate_trials
from trainables.training.checkpoints import checkpoint_path, load_checkpoint, save_checkpoint

MARKER_SECONDS = 1000.0
"""Training time that `mark_checkpoints` adds to a checkpoint."""
SEARCH_ORIGINS = ("published", "sobol", "bayes")
SEARCH_SECTION = {"trials": 6, "repeats": 2, "stop_early": {"grace_epochs": 1, "reduction": 2}}

SMALL_STUDY: dict[str, Any] = {
    "name": "small",
    "data": {"name": "glyphs", "classes": 120, "samples": 4},
    "losses": ["proxy_anchor", "triplet"],
    "training": {"epochs": 3, "batch_size": 32, "embedding_dim": 16},
    "search": {"trials": 5, "repeats": 2, "stop_early": {"grace_epochs": 1, "reduction": 2}},
    "protocol": {"confirm_seeds": 2},
}


def create_study(root: Path, **changes: Any) -> StudyDirectory:
    """Create the directory of a small study on glyphs; `changes` replace whole sections."""
    plan = build_plan(parse_config({**SMALL_STUDY, **changes}))
    study_dir = StudyDirectory(root / plan.name)
    study_dir.path.mkdir(parents=True)
    save_plan(plan, study_dir.path)
    return study_dir


def write_features(folder: Path, *, classes: int = 48, images: int = 12, dim: int = 24) -> Path:
    """Write random features of random classes, on which a trial takes less than a second."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), images)
    features = centres[labels] + 0.9 * rng.normal(size=(len(labels), dim))
    path = folder / "features.npz"
    np.savez(path, features=features.astype(np.float32), labels=labels)
    return path


def write_study(folder: Path, **changes: Any) -> Path:
    """Write a study file on random features; `changes` replace whole sections."""
    content: dict[str, Any] = {
        "name": "s",
        "data": {"name": "arrays", "path": str(write_features(folder))},
        "losses": ["proxy_anchor", "triplet"],
        "training": {"epochs": 4, "batch_size": 32, "embedding_dim": 16},
        "search": SEARCH_SECTION,
        **changes,
    }
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def launch_command(root: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    """Start `study COMMAND --root ROOT` in a process with its own session."""
    return subprocess.Popen(
        [sys.executable, "-m", "study", *command, "--root", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment},
    )


def list_process_tree(process: subprocess.Popen[str] | psutil.Process) -> list[psutil.Process]:
    """Return a process and its descendants: trials, Ray and the shipper for a study."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    return []


def kill_process_tree(process: subprocess.Popen[str] | psutil.Process) -> None:
    """Kill a process and its descendants at once, like a power failure."""
    for member in list_process_tree(process):
        with contextlib.suppress(psutil.Error):
            member.kill()
    process.wait(timeout=30)


def find_listening_process(port: int) -> psutil.Process:
    """Return the oldest process that listens on a port of this machine."""
    found = {
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    return min((psutil.Process(pid) for pid in found if pid), key=lambda p: p.create_time())


def count_ended_trials(study_dir: StudyDirectory) -> int:
    """Return the number of ended trials in the journal."""
    journal = study_dir.path / "optuna.journal"
    return journal.read_text().count('"outcome"') if journal.exists() else 0


def wait_for_ended_trials(
    study_dir: StudyDirectory, count: int, process: subprocess.Popen[str]
) -> None:
    """Wait until `count` trials have ended; fail if the process ends before."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(process.stdout.read() if process.stdout else "the process ended")
        if count_ended_trials(study_dir) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"fewer than {count} trials ended in 240 s")


def find_trial_processes(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the trial processes of a driver."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            # Ray names a process after the actor it holds; Tune wraps StudyTrial in one.
            if any("Trainable" in part or "StudyTrial" in part for part in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def read_journal_rows(study_dir: StudyDirectory) -> pd.DataFrame:
    """Return the trials of Optuna's journal, one row per trial."""
    plan = load_plan(study_dir.path)
    journal = StudyJournal(study_dir.path, plan.spaces)
    rows = []
    for loss in plan.losses:
        for trial in journal.get_trials(loss):
            job, outcome = job_from_trial(trial), outcome_from_trial(trial)
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


def read_start_counts(study_dir: StudyDirectory) -> dict[str, int]:
    """Return how often each open trial was started since its last epoch, from the journal."""
    plan = load_plan(study_dir.path)
    journal = StudyJournal(study_dir.path, plan.spaces)
    trials = [trial for loss in plan.losses for trial in journal.get_trials(loss)]
    return {
        job_from_trial(t).trial: start_count_from_trial(t)
        for t in trials
        if outcome_from_trial(t) is None
    }


def check_consistent(study_dir: StudyDirectory) -> pd.DataFrame:
    """Check that Optuna's journal and MLflow agree and contain every trial once."""
    plan = load_plan(study_dir.path)
    optuna_side = read_journal_rows(study_dir)
    table = read_table(study_dir.tracking_uri(plan), plan.name)
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


def check_complete(study_dir: StudyDirectory) -> pd.DataFrame:
    """Check that the study is consistent and every planned point has ended."""
    trials = check_consistent(study_dir)
    plan = load_plan(study_dir.path)
    searched = trials[trials["origin"].isin(SEARCH_ORIGINS)]
    counts = searched.groupby("loss").size().to_dict()
    assert counts == dict.fromkeys(plan.losses, plan.n_points)
    assert not (trials["state"] == "running").any()
    return trials


def check_resumed(
    study_dir: StudyDirectory,
    before: pd.DataFrame,
    marked: Sequence[str] = (),
    unsaved: Collection[str] = (),
) -> None:
    """Check the guarantees of a resume.

    Trials that had ended are unchanged. Open trials have ended, and those with a marked checkpoint
    continued from it. Points that do not depend on scores are those of an uninterrupted study.
    Only the checkpoints of the best trials of each loss are left.

    Args:
        study_dir: Directory of the finished study.
        before: Result of `read_journal_rows` at the interruption.
        marked: Trials whose checkpoints `mark_checkpoints` marked.
        unsaved: Trials that ended without a checkpoint because the disk was full.
    """
    trials, after = check_complete(study_dir), read_journal_rows(study_dir).set_index("trial")
    done = before[before["state"] != "running"].set_index("trial")
    assert set(before["trial"]) <= set(after.index)
    assert after.loc[done.index].equals(done)
    assert list_continued_trials(study_dir) == sorted(marked), "missing trials started again"
    check_suggestions(study_dir)
    plan = load_plan(study_dir.path)
    search = trials[trials["origin"].isin(SEARCH_ORIGINS) & (trials["state"] == "finished")]
    kept = {
        path.name.removesuffix(".pt")
        for path in Path(study_dir.checkpoint_location(plan)).iterdir()
    }
    for loss, ended in search.groupby("loss"):
        top = ended.nlargest(plan.file.storage.keep_best, "score")
        saved = ended[ended["trial"].isin(kept)]
        missing = top["trial"].isin(unsaved) & ~top["trial"].isin(kept)
        assert sorted(saved["score"]) == sorted(top["score"][~missing]), (loss, kept, top, unsaved)
    assert kept <= set(search["trial"])


def check_suggestions(study_dir: StudyDirectory) -> None:
    """Check that the points of each origin are those of an uninterrupted study, in its order.

    The order between origins depends on the number of ended trials, and so on the time.
    """
    plan = load_plan(study_dir.path)
    origins = {"published", "sobol"}
    if plan.file.search.sampler == "random":
        origins.add("bayes")  # other samplers depend on the trials that had ended
    journal = StudyJournal(study_dir.path, plan.spaces)
    with tempfile.TemporaryDirectory() as folder:
        scheduler = open_scheduler(plan, Path(folder))
        expected = simulate_trials(scheduler, epochs=plan.epochs_per_trial(plan.losses[0]), slots=1)
    for loss in plan.losses:
        requested = [job_from_trial(trial) for trial in journal.get_search_trials(loss)]
        assert len(requested) == plan.n_points
        for origin in origins:
            points = [job.params for job in requested if job.origin == origin]
            assert points == [j.params for j in expected if (j.loss, j.origin) == (loss, origin)]


def check_trial_histories(study_dir: StudyDirectory) -> None:
    """Check the journal's entries of every trial: creation, consecutive epochs, then one end."""
    histories: dict[int, list[tuple[JournalOperation, Any]]] = {}
    for line in (study_dir.path / "optuna.journal").read_text().splitlines():
        log = json.loads(line)
        operation = JournalOperation(log["op_code"])
        if operation is JournalOperation.CREATE_TRIAL:
            assert log["state"] == TrialState.RUNNING
            histories[len(histories)] = []
        elif operation is JournalOperation.SET_TRIAL_INTERMEDIATE_VALUE:
            histories[log["trial_id"]].append((operation, log["step"]))
        elif operation is JournalOperation.SET_TRIAL_USER_ATTR:
            histories[log["trial_id"]].append((operation, log["user_attr"]))
        elif operation is JournalOperation.SET_TRIAL_STATE_VALUES:
            histories[log["trial_id"]].append((operation, TrialState(log["state"])))
    assert histories
    for history in histories.values():
        steps = [x for op, x in history if op is JournalOperation.SET_TRIAL_INTERMEDIATE_VALUE]
        assert steps == list(range(1, len(steps) + 1))
        ends = [op for op, _ in history].count(JournalOperation.SET_TRIAL_STATE_VALUES)
        assert ends == 1
        assert history[-1][0] is JournalOperation.SET_TRIAL_STATE_VALUES
        outcomes = [
            x["outcome"] for op, x in history[:-1] if isinstance(x, dict) and "outcome" in x
        ]
        assert outcomes
        assert all(outcome["epochs"] == len(steps) for outcome in outcomes)


def mark_checkpoints(study_dir: StudyDirectory, *, least: int = 1) -> list[str]:
    """Add `MARKER_SECONDS` to the training time in the checkpoints of open trials.

    The time of trials that continue from these checkpoints then shows it. No process may write
    checkpoints meanwhile. Return the trials, of which there must be at least `least`.
    """
    open_trials = read_journal_rows(study_dir).query("state == 'running'")["trial"]
    marked = []
    for trial in open_trials:
        payload = load_checkpoint(study_dir.checkpoints_dir, trial)
        if payload is not None:
            assert payload["epoch"] >= 1
            payload["last_result"]["seconds"] += MARKER_SECONDS
            save_checkpoint(study_dir.checkpoints_dir, trial, payload)
            marked.append(trial)
    assert len(marked) >= least
    return marked


def list_continued_trials(study_dir: StudyDirectory) -> list[str]:
    """Return the trials that continued from a marked checkpoint."""
    return sorted(read_journal_rows(study_dir).query(f"seconds > {MARKER_SECONDS}")["trial"])


def suspend_workers(
    process: subprocess.Popen[str], study_dir: StudyDirectory
) -> list[psutil.Process]:
    """Suspend the trial processes when an open trial has a checkpoint, and return them."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None
        workers = find_trial_processes(process)
        for worker in workers:
            worker.suspend()
        time.sleep(0.5)  # the driver processes reports that were already sent
        open_trials = read_journal_rows(study_dir).query("state == 'running'")["trial"]
        if any(checkpoint_path(study_dir.checkpoints_dir, trial).exists() for trial in open_trials):
            return workers
        for worker in workers:
            worker.resume()
        time.sleep(0.05)
    raise AssertionError("no open trial wrote a checkpoint in 120 s")

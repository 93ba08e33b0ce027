"""Simulation of a study without Ray: trials are functions of the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from search_spaces.space import ParamValue
from study.config.loader import parse_config
from study.config.plan import Plan
from study.config.planner import build_plan
from study.search.job_scheduler import JobScheduler
from study.search.journal import StudyJournal
from study.trials.job import Job, TrialOutcome

Curve = Callable[[Job, int], float]
_PARTS = ("train", "validation", "test")


def make_plan(**changes: Any) -> Plan:
    """Return the plan of a small study; `changes` replace or extend sections of its file."""
    content: dict[str, Any] = {
        "name": "s",
        "data": "glyphs",
        "losses": ["proxy_anchor", "triplet"],
        "training": {"epochs": 9},
        "search": {"trials": 10, "repeats": 2},
    }
    for key, value in changes.items():
        known = content.get(key)
        content[key] = {**known, **value} if isinstance(known, Mapping) else value
    return build_plan(parse_config(content))


def make_data_description() -> dict[str, Any]:
    """Return a data description with the keys of `describe_data` and arbitrary values."""
    parts = [f"{part}_{kind}" for part in _PARTS for kind in ("classes", "items")]
    known = {"name": "glyphs", "kind": "images", "fingerprint": "x", "notes": []}
    return {**known, **dict.fromkeys(parts, 1)}


def open_scheduler(plan: Plan, directory: Path, **options: Any) -> JobScheduler:
    """Return a scheduler whose journal in the directory is open for writing."""
    return JobScheduler(plan, StudyJournal(directory, plan.spaces, writable=True), **options)


def load_optuna_study(directory: Path, name: str) -> optuna.Study:
    """Load an Optuna study from the journal with Optuna's own backend."""
    storage = JournalStorage(JournalFileBackend(str(directory / "optuna.journal")))
    return optuna.load_study(study_name=name, storage=storage)


def find_incumbents(plan: Plan, directory: Path) -> dict[str, dict[str, ParamValue]]:
    """Return the best point of each loss that has one."""
    scheduler = open_scheduler(plan, directory)
    jobs = {loss: scheduler.get_incumbent(loss) for loss in plan.losses}
    return {loss: dict(job.params) for loss, job in jobs.items() if job}


def closeness_score(job: Job, epoch: int) -> float:
    """Return a score that is best at delta = 0.3 (or margin = 0.3) and saturates over epochs."""
    params: Mapping[str, ParamValue] = job.params
    position = float(params.get("delta", params.get("margin", 0.0)))
    return (1.0 - abs(position - 0.3)) * (1.0 - math.exp(-epoch / 3))


def simulate_trials(
    scheduler: JobScheduler,
    curve: Curve = closeness_score,
    *,
    slots: int = 2,
    epochs: int = 9,
    crash_after: int | None = None,
) -> list[Job]:
    """Run trials until the scheduler is finished and return the jobs in order.

    Args:
        scheduler: Scheduler of the study.
        curve: Score of a job after an epoch; NaN makes it diverge.
        slots: Number of jobs that run at once.
        epochs: Length of a full trial.
        crash_after: Return after this many reports, as if the process had been killed.
    """
    running: dict[str, list[Any]] = {}
    jobs: list[Job] = []
    reports = 0
    while True:
        while len(running) < slots and (job := scheduler.next_job()) is not None:
            jobs.append(job)
            running[job.trial] = [job, 0]
        if not running:
            assert scheduler.is_finished()
            return jobs
        for trial, entry in list(running.items()):
            job, entry[1] = entry[0], entry[1] + 1
            score = curve(job, entry[1])
            if math.isnan(score):
                scheduler.end_trial(
                    trial, TrialOutcome("diverged", entry[1] - 1, math.nan, error="NaN")
                )
                del running[trial]
                continue
            stop = scheduler.report_score(trial, entry[1], score)
            reports += 1
            if stop or entry[1] == epochs:
                state = "finished" if entry[1] == epochs else "stopped"
                scheduler.end_trial(trial, TrialOutcome(state, entry[1], score))  # type: ignore[arg-type]
                del running[trial]
            if crash_after is not None and reports >= crash_after:
                return jobs

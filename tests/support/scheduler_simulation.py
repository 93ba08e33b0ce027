"""Drives a ledger without Ray: trials are functions, time is a counter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from search_spaces.space import Value
from study.jobs import Job, Outcome
from study.plan import Plan
from study.planning import build_plan
from study.read_file import parse_study
from study.tuning.ledger import Ledger
from study.tuning.record import Record

Curve = Callable[[Job, int], float]
_PARTS = ("train", "validation", "test")


def make_plan(**changes: Any) -> Plan:
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
    return build_plan(parse_study(content))


def made_up_data() -> dict[str, Any]:
    """What `describe_data` says of some data."""
    parts = [f"{part}_{kind}" for part in _PARTS for kind in ("classes", "items")]
    known = {"name": "glyphs", "kind": "images", "fingerprint": "x", "notes": []}
    return {**known, **dict.fromkeys(parts, 1)}


def open_ledger(plan: Plan, directory: Path, **options: Any) -> Ledger:
    return Ledger(plan, Record(directory, plan.spaces, writable=True), **options)


def closeness(job: Job, epoch: int) -> float:
    """Better towards delta = 0.3 (or margin = 0.3), saturating over epochs."""
    values: Mapping[str, Value] = job.values
    at = float(values.get("delta", values.get("margin", 0.0)))
    return (1.0 - abs(at - 0.3)) * (1.0 - math.exp(-epoch / 3))


def drive(
    ledger: Ledger,
    curve: Curve = closeness,
    *,
    slots: int = 2,
    epochs: int = 9,
    crash_after: int | None = None,
) -> list[Job]:
    """Run until the ledger is finished (or `crash_after` reports); gives the jobs in order."""
    live: dict[str, list[Any]] = {}
    jobs: list[Job] = []
    reports = 0
    while True:
        while len(live) < slots and (job := ledger.next_job()) is not None:
            jobs.append(job)
            live[job.trial] = [job, 0]
        if not live:
            assert ledger.is_finished()
            return jobs
        for trial, entry in list(live.items()):
            job, entry[1] = entry[0], entry[1] + 1
            score = curve(job, entry[1])
            if math.isnan(score):
                ledger.end(trial, Outcome("diverged", entry[1] - 1, math.nan, error="NaN"))
                del live[trial]
                continue
            stop = ledger.report(trial, entry[1], score)
            reports += 1
            if stop or entry[1] == epochs:
                state = "finished" if entry[1] == epochs else "stopped"
                ledger.end(trial, Outcome(state, entry[1], score))  # type: ignore[arg-type]
                del live[trial]
            if crash_after is not None and reports >= crash_after:
                return jobs

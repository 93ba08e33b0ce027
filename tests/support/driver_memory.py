"""Feeds a study's driver with many epochs and says what it holds."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

from study.display import _Lines
from study.home import StudyHome
from study.tracking.writer import Tracker
from study.tuning.describing import open_tracking
from study.tuning.desk import Desk
from study.tuning.telling import TrackingListener
from tests.study.tuning_simulation import closeness, made_up_data, make_plan, open_ledger

TRIALS = 5


def held_after(folder: Path, *, sampler: str, epochs: int) -> int:
    """Bytes that desk, ledger, record, tracker and display hold in the middle of the last trial."""
    plan = make_plan(
        losses=["triplet"],
        training={"epochs": epochs},
        search={"trials": TRIALS, "sampler": sampler, "repeats": 1, "sobol_share": 0.5},
    )
    home = StudyHome(folder)
    home.directory.mkdir()
    tracker = Tracker(
        "http://127.0.0.1:9",  # nobody answers: records stay in the spool
        spool=home.spool,
        artifact_root=None,
        experiment=plan.name,
    )
    try:
        open_tracking(tracker, plan, made_up_data(), {})
        desk = Desk(
            plan,
            open_ledger(plan, folder),
            TrackingListener(tracker, plan, {}),
            cache_dir=folder,
            checkpoint_dir=str(home.checkpoints),
            slots=lambda: 1,
        )
        display = _Lines("s")
        tracemalloc.start()
        for number in range(TRIALS):
            spec = desk.start()
            assert spec is not None
            job = desk.ledger.running[spec["trial"]]
            last = number == TRIALS - 1
            for epoch in range(1, epochs if last else epochs + 1):
                score = closeness(job, epoch)
                state = "finished" if epoch == epochs else "running"
                metrics = {"map_at_r": score, "loss": 1.0 / epoch, "seconds": 0.1}
                result = {"state": state, "epoch": epoch, "score": score, "metrics": metrics}
                display.show(desk.progress(), desk.running())
                if desk.result(spec["trial"], result):
                    break
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        tracker.close(timeout=0.0)


def bytes_per_epoch(folder: Path, *, sampler: str, epochs: int) -> float:
    """What each of so many more epochs per trial leaves behind in the driver's memory."""
    held_after(folder / "warm", sampler=sampler, epochs=10)  # imports and caches
    short = held_after(folder / "short", sampler=sampler, epochs=10)
    long = held_after(folder / "long", sampler=sampler, epochs=10 + epochs)
    return (long - short) / (TRIALS * epochs)

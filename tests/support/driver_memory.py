"""Measurement of the memory that a driver keeps per epoch, without Ray."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

from study.cli.display import _LineDisplay
from study.directory import StudyDirectory
from study.runner.study_record import start_tracking
from study.runner.tracking_listener import TrackingListener
from study.tracking.tracker import Tracker
from tests.support.controllers import open_controller
from tests.support.scheduler_simulation import closeness_score, make_data_description, make_plan

N_TRIALS = 5


def measure_driver_bytes(folder: Path, *, sampler: str, epochs: int) -> int:
    """Return the bytes that controller, scheduler, journal, tracker and display hold.

    They are measured in the middle of the last trial.
    """
    plan = make_plan(
        losses=["triplet"],
        training={"epochs": epochs},
        search={"trials": N_TRIALS, "sampler": sampler, "repeats": 1, "sobol_share": 0.5},
    )
    study_dir = StudyDirectory(folder)
    study_dir.path.mkdir()
    tracker = Tracker(
        "http://127.0.0.1:9",  # no server, so entries stay in the spool
        spool=study_dir.spool_dir,
        artifact_root=None,
        experiment=plan.name,
    )
    try:
        start_tracking(tracker, plan, make_data_description(), {})
        controller = open_controller(plan, folder, TrackingListener(tracker, plan, {}))
        display = _LineDisplay("s")
        tracemalloc.start()
        for number in range(N_TRIALS):
            spec = controller.start_next_trial()
            assert spec is not None
            job = controller.scheduler.running_jobs[spec["trial"]]
            is_last = number == N_TRIALS - 1
            for epoch in range(1, epochs if is_last else epochs + 1):
                score = closeness_score(job, epoch)
                state = "finished" if epoch == epochs else "running"
                metrics = {"map_at_r": score, "loss": 1.0 / epoch, "seconds": 0.1}
                result = {"state": state, "epoch": epoch, "score": score, "metrics": metrics}
                display.show_progress(controller.get_progress(), controller.get_running_jobs())
                if controller.handle_result(spec["trial"], result):
                    break
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        tracker.close(timeout=0.0)


def measure_bytes_per_epoch(folder: Path, *, sampler: str, epochs: int) -> float:
    """Return the bytes that stay in the driver's memory for each additional epoch of a trial."""
    measure_driver_bytes(folder / "warm", sampler=sampler, epochs=10)  # imports and caches
    short = measure_driver_bytes(folder / "short", sampler=sampler, epochs=10)
    long = measure_driver_bytes(folder / "long", sampler=sampler, epochs=10 + epochs)
    return (long - short) / (N_TRIALS * epochs)

"""Benchmark of the overhead of a trial against Tune with OptunaSearch and MLflowLoggerCallback.

python -m tests.benchmarks.bench_platform [--quick]
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from study.runner.display import NullDisplay
from tests.benchmarks.recording import write_result

EPOCHS = 3


class ClockDisplay(NullDisplay):
    """Display that stores the times at which progress is shown."""

    def __init__(self, times: list[float]) -> None:
        self._times = times

    def show_progress(self, *_: object) -> None:
        self._times.append(time.perf_counter())


def run_own_study(trials: int, *, pause_ms: int, slots: int) -> dict[str, float]:
    """Return the wall-clock time of a study of trivial trials, without the start of Ray."""
    from study.config.loader import parse_config
    from study.config.plan import load_plan, save_plan
    from study.config.planner import build_plan
    from study.directory import StudyDirectory
    from study.runner.run import RunOptions, run
    from tests.benchmarks.trivial import TrivialTrial

    plan = build_plan(
        parse_config(
            {
                "name": "bench",
                "data": {"name": "glyphs", "classes": 200, "samples": 4, "seed": pause_ms},
                "losses": ["triplet"],
                "training": {"epochs": EPOCHS, "batch_size": 16},
                "search": {"trials": trials, "repeats": 1, "stop_early": False},
            }
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        study_dir = StudyDirectory(Path(folder) / "bench")
        study_dir.path.mkdir()
        save_plan(plan, study_dir.path)
        times: list[float] = []
        started = time.perf_counter()
        run(
            study_dir,
            load_plan(study_dir.path),
            display=ClockDisplay(times),
            options=RunOptions(trainable=TrivialTrial, report=False),
        )
        return {"seconds": time.perf_counter() - started, "loop_seconds": times[-1] - times[0]}


def measure_utilisation(trials: int, *, slots: int, epoch_seconds: float) -> dict[str, float]:
    """Return the share of time in which slots run trials of `EPOCHS * epoch_seconds` seconds.

    The time is counted from the start of the first trial to the end of the last, without the start
    of Ray.
    """
    row = run_own_study(trials, pause_ms=int(1000 * epoch_seconds), slots=slots)
    work = trials * EPOCHS * epoch_seconds
    return {
        **row,
        "trial_seconds": EPOCHS * epoch_seconds,
        "busy": work / slots / row["loop_seconds"],
    }


def run_stock_study(
    trials: int, *, pause_ms: int, slots: int, reuse: bool, mlflow: bool
) -> dict[str, float]:
    """Return the wall-clock time of the same trials with OptunaSearch and MLflowLoggerCallback."""
    import optuna
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.search.optuna import OptunaSearch

    from tests.benchmarks.stock_trivial import StockTrivial

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        callbacks: list[Any] = []
        if mlflow:
            callbacks.append(
                MLflowLoggerCallback(
                    tracking_uri=f"sqlite:///{folder}/mlflow.db", experiment_name="bench"
                )
            )
        tuner = tune.Tuner(
            tune.with_resources(StockTrivial, {"CPU": 1}),
            param_space={
                "margin": tune.uniform(0.0, 1.0),
                "backbone_lr": tune.loguniform(1e-5, 1e-2),
                "head_lr": tune.loguniform(1e-5, 1e-1),
                "pause": pause_ms / 1000,
                "epochs": EPOCHS,
            },
            tune_config=tune.TuneConfig(
                metric="map_at_r",
                mode="max",
                search_alg=OptunaSearch(seed=0),
                num_samples=trials,
                max_concurrent_trials=slots,
                reuse_actors=reuse,
            ),
            run_config=tune.RunConfig(
                name="bench", storage_path=folder, callbacks=callbacks, verbose=0
            ),
        )
        started = time.perf_counter()
        tuner.fit()
        return {"seconds": time.perf_counter() - started}


def main() -> None:
    """Run the benchmark, print the rows and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    trials, slots = (12, 2) if quick else (100, 2)
    os.environ.setdefault("DML_STUDY_CACHE", tempfile.mkdtemp())
    warnings.simplefilter("ignore")
    import ray

    ray.init(
        address="local",
        num_cpus=slots,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    rows: dict[str, dict[str, float]] = {}
    run_own_study(4, pause_ms=0, slots=slots)  # imports modules, fills caches and starts workers
    rows["ours"] = run_own_study(trials, pause_ms=0, slots=slots)
    rows["stock"] = run_stock_study(trials, pause_ms=0, slots=slots, reuse=False, mlflow=True)
    rows["stock, reuse_actors"] = run_stock_study(
        trials, pause_ms=0, slots=slots, reuse=True, mlflow=True
    )
    rows["stock, reuse_actors, no MLflow"] = run_stock_study(
        trials, pause_ms=0, slots=slots, reuse=True, mlflow=False
    )
    for name, row in rows.items():
        row["seconds_per_trial"] = row["seconds"] / trials
        row["ratio_to_ours"] = row["seconds"] / rows["ours"]["seconds"]
        print(f"{name:<32} {row['seconds_per_trial']:8.3f} s/trial  {row['ratio_to_ours']:6.1f}x")
    busy = measure_utilisation(
        4 if quick else 12, slots=slots, epoch_seconds=1.0 if quick else 10.0
    )
    print(f"slots busy with {busy['trial_seconds']:.0f} s trials: {busy['busy']:.1%}")
    content = {"trials": trials, "slots": slots, "rows": rows, "utilisation": busy}
    write_result("platform", content, quick=quick)
    ray.shutdown()


if __name__ == "__main__":
    main()

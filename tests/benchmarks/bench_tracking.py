"""Benchmark of the tracker's cost per epoch and of reading a store with 10,000 trials.

python -m tests.benchmarks.bench_tracking [--quick]

The tracker and Ray's MLflowLoggerCallback report the same metrics to the same local `mlflow server`
in turns, so that neither is measured during the other's requests. The time that the shipper needs
per report in its own process is measured too. A large store is read as a database and through a
server; both must return the same table.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from search_spaces import get_space
from study.directory import default_artifact_root, default_tracking_uri
from study.tracking.records import TrialRecord
from study.tracking.tracker import Tracker
from study.trials.job import Job
from tests.benchmarks.recording import write_result

EPOCHS = 10
REPORTS = 200


def make_metrics(epoch: int) -> dict[str, float]:
    """Return a dozen metrics like those of a trial."""
    names = ["map_at_r", "r_precision", "recall_at_1", "recall_at_2", "recall_at_4", "loss"]
    names += ["seconds", "images_per_second", "backbone_lr", "head_lr", "proxy_lr", "memory_gib"]
    return {name: 0.5 + epoch / 100 + index / 1000 for index, name in enumerate(names)}


def make_record(number: int) -> TrialRecord:
    """Return a trial at the published point."""
    params = dict(get_space("circle").published[0].values)
    job = Job(f"circle-{number:05d}", "circle", number, "sobol", params, seed=number)
    return TrialRecord(job, started=1.8e9)


def open_study(tracker: Tracker) -> None:
    """Open a study of one loss."""
    space = get_space("circle").to_dict()
    plan = {"spaces": {"circle": space}, "protocol": {"objective": "map_at_r", "epochs": EPOCHS}}
    tracker.open_study(name="bench", plan=plan, losses=["circle"], note="")


def time_own_reports(tracker: Tracker, number: int, reports: int) -> list[float]:
    """Return the seconds of each epoch report of the tracker."""
    tracker.start_trial(make_record(number))
    times = []
    for epoch in range(1, reports + 1):
        start = time.perf_counter()
        tracker.log_epoch(
            make_record(number).job.trial,
            epoch,
            make_metrics(epoch),
            timestamp=1.8e9 + number + epoch,
        )
        times.append(time.perf_counter() - start)
    return times


def time_stock_reports(callback: Any, number: int, reports: int) -> list[float]:
    """Return the seconds of each epoch report of Ray's callback with the results of Tune."""
    from ray.tune.experiment import Trial

    trial = Trial("bench", stub=True, trial_id=f"t{number}")
    callback.log_trial_start(trial)
    times = []
    for epoch in range(1, reports + 1):
        # Tune adds these to every result; the callback logs them all.
        added = {"training_iteration": epoch, "time_this_iter_s": 1.0, "time_total_s": 1.0}
        added |= {"timestamp": 1, "pid": 1, "time_since_restore": 1.0, "done": False}
        start = time.perf_counter()
        callback.log_trial_result(epoch, trial, {**make_metrics(epoch), **added})
        times.append(time.perf_counter() - start)
    return times


def measure_cost_per_report(folder: Path, *, rounds: int) -> dict[str, float]:
    """Return the times of both trackers, which report to one server in turns."""
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    from study.tracking.ui_server import run_mlflow_server

    with run_mlflow_server(
        f"sqlite:///{folder / 'server.db'}", artifact_root=folder / "served"
    ) as address:
        callback = MLflowLoggerCallback(tracking_uri=address, experiment_name="stock")
        callback.setup()
        fields: dict[str, Any] = {"artifact_root": None, "experiment": "bench"}
        own_times: list[float] = []
        stock_times: list[float] = []
        ends: list[float] = []
        shipping: list[float] = []
        with Tracker(address, spool=folder / "served-spool", **fields) as tracker:
            open_study(tracker)
            assert tracker.flush(120.0)
            for number in range(rounds):
                own_times += time_own_reports(tracker, number, REPORTS)
                start = time.perf_counter()
                tracker.end_trial(make_record(number).job.trial, state="finished", timestamp=1.8e9)
                ends.append(time.perf_counter() - start)
                assert tracker.flush(120.0)
                shipping.append((time.perf_counter() - start) / REPORTS)
                stock_times += time_stock_reports(callback, number, 2)
            assert tracker.close(300.0)
    return {
        "ours_median_seconds": statistics.median(own_times),
        "ours_p99_seconds": sorted(own_times)[int(0.99 * len(own_times))],
        "ours_trial_end_seconds": statistics.median(ends),
        "ours_shipped_seconds": statistics.median(shipping),
        "stock_median_seconds": statistics.median(stock_times),
        "ratio_of_medians": statistics.median(stock_times) / statistics.median(own_times),
        "ratio_of_means": statistics.mean(stock_times) / statistics.mean(own_times),
    }


def fill_store(folder: Path, trials: int) -> None:
    """Write a store with this many trials: one by the tracker, the others as copies by SQL."""
    fields: dict[str, Any] = {"artifact_root": default_artifact_root(folder)}
    uri, spool = default_tracking_uri(folder), folder / "spool"
    with Tracker(uri, spool=spool, experiment="bench", **fields) as tracker:
        open_study(tracker)
        time_own_reports(tracker, 0, EPOCHS)
        tracker.end_trial(make_record(0).job.trial, state="finished", timestamp=1.8e9)
        assert tracker.close(120.0)
    with sqlite3.connect(folder / "mlflow.db") as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -1000000")
        run = connection.execute("SELECT run_uuid FROM tags WHERE key = 'dml.trial'").fetchone()[0]
        for table in ("runs", "tags", "params", "metrics", "latest_metrics"):
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            rows = connection.execute(
                f"SELECT * FROM {table} WHERE run_uuid = ?", (run,)
            ).fetchall()
            marks = ", ".join("?" * len(names))
            copies = (
                _copy_row(dict(zip(names, row, strict=True)), number)
                for number in range(1, trials)
                for row in rows
            )
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", copies)


def _copy_row(row: dict[str, Any], number: int) -> tuple[Any, ...]:
    row["run_uuid"] = f"{number:032x}"  # ordered ids are inserted faster
    if row.get("key") == "dml.trial":
        row["value"] = make_record(number).job.trial
    if row.get("key") == "number":
        row["value"] = str(number)
    return tuple(row.values())


def time_reading(folder: Path, trials: int) -> dict[str, float]:
    """Return the seconds to read the trial table from a database and through a server."""
    from study.tracking.reader import read_table
    from study.tracking.ui_server import run_mlflow_server

    folder.mkdir()
    fill_store(folder, trials)
    start = time.perf_counter()
    here = read_table(default_tracking_uri(folder), "bench")
    database_seconds = time.perf_counter() - start
    assert len(here.trials) == trials
    assert len(here.curves) == trials * EPOCHS
    with run_mlflow_server(
        default_tracking_uri(folder), artifact_root=default_artifact_root(folder)
    ) as address:
        start = time.perf_counter()
        there = read_table(address, "bench")
        server_seconds = time.perf_counter() - start
    assert here.trials.to_csv() == there.trials.to_csv()
    assert here.curves.to_csv() == there.curves.to_csv()
    return {
        "trials": trials,
        "database_seconds": database_seconds,
        "server_seconds": server_seconds,
    }


def main() -> None:
    """Run the benchmark, print the rows and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer trials, no result file")
    quick = parser.parse_args().quick
    folder = Path(tempfile.mkdtemp(prefix="bench-tracking-"))
    try:
        sizes = (100, 500) if quick else (1_000, 10_000)
        read = [time_reading(folder / str(size), size) for size in sizes]
        for row in read:
            print(f"reading: {row}", flush=True)
        report = measure_cost_per_report(folder, rounds=2 if quick else 10)
        print(f"cost of an epoch report: {report}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write_result("tracking", {"per_report": report, "reading": read}, quick=quick)


if __name__ == "__main__":
    main()

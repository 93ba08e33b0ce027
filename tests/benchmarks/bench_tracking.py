"""What does recording an epoch cost the driver, and how long does reading 10,000 trials take?

python -m tests.benchmarks.bench_tracking [--quick]

Ours and Ray's MLflowLoggerCallback report the same numbers to the same local `mlflow server`, in
turns: neither is measured while the other's requests are under way. What our shipper needs per
report, in its own process, is given too. The reader reads a large store as a database and through
a server, and both must give the same table.
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
from study.tracking.local import default_artifact_root, default_uri
from study.tracking.records import TrialRecord
from study.tracking.writer import Tracker
from tests.benchmarks.recording import write_result

EPOCHS = 10
REPORTS = 200


def metrics(epoch: int) -> dict[str, float]:
    """A dozen metrics, as a trial reports them."""
    names = ["map_at_r", "r_precision", "recall_at_1", "recall_at_2", "recall_at_4", "loss"]
    names += ["seconds", "images_per_second", "backbone_lr", "head_lr", "proxy_lr", "memory_gib"]
    return {name: 0.5 + epoch / 100 + index / 1000 for index, name in enumerate(names)}


def record(number: int) -> TrialRecord:
    """A trial at the published point."""
    knobs = dict(get_space("circle").published[0].values)
    trial = f"circle-{number:05d}"
    fields: dict[str, Any] = {"origin": "sobol", "split": "validation", "anchor": "", "swept": ""}
    return TrialRecord(
        trial, "circle", number, seed=number, point=trial, knobs=knobs, started=1.8e9, **fields
    )


def open_study(tracker: Tracker) -> None:
    """A study of one loss."""
    space = get_space("circle").to_dict()
    plan = {"spaces": {"circle": space}, "protocol": {"objective": "map_at_r", "epochs": EPOCHS}}
    tracker.open_study(name="bench", plan=plan, losses=["circle"], note="")


def ours(tracker: Tracker, number: int, reports: int) -> list[float]:
    """Seconds of each epoch report."""
    tracker.trial_started(record(number))
    times = []
    for epoch in range(1, reports + 1):
        begin = time.perf_counter()
        tracker.epoch(record(number).trial, epoch, metrics(epoch), timestamp=1.8e9 + number + epoch)
        times.append(time.perf_counter() - begin)
    return times


def stock(callback: Any, number: int, reports: int) -> list[float]:
    """Seconds of each epoch report with Ray's callback, given what Tune gives it."""
    from ray.tune.experiment import Trial

    trial = Trial("bench", stub=True, trial_id=f"t{number}")
    callback.log_trial_start(trial)
    times = []
    for epoch in range(1, reports + 1):
        # Tune adds these to every result; the callback logs them all.
        added = {"training_iteration": epoch, "time_this_iter_s": 1.0, "time_total_s": 1.0}
        added |= {"timestamp": 1, "pid": 1, "time_since_restore": 1.0, "done": False}
        begin = time.perf_counter()
        callback.log_trial_result(epoch, trial, {**metrics(epoch), **added})
        times.append(time.perf_counter() - begin)
    return times


def cost_per_report(folder: Path, *, rounds: int) -> dict[str, float]:
    """Both against one server, in turns."""
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    from study.tracking.server import serve

    with serve(f"sqlite:///{folder / 'server.db'}", artifact_root=folder / "served") as address:
        callback = MLflowLoggerCallback(tracking_uri=address, experiment_name="stock")
        callback.setup()
        fields: dict[str, Any] = {"artifact_root": None, "experiment": "bench"}
        mine: list[float] = []
        theirs: list[float] = []
        ends: list[float] = []
        shipping: list[float] = []
        with Tracker(address, spool=folder / "served-spool", **fields) as tracker:
            open_study(tracker)
            assert tracker.flush(120.0)
            for number in range(rounds):
                mine += ours(tracker, number, REPORTS)
                begin = time.perf_counter()
                tracker.trial_ended(record(number).trial, state="finished", timestamp=1.8e9)
                ends.append(time.perf_counter() - begin)
                assert tracker.flush(120.0)
                shipping.append((time.perf_counter() - begin) / REPORTS)
                theirs += stock(callback, number, 2)
            assert tracker.close(300.0)
    return {
        "ours_median_seconds": statistics.median(mine),
        "ours_p99_seconds": sorted(mine)[int(0.99 * len(mine))],
        "ours_trial_end_seconds": statistics.median(ends),
        "ours_shipped_seconds": statistics.median(shipping),
        "stock_median_seconds": statistics.median(theirs),
        "ratio_of_medians": statistics.median(theirs) / statistics.median(mine),
        "ratio_of_means": statistics.mean(theirs) / statistics.mean(mine),
    }


def fill(folder: Path, trials: int) -> None:
    """A store with so many trials: one is told, the others are copies written by SQL."""
    fields: dict[str, Any] = {"artifact_root": default_artifact_root(folder)}
    uri, spool = default_uri(folder), folder / "spool"
    with Tracker(uri, spool=spool, experiment="bench", **fields) as tracker:
        open_study(tracker)
        ours(tracker, 0, EPOCHS)
        tracker.trial_ended(record(0).trial, state="finished", timestamp=1.8e9)
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
                _copy(dict(zip(names, row, strict=True)), number)
                for number in range(1, trials)
                for row in rows
            )
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", copies)


def _copy(row: dict[str, Any], number: int) -> tuple[Any, ...]:
    row["run_uuid"] = f"{number:032x}"  # in order, which the database's indexes take fast
    if row.get("key") == "dml.trial":
        row["value"] = record(number).trial
    if row.get("key") == "number":
        row["value"] = str(number)
    return tuple(row.values())


def reading(folder: Path, trials: int) -> dict[str, float]:
    """Seconds to read the whole trial table, from a database and through a server."""
    from study.tracking.reader import read_table
    from study.tracking.server import serve

    folder.mkdir()
    fill(folder, trials)
    begin = time.perf_counter()
    here = read_table(default_uri(folder), "bench")
    middle = time.perf_counter()
    assert len(here.trials) == trials
    assert len(here.curves) == trials * EPOCHS
    with serve(default_uri(folder), artifact_root=default_artifact_root(folder)) as address:
        start = time.perf_counter()
        there = read_table(address, "bench")
        end = time.perf_counter()
    assert here.trials.to_csv() == there.trials.to_csv()
    assert here.curves.to_csv() == there.curves.to_csv()
    return {
        "trials": trials,
        "database_seconds": middle - begin,
        "server_seconds": end - start,
    }


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, nothing is kept")
    quick = parser.parse_args().quick
    folder = Path(tempfile.mkdtemp(prefix="bench-tracking-"))
    try:
        sizes = (100, 500) if quick else (1_000, 10_000)
        read = [reading(folder / str(size), size) for size in sizes]
        for row in read:
            print(f"reading: {row}", flush=True)
        report = cost_per_report(folder, rounds=2 if quick else 10)
        print(f"an epoch report costs the driver: {report}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write_result("tracking", {"per_report": report, "reading": read}, quick=quick)


if __name__ == "__main__":
    main()

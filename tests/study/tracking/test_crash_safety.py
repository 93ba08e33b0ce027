"""Nothing is lost or duplicated when processes are killed at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from study.directory import default_tracking_uri
from study.tracking.reader import read_table
from tests.support.tracked_study import Doubles, OpenTracker, TrackedStudy

# A driver that continues where the last one was killed, as a resumed study does: it repeats epochs
# of unfinished trials (with other times and values), and logs in a diary which calls returned.
DRIVER = """
import json, os, sys, time
from pathlib import Path
from study.directory import default_artifact_root, default_tracking_uri
from study.tracking.records import TrialRecord
from study.tracking.tracker import Tracker
from study.trials.job import Job

folder, plan, seed = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
path = folder / "diary"
done = set(path.read_text().split("\\n")) if path.exists() else set()
diary = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
tracker = Tracker(
    default_tracking_uri(folder), spool=folder / "spool",
    artifact_root=default_artifact_root(folder), experiment="groceries", interval=0.05,
)
(folder / "shipper.pid").write_text(str(tracker._shipper.pid))
tracker.open_study(name="groceries", plan=plan, losses=["circle"], note="")
for number in range(10_000):
    trial = f"circle-{number:04d}"
    if f"{trial} end" in done:
        continue
    values = {"alpha": 32.0, "m": 0.1, "batch_size": 180, "pooling": "avg", "layer_norm": True}
    job = Job(trial, "circle", number, "sobol", values, seed=number)
    tracker.start_trial(TrialRecord(job, started=time.time()))
    for epoch in range(1, 6):
        score = 0.1 * epoch + 0.001 * seed
        tracker.log_epoch(trial, epoch, {"map_at_r": score, "loss": 1.0}, timestamp=time.time())
        os.write(diary, f"{trial} {epoch}\\n".encode())
        time.sleep(0.01)
    tracker.end_trial(trial, state="finished", timestamp=time.time())
    os.write(diary, f"{trial} end\\n".encode())
"""


@pytest.mark.faults
def test_random_kills_lose_and_duplicate_nothing(
    study_dir: Path, open_tracker: OpenTracker, tracked_study: TrackedStudy, doubles: Doubles
) -> None:
    chance = random.Random(20)
    diary = study_dir / "diary"
    for seed in range(4):
        lines = _lines(diary)
        driver = subprocess.Popen(
            [
                sys.executable,
                "-c",
                DRIVER,
                str(study_dir),
                json.dumps(tracked_study.plan),
                str(seed),
            ],
            cwd=Path(__file__).parents[3],
        )
        try:
            _until(lambda before=lines: _lines(diary) > before, driver)
            # Killed while it still connects, or while it ships, alone or with its shipper.
            time.sleep(chance.uniform(0.2, 4.0))
            if seed % 2:
                os.kill(int((study_dir / "shipper.pid").read_text()), signal.SIGKILL)
        finally:
            driver.kill()
            driver.wait()
    words = diary.read_text().split()
    tracker = open_tracker(study_dir)
    assert tracker.flush(90.0)
    assert tracker.get_status().refused == 0
    assert doubles(study_dir / "mlflow.db") == []
    table = read_table(default_tracking_uri(study_dir), "groceries")
    found = {f"{trial} {epoch}" for trial, epoch in table.curves[["trial", "epoch"]].to_numpy()}
    pairs = set(map(" ".join, zip(words[::2], words[1::2], strict=True)))
    ended = {pair.split()[0] for pair in pairs if pair.endswith(" end")}
    assert {pair for pair in pairs if not pair.endswith(" end")} <= found
    # Epochs may be appended but not in the diary: one per kill at most.
    assert len(found - pairs) <= 4
    finished = table.trials[table.trials["state"] == "finished"]["trial"]
    assert ended <= set(finished)
    assert len(ended) > 20


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _until(condition: Any, driver: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60.0
    while not condition():
        assert driver.poll() is None, "the driver ended by itself"
        assert time.monotonic() < end
        time.sleep(0.01)

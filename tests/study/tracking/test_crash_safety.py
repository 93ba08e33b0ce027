"""Is nothing lost and nothing doubled when processes are killed at random moments?"""

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
from mlflow import MlflowClient

from study.tracking.local import default_uri, prepare
from study.tracking.reader import read_table

# A driver that goes on where the last one was killed, as a resumed study does: it repeats epochs of
# unfinished trials (with other times and values), and says in a diary what its calls returned from.
DRIVER = """
import json, os, sys, time
from pathlib import Path
from study.tracking.local import default_artifact_root, default_uri
from study.tracking.records import TrialRecord
from study.tracking.writer import Tracker

folder, plan, seed = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
path = folder / "diary"
done = set(path.read_text().split("\\n")) if path.exists() else set()
diary = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
tracker = Tracker(
    default_uri(folder), spool=folder / "spool",
    artifact_root=default_artifact_root(folder), experiment="groceries", interval=0.05,
)
(folder / "shipper.pid").write_text(str(tracker._shipper.pid))
tracker.open_study(name="groceries", plan=plan, losses=["circle"], note="")
for number in range(10_000):
    trial = f"circle-{number:04d}"
    if f"{trial} end" in done:
        continue
    values = {"alpha": 32.0, "m": 0.1, "batch_size": 180, "pooling": "avg", "layer_norm": True}
    tracker.trial_started(TrialRecord(
        trial, "circle", number, "sobol", number, "validation", trial, "", "", values,
        started=time.time(),
    ))
    for epoch in range(1, 6):
        score = 0.1 * epoch + 0.001 * seed
        tracker.epoch(trial, epoch, {"map_at_r": score, "loss": 1.0}, timestamp=time.time())
        os.write(diary, f"{trial} {epoch}\\n".encode())
        time.sleep(0.01)
    tracker.trial_ended(trial, state="finished", timestamp=time.time())
    os.write(diary, f"{trial} end\\n".encode())
"""


@pytest.mark.faults
def test_random_kills_lose_nothing_and_double_nothing(
    study_dir: Path, open_tracker: Any, story: Any, doubles: Any
) -> None:
    chance = random.Random(20)
    diary = study_dir / "diary"
    for seed in range(4):
        lines = _lines(diary)
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(study_dir), json.dumps(story.plan), str(seed)],
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
    told = diary.read_text().split()
    tracker = open_tracker(study_dir)
    assert tracker.flush(90.0)
    assert tracker.status().refused == 0
    assert doubles(study_dir / "mlflow.db") == []
    table = read_table(default_uri(study_dir), "groceries")
    found = {f"{trial} {epoch}" for trial, epoch in table.curves[["trial", "epoch"]].to_numpy()}
    pairs = set(map(" ".join, zip(told[::2], told[1::2], strict=True)))
    ended = {pair.split()[0] for pair in pairs if pair.endswith(" end")}
    assert {pair for pair in pairs if not pair.endswith(" end")} <= found
    # What was appended but not yet in the diary may be there: one epoch per kill at most.
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


def test_a_store_killed_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DML_STUDY_CACHE", str(tmp_path / "cache"))  # so that nothing is copied
    database = tmp_path / "mlflow.db"
    uri = f"sqlite:///{database}"
    maker = subprocess.Popen(
        [sys.executable, "-c", f"from study.tracking.local import prepare; prepare({uri!r})"]
    )
    unfinished = tmp_path / "mlflow.db.new"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        unfinished.exists() and unfinished.stat().st_size > 100_000
    ):
        time.sleep(0.002)
    maker.kill()
    maker.wait()
    assert unfinished.exists()
    assert not database.exists()  # half a store has another name
    prepare(uri)
    assert database.exists()
    assert not unfinished.exists()
    assert [e.name for e in MlflowClient(uri).search_experiments()] == ["Default"]


def test_an_empty_store_is_copied_if_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("DML_STUDY_CACHE", str(cache))
    cache.write_text("a file where the folder should be, so that nothing can be kept")
    _check_made(tmp_path / "not kept" / "mlflow.db")
    cache.unlink()
    _check_made(tmp_path / "kept" / "mlflow.db")
    (store,) = cache.iterdir()
    made = store.stat().st_mtime_ns
    _check_made(tmp_path / "copied" / "mlflow.db")
    assert store.stat().st_mtime_ns == made
    store.write_bytes(store.read_bytes()[:200_000])
    _check_made(tmp_path / "the copy was damaged" / "mlflow.db")
    assert store.stat().st_size > 200_000


def _check_made(database: Path) -> None:
    database.parent.mkdir()
    prepare(f"sqlite:///{database}")
    (default,) = MlflowClient(f"sqlite:///{database}").search_experiments()
    assert default.name == "Default"
    assert default.artifact_location == str(database.parent / "mlruns" / "0")

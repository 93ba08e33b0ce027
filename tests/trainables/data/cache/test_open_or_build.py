"""Cache entries: built once, by one process at a time, and built again if damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.cache_entries import build_entry, check_entry, make_rows
from trainables.data.cache import RowChunk, count_usable_cores, hold_file_lock

pytestmark = pytest.mark.split


def test_builds_once_and_maps_read_only(tmp_path: Path) -> None:
    calls: list[int] = []
    reported: list[tuple[int, int]] = []

    def fill(start: int, stop: int) -> RowChunk:
        calls.append(start)
        return make_rows(start, stop)

    first = build_entry(
        tmp_path, fill, progress=lambda label, done, total: reported.append((done, total))
    )
    second = build_entry(tmp_path, fill)
    check_entry(first)
    check_entry(second)
    assert sorted(calls) == list(range(0, 103, 10))
    assert reported[0] == (0, 103)
    assert reported[-1] == (103, 103)
    assert first.fingerprint == second.fingerprint
    assert isinstance(second.arrays["x"], np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        second.arrays["x"][0] = 1


def test_other_settings_are_another_entry(tmp_path: Path) -> None:
    build_entry(tmp_path)
    build_entry(tmp_path, settings={"a": 2})
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 2


def test_waiting_for_another_process_is_reported(tmp_path: Path) -> None:
    holding, release = threading.Event(), threading.Event()
    labels: list[str] = []

    def slow(start: int, stop: int) -> RowChunk:
        holding.set()
        assert release.wait(20)
        return make_rows(start, stop)

    def report(label: str, done: int, total: int) -> None:
        labels.append(label)
        release.set()

    first = threading.Thread(target=build_entry, args=(tmp_path, slow))
    first.start()
    assert holding.wait(20)
    check_entry(build_entry(tmp_path, progress=report))
    first.join()
    assert labels == ["entry (another process)"]


@pytest.mark.parametrize("damage", ["byte", "short", "json", "bytes", "list", "none", "no array"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    build_entry(tmp_path)
    (folder,) = (p for p in tmp_path.iterdir() if p.is_dir())
    data = (folder / "x.npy").read_bytes()
    if damage == "byte":
        (folder / "x.npy").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "short":
        (folder / "x.npy").write_bytes(data[:-5])
    elif damage == "json":
        (folder / "entry.json").write_text("{")
    elif damage == "bytes":
        (folder / "entry.json").write_bytes(b"\xff" * 100)
    elif damage == "list":
        (folder / "entry.json").write_text('{"bad": [], "left_out": [], "remarks": []}')
    elif damage == "none":
        (folder / "entry.json").unlink()
    else:
        (folder / "y.npy").unlink()
    entry = build_entry(tmp_path)
    check_entry(entry)
    assert entry.rebuilt
    assert not build_entry(tmp_path).rebuilt


BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from trainables.data.cache import RowChunk, RowSpec, open_or_build_entry
root, log = Path(sys.argv[1]), Path(sys.argv[2])
def fill(start, stop):
    with log.open("a") as handle:
        handle.write(f"{start}\\n")
    time.sleep(0.05)
    return RowChunk({"x": np.repeat(np.arange(start, stop)[:, None], 64, axis=1)})
entry = open_or_build_entry(root, name="entry", settings={}, specs={"x": RowSpec((64,), "int64")},
                    n_rows=400, fill=fill, chunk_rows=10, workers=1)
assert np.array_equal(entry.arrays["x"][:, 7], np.arange(400))
print(entry.fingerprint)
"""


@pytest.mark.slow
def test_several_processes_build_one_entry_and_one_is_killed_midway(tmp_path: Path) -> None:
    script, logs = tmp_path / "builder.py", [tmp_path / f"log{i}" for i in range(3)]
    script.write_text(BUILDER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4])}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "cache"), str(log)],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for log in logs
    ]
    try:
        deadline = time.monotonic() + 60
        while not any(count_lines(log) >= 8 for log in logs):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        builder = max(range(3), key=lambda i: count_lines(logs[i]))
        processes[builder].send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, processes[builder].pid, os.WSTOPPED)
        (journal,) = (tmp_path / "cache").glob("*.partial/chunks.jsonl")
        lost = count_lines(logs[builder]) - count_lines(journal)
        processes[builder].send_signal(signal.SIGKILL)
        survivors = [p for i, p in enumerate(processes) if i != builder]
        outputs = [p.communicate(timeout=60)[0] for p in survivors]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
    assert [p.returncode for p in survivors] == [0, 0]
    assert outputs[0] == outputs[1] != ""
    computed = [count_lines(log) for log in logs]
    # The lock lets one process build at a time, and the next continues where the killed one ended:
    # only chunks that were not in the journal are computed twice.
    assert computed[builder] >= 8
    assert lost < 8
    assert sum(computed) == 40 + lost
    assert sorted(computed)[0] == 0


def count_lines(log: Path) -> int:
    """Return the number of lines of a file; 0 if it does not exist."""
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_lock_is_released_when_its_holder_fails(tmp_path: Path) -> None:
    waited: list[bool] = []
    with pytest.raises(RuntimeError), hold_file_lock(tmp_path / "l", lambda: waited.append(True)):
        raise RuntimeError
    with hold_file_lock(tmp_path / "l", lambda: waited.append(True)):
        assert not waited


def test_usable_cores_respect_the_affinity() -> None:
    assert 1 <= count_usable_cores() == len(os.sched_getaffinity(0))

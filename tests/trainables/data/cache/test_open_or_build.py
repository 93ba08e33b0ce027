"""A cache entry is whole or absent, whoever builds it and however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from trainables.data.cache import CachedRows, Rows, RowSpec, cached_rows

SPECS = {"x": RowSpec((3, 2), "float32"), "y": RowSpec((), "int64")}


def rows_of(start: int, stop: int) -> Rows:
    index = np.arange(start, stop)
    x = np.broadcast_to(index[:, None, None], (len(index), 3, 2)).astype(np.float32)
    return Rows({"x": x, "y": index * 10})


def build(root: Path, fill: object = rows_of, n_rows: int = 103, **more: object) -> CachedRows:
    arguments = {
        "name": "entry", "settings": {"a": 1}, "specs": SPECS, "n_rows": n_rows,
        "fill": fill, "chunk_rows": 10, "workers": 2, **more,
    }  # fmt: skip
    return cached_rows(root, **arguments)  # type: ignore[arg-type]


def check(entry: CachedRows, n_rows: int = 103) -> None:
    assert np.array_equal(entry.arrays["y"], np.arange(n_rows) * 10)
    assert np.array_equal(entry.arrays["x"][:, 2, 1], np.arange(n_rows))


def test_builds_once_and_maps_read_only(tmp_path: Path) -> None:
    calls: list[int] = []
    seen: list[tuple[int, int]] = []

    def fill(start: int, stop: int) -> Rows:
        calls.append(start)
        return rows_of(start, stop)

    first = build(tmp_path, fill, progress=lambda what, done, total: seen.append((done, total)))
    second = build(tmp_path, fill)
    check(first)
    check(second)
    assert sorted(calls) == list(range(0, 103, 10))
    assert seen[0] == (0, 103)
    assert seen[-1] == (103, 103)
    assert first.fingerprint == second.fingerprint
    assert isinstance(second.arrays["x"], np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        second.arrays["x"][0] = 1


def test_other_settings_are_another_entry(tmp_path: Path) -> None:
    build(tmp_path)
    build(tmp_path, settings={"a": 2})
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 2


def test_contents_and_not_settings_make_the_fingerprint(tmp_path: Path) -> None:
    same = build(tmp_path, settings={"file": "elsewhere"})
    assert same.fingerprint == build(tmp_path).fingerprint

    def other(start: int, stop: int) -> Rows:
        rows = rows_of(start, stop)
        return Rows({"x": rows.arrays["x"] + (start == 50), "y": rows.arrays["y"]})

    assert build(tmp_path, other, settings={"a": 3}).fingerprint != same.fingerprint


def test_goes_on_after_a_crash(tmp_path: Path) -> None:
    calls: list[int] = []

    def fill(start: int, stop: int) -> Rows:
        calls.append(start)
        if start == 70 and crash:
            raise RuntimeError("crash")
        return rows_of(start, stop)

    crash = True
    with pytest.raises(RuntimeError, match="crash"):
        build(tmp_path, fill, workers=1)
    (partial,) = tmp_path.glob("*.partial")
    # The dying process also tore its last line and damaged a finished chunk.
    journal = partial / "chunks.jsonl"
    done = {json.loads(line)["start"] for line in journal.read_text().splitlines()}
    assert done == {0, 10, 20, 30, 40, 50, 60}
    journal.write_text(journal.read_text() + '{"start": 90, "st')
    array = np.lib.format.open_memmap(partial / "x.npy", mode="r+")
    array[25] = -1
    del array
    crash = False
    calls.clear()
    entry = build(tmp_path, fill)
    check(entry)
    assert sorted(calls) == [20, 70, 80, 90, 100]
    assert not list(tmp_path.glob("*.partial"))


def test_starts_anew_when_a_crash_left_a_shortened_array(tmp_path: Path) -> None:
    def crash(start: int, stop: int) -> Rows:
        if start >= 70:
            raise RuntimeError("crash")
        return rows_of(start, stop)

    with pytest.raises(RuntimeError, match="crash"):
        build(tmp_path, crash)
    (partial,) = tmp_path.glob("*.partial")
    np.save(partial / "x.npy", np.zeros((5, 3, 2), dtype=np.float32))  # as after leaving rows out
    check(build(tmp_path))


def test_says_when_it_waits_for_another_process(tmp_path: Path) -> None:
    holding, release = threading.Event(), threading.Event()
    said: list[str] = []

    def slow(start: int, stop: int) -> Rows:
        holding.set()
        assert release.wait(20)
        return rows_of(start, stop)

    def listen(what: str, done: int, total: int) -> None:
        said.append(what)
        release.set()

    first = threading.Thread(target=build, args=(tmp_path, slow))
    first.start()
    assert holding.wait(20)
    check(build(tmp_path, progress=listen))
    first.join()
    assert said == ["entry (another process)"]


@pytest.mark.parametrize("damage", ["byte", "short", "json", "bytes", "list", "none", "no array"])
def test_a_damaged_entry_is_found_and_computed_again(tmp_path: Path, damage: str) -> None:
    build(tmp_path)
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
    entry = build(tmp_path)
    check(entry)
    assert entry.rebuilt
    assert not build(tmp_path).rebuilt


def test_bad_rows_are_left_out_and_remembered(tmp_path: Path) -> None:
    def fill(start: int, stop: int) -> Rows:
        rows = rows_of(start, stop)
        bad = {row: f"row {row}" for row in (0, 57, 102) if start <= row < stop}
        return Rows(rows.arrays, bad, {row: "odd" for row in (5,) if start <= row < stop})

    for _ in range(2):  # built, then opened
        entry = build(tmp_path, fill)
        kept = np.setdiff1d(np.arange(103), [0, 57, 102])
        assert np.array_equal(entry.kept, kept)
        assert np.array_equal(entry.arrays["y"], kept * 10)
        assert entry.bad == {0: "row 0", 57: "row 57", 102: "row 102"}
        assert entry.remarks == {5: "odd"}


def test_a_wrong_shape_is_an_error_and_leaves_no_entry(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"array 'x' must have shape \(10, 3, 2\)"):
        build(tmp_path, lambda start, stop: Rows({"x": np.zeros((1, 3, 2)), "y": np.zeros(1)}))
    assert not [p for p in tmp_path.iterdir() if p.is_dir() and p.suffix != ".partial"]


def test_a_cache_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="GiB are free; name another cache directory"):
        build(tmp_path, n_rows=10**15, specs={"x": RowSpec((1000,), "float32")})


BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from trainables.data.cache import Rows, RowSpec, cached_rows
root, log = Path(sys.argv[1]), Path(sys.argv[2])
def fill(start, stop):
    with log.open("a") as handle:
        handle.write(f"{start}\\n")
    time.sleep(0.05)
    return Rows({"x": np.repeat(np.arange(start, stop)[:, None], 64, axis=1)})
entry = cached_rows(root, name="entry", settings={}, specs={"x": RowSpec((64,), "int64")},
                    n_rows=400, fill=fill, chunk_rows=10, workers=1)
assert np.array_equal(entry.arrays["x"][:, 7], np.arange(400))
print(entry.fingerprint)
"""


def test_several_processes_build_one_entry_and_one_is_killed_midway(tmp_path: Path) -> None:
    script, logs = tmp_path / "builder.py", [tmp_path / f"log{i}" for i in range(3)]
    script.write_text(BUILDER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
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
        while not any(_lines(log) >= 8 for log in logs):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        builder = max(range(3), key=lambda i: _lines(logs[i]))
        processes[builder].send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, processes[builder].pid, os.WSTOPPED)
        (journal,) = (tmp_path / "cache").glob("*.partial/chunks.jsonl")
        lost = _lines(logs[builder]) - _lines(journal)
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
    computed = [_lines(log) for log in logs]
    # The lock let one build at a time, and the next went on where the dead one ended: only what it
    # had not journalled was computed twice.
    assert computed[builder] >= 8
    assert lost < 8
    assert sum(computed) == 40 + lost
    assert sorted(computed)[0] == 0


def _lines(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_threads_share_the_work(tmp_path: Path) -> None:
    names: set[str] = set()
    barrier = threading.Barrier(2, timeout=20)

    def fill(start: int, stop: int) -> Rows:
        if start < 20:
            barrier.wait()  # passes only when two chunks are in work at once
        names.add(threading.current_thread().name)
        return rows_of(start, stop)

    check(build(tmp_path, fill))
    assert len(names) == 2

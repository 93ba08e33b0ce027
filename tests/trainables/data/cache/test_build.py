"""Building of cache entries: threads, crashes, excluded rows and full disks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cache_entries import build_entry, check_entry, make_rows
from trainables.data.cache import RowChunk, RowSpec, open_or_build_entry

pytestmark = pytest.mark.split


def test_threads_share_the_work(tmp_path: Path) -> None:
    names: set[str] = set()
    barrier = threading.Barrier(2, timeout=20)

    def fill(start: int, stop: int) -> RowChunk:
        if start < 20:
            barrier.wait()  # passes only when two chunks are in work at once
        names.add(threading.current_thread().name)
        return make_rows(start, stop)

    check_entry(build_entry(tmp_path, fill))
    assert len(names) == 2


def test_a_build_continues_after_a_crash(tmp_path: Path) -> None:
    calls: list[int] = []

    def fill(start: int, stop: int) -> RowChunk:
        calls.append(start)
        if start == 70 and crash:
            raise RuntimeError("crash")
        return make_rows(start, stop)

    crash = True
    with pytest.raises(RuntimeError, match="crash"):
        build_entry(tmp_path, fill, workers=1)
    (partial,) = tmp_path.glob("*.partial")
    # The crash also left an incomplete last line and a damaged finished chunk.
    journal = partial / "chunks.jsonl"
    done = {json.loads(line)["start"] for line in journal.read_text().splitlines()}
    assert done == {0, 10, 20, 30, 40, 50, 60}
    journal.write_text(journal.read_text() + '{"start": 90, "st')
    array = np.lib.format.open_memmap(partial / "x.npy", mode="r+")
    array[25] = -1
    del array
    crash = False
    calls.clear()
    entry = build_entry(tmp_path, fill)
    check_entry(entry)
    assert sorted(calls) == [20, 70, 80, 90, 100]
    assert not list(tmp_path.glob("*.partial"))


def test_a_build_starts_over_if_a_crash_left_a_compacted_array(tmp_path: Path) -> None:
    def crash(start: int, stop: int) -> RowChunk:
        if start >= 70:
            raise RuntimeError("crash")
        return make_rows(start, stop)

    with pytest.raises(RuntimeError, match="crash"):
        build_entry(tmp_path, crash)
    (partial,) = tmp_path.glob("*.partial")
    np.save(partial / "x.npy", np.zeros((5, 3, 2), dtype=np.float32))  # as after excluding rows
    check_entry(build_entry(tmp_path))


def test_bad_rows_are_excluded_and_recorded(tmp_path: Path) -> None:
    def fill(start: int, stop: int) -> RowChunk:
        rows = make_rows(start, stop)
        bad = {row: f"row {row}" for row in (0, 57, 102) if start <= row < stop}
        return RowChunk(rows.arrays, bad, {row: "odd" for row in (5,) if start <= row < stop})

    for _ in range(2):  # built, then opened
        entry = build_entry(tmp_path, fill)
        kept = np.setdiff1d(np.arange(103), [0, 57, 102])
        assert np.array_equal(entry.row_numbers, kept)
        assert np.array_equal(entry.arrays["y"], kept * 10)
        assert entry.bad == {0: "row 0", 57: "row 57", 102: "row 102"}
        assert entry.remarks == {5: "odd"}


def test_a_filter_excludes_rows_once_all_are_known(tmp_path: Path) -> None:
    def exclude(arrays: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> dict[int, str]:
        assert len(rows) == 102
        assert (arrays["y"][rows] == 10 * rows).all()
        return {4: "unwanted", 90: "unwanted"}

    def fill(start: int, stop: int) -> RowChunk:
        return RowChunk(make_rows(start, stop).arrays, {7: "bad"} if start == 0 else {})

    entry = build_entry(tmp_path, fill, leave_out=exclude)
    assert (entry.left_out, entry.bad) == ({4: "unwanted", 90: "unwanted"}, {7: "bad"})
    assert np.array_equal(entry.arrays["y"], 10 * np.setdiff1d(np.arange(103), [4, 7, 90]))


def test_a_wrong_shape_is_an_error_and_leaves_no_entry(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"array 'x' must have shape \(10, 3, 2\)"):
        build_entry(
            tmp_path, lambda start, stop: RowChunk({"x": np.zeros((1, 3, 2)), "y": np.zeros(1)})
        )
    assert not [p for p in tmp_path.iterdir() if p.is_dir() and p.suffix != ".partial"]


def test_a_cache_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="GiB are free; set another cache directory"):
        build_entry(tmp_path, n_rows=10**15, specs={"x": RowSpec((1000,), "float32")})


LIMITED = """
import resource, signal, sys
from pathlib import Path
from trainables.data import load_dataset
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    load_dataset("folder", cache_dir=Path(sys.argv[2]), path=sys.argv[1], size=64)
except OSError as error:
    print(error)
"""


def test_a_cache_that_cannot_grow_is_named(class_folders: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the same call fails."""
    place = tmp_path / "cache"
    command = [sys.executable, "-c", LIMITED, str(class_folders), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[4])
    assert done.stdout.strip().endswith(f": '{place}'"), done.stderr


def test_excluding_rows_needs_space_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check comes before the copy, and computed chunks are kept until there is space."""
    calls: list[int] = []

    def fill(start: int, stop: int) -> RowChunk:
        calls.append(start)
        return RowChunk({"x": np.full((stop - start, 64), start)}, {3: "odd"} if start == 0 else {})

    def build_limited() -> Any:
        specs = {"x": RowSpec((64,), "int64")}
        arguments: dict[str, Any] = {"name": "e", "settings": {}, "specs": specs, "n_rows": 100}
        return open_or_build_entry(tmp_path, **arguments, fill=fill, chunk_rows=10, workers=1)

    free = iter([60_000, 100])  # enough for 100 rows of 512 bytes, then little
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=next(free)))
        with pytest.raises(ValueError, match=r"the cache needs .* in .*another cache directory"):
            build_limited()
    assert len(build_limited().arrays["x"]) == 99
    assert len(calls) == 10, "nothing was computed twice"

"""Finished cache entries: complete and unchanged, or an error that tells what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.cache_entries import SPECS, build_entry, check_entry, make_rows
from trainables.data.cache import RowChunk, RowSpec
from trainables.data.cache.entry import CorruptCacheError, open_entry, remaining_row_numbers

pytestmark = pytest.mark.split


def test_a_finished_entry_can_be_opened(tmp_path: Path) -> None:
    built = build_entry(tmp_path)
    entry = open_entry(built.directory, SPECS)
    check_entry(entry)
    assert entry.fingerprint == built.fingerprint
    assert not entry.rebuilt
    assert np.array_equal(entry.row_numbers, np.arange(103))


def test_no_entry_and_a_directory_without_its_record_are_different_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_entry(tmp_path / "none", SPECS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorruptCacheError, match=r"entry\.json"):
        open_entry(tmp_path / "empty", SPECS)


def test_a_changed_byte_fails_its_checksum(tmp_path: Path) -> None:
    file = build_entry(tmp_path).directory / "x.npy"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptCacheError, match=r"x\.npy: chunk 10 fails its checksum"):
        open_entry(file.parent, SPECS)


def test_an_array_of_another_type_is_an_error(tmp_path: Path) -> None:
    directory = build_entry(tmp_path).directory
    with pytest.raises(CorruptCacheError, match=r"y\.npy contains int64 \(103,\)"):
        open_entry(directory, {**SPECS, "y": RowSpec((), "int32")})


def test_remaining_rows_ascend() -> None:
    assert remaining_row_numbers(6, [4, 0]).tolist() == [1, 2, 3, 5]
    assert remaining_row_numbers(2, []).tolist() == [0, 1]


def test_the_fingerprint_depends_on_contents_and_not_on_settings(tmp_path: Path) -> None:
    same = build_entry(tmp_path, settings={"file": "elsewhere"})
    assert same.fingerprint == build_entry(tmp_path).fingerprint

    def other(start: int, stop: int) -> RowChunk:
        rows = make_rows(start, stop)
        return RowChunk({"x": rows.arrays["x"] + (start == 50), "y": rows.arrays["y"]})

    assert build_entry(tmp_path, other, settings={"a": 3}).fingerprint != same.fingerprint

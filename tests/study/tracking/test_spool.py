"""Appended records are read in order, and never again once acknowledged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.tracking.spool import (
    SpoolReader,
    SpoolWriter,
    hold_exclusive_lock,
    list_segments,
    read_status,
)


def _drain(folder: Path, limit: int = 10) -> list[dict[str, Any]]:
    consumer = SpoolReader(folder)
    drained: list[dict[str, Any]] = []
    while True:
        records, position = consumer.read_records(limit)
        if records:
            drained += records
        if position == consumer.status.acknowledged:
            return drained
        consumer.acknowledge(position)


def test_records_come_back_in_order_and_once(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path, segment_bytes=200)
    sent = [{"n": n, "text": "α" * (n % 9)} for n in range(50)]
    for record in sent:
        spool.append(record)
    assert len(list_segments(tmp_path)) > 3
    assert _drain(tmp_path) == sent
    assert _drain(tmp_path) == []
    assert len(list_segments(tmp_path)) == 1
    spool.append({"n": 50})
    assert _drain(tmp_path) == [{"n": 50}]
    spool.close()
    assert list_segments(tmp_path) == []
    assert read_status(tmp_path).acknowledged.segment > 3


def test_what_was_not_acknowledged_is_read_again(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path)
    for n in range(5):
        spool.append({"n": n})
    first, position = SpoolReader(tmp_path).read_records(3)
    again, _ = SpoolReader(tmp_path).read_records(3)
    assert first == again == [{"n": 0}, {"n": 1}, {"n": 2}]
    SpoolReader(tmp_path).acknowledge(position)
    assert SpoolReader(tmp_path).read_records(9)[0] == [{"n": 3}, {"n": 4}]


@given(st.integers(min_value=1, max_value=40), st.integers(min_value=0, max_value=200))
@settings(max_examples=40, deadline=None)
def test_a_crash_loses_only_the_line_it_tore(
    tmp_path_factory: pytest.TempPathFactory, count: int, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    spool = SpoolWriter(folder)
    for n in range(count):
        spool.append({"n": n})
    path = folder / "00000001.jsonl"
    content = path.read_bytes()
    torn = content[: max(len(content) - cut, 0)]
    path.write_bytes(torn)
    later = SpoolWriter(folder)
    later.append({"n": "later"})
    complete = torn.count(b"\n")
    assert _drain(folder) == [*({"n": n} for n in range(complete)), {"n": "later"}]
    assert read_status(folder).acknowledged >= later.end_position()
    spool.close()
    later.close()


def test_a_full_disk_is_reported_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = SpoolWriter(tmp_path)
    spool.append({"n": 0})
    real, buffer = os.write, [7]

    def full(file: int, data: bytes) -> int:
        taken = min(buffer[0], len(data))
        buffer[0] -= taken
        if not taken:
            raise OSError(28, "No space left on device")
        return real(file, data[:taken])

    monkeypatch.setattr(os, "write", full)
    spool.append({"n": 1})
    spool.append({"n": 2})
    assert "no space left" in spool.write_problem.lower()
    assert spool.n_pending == 2
    assert _drain(tmp_path) == [{"n": 0}]
    monkeypatch.undo()
    spool.append({"n": 3})
    assert spool.write_problem == ""
    assert _drain(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 3}]
    spool.close()


def test_an_unreadable_status_starts_from_the_oldest_segment(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path)
    spool.append({"n": 0})
    (tmp_path / "status.json").write_text("{", encoding="utf-8")
    assert _drain(tmp_path) == [{"n": 0}]
    spool.close()


def test_a_lock_is_exclusive(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        hold_exclusive_lock(path, wait=False) as first,
        hold_exclusive_lock(path, wait=False) as second,
    ):
        assert (first, second) == (True, False)
    with hold_exclusive_lock(path, wait=False) as third:
        assert third


def test_nan_and_infinity_survive(tmp_path: Path) -> None:
    spool = SpoolWriter(tmp_path)
    spool.append({"v": [float("inf"), float("-inf")]})
    spool.append({"v": float("nan")})
    first, second = _drain(tmp_path)
    assert first["v"] == [float("inf"), float("-inf")]
    assert json.dumps(second) == '{"v": NaN}'
    spool.close()


def test_records_that_must_survive_a_power_failure_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a power failure: the disk holds what was there at the last fsync."""
    safe: dict[str, bytes] = {}
    names: set[str] = set()

    def fsync(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path.is_dir():
            names.update(entry.name for entry in path.iterdir())
        else:
            safe[path.name] = path.read_bytes()

    monkeypatch.setattr("study.tracking.spool.os.fsync", fsync)
    spool = SpoolWriter(tmp_path, segment_bytes=100)
    disk = tmp_path / "disk"

    def survivors() -> list[int]:
        for old in disk.glob("*"):
            old.unlink()
        disk.mkdir(exist_ok=True)
        for name in names & set(safe):
            (disk / name).write_bytes(safe[name])
        return [record["n"] for record in _drain(disk)]

    spool.append({"n": 0})
    assert survivors() == []  # an epoch may be lost: its trial logs it again
    spool.append({"n": 1}, sync=True)
    assert survivors() == [0, 1]
    for n in range(2, 40):  # over several segments
        spool.append({"n": n})
    spool.append({"n": 40}, sync=True)
    assert survivors() == list(range(41))
    spool.append({"n": 41})
    SpoolReader(tmp_path).sync_to_disk()  # as the shipper does while the server is down
    assert survivors() == list(range(42))
    spool.close()

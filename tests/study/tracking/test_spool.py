"""Is a record that was appended always read, once acknowledged never again?"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.tracking.spool import Consumer, Spool, locked, read_status, segments


def _drain(folder: Path, limit: int = 10) -> list[dict[str, Any]]:
    consumer = Consumer(folder)
    found: list[dict[str, Any]] = []
    while True:
        records, place = consumer.read(limit)
        if records:
            found += records
        if place == consumer.status.acknowledged:
            return found
        consumer.acknowledge(place)


def test_records_come_back_in_order_and_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=200)
    sent = [{"n": n, "text": "α" * (n % 9)} for n in range(50)]
    for record in sent:
        spool.append(record)
    assert len(segments(tmp_path)) > 3
    assert _drain(tmp_path) == sent
    assert _drain(tmp_path) == []
    assert len(segments(tmp_path)) == 1
    spool.append({"n": 50})
    assert _drain(tmp_path) == [{"n": 50}]
    spool.close()
    assert segments(tmp_path) == []
    assert read_status(tmp_path).acknowledged.segment > 3


def test_what_was_not_acknowledged_is_read_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for n in range(5):
        spool.append({"n": n})
    first, place = Consumer(tmp_path).read(3)
    again, _ = Consumer(tmp_path).read(3)
    assert first == again == [{"n": 0}, {"n": 1}, {"n": 2}]
    Consumer(tmp_path).acknowledge(place)
    assert Consumer(tmp_path).read(9)[0] == [{"n": 3}, {"n": 4}]


@given(st.integers(min_value=1, max_value=40), st.integers(min_value=0, max_value=200))
@settings(max_examples=40, deadline=None)
def test_a_crash_loses_only_the_line_it_tore(
    tmp_path_factory: pytest.TempPathFactory, count: int, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    spool = Spool(folder)
    for n in range(count):
        spool.append({"n": n})
    path = folder / "00000001.jsonl"
    whole = path.read_bytes()
    kept = whole[: max(len(whole) - cut, 0)]
    path.write_bytes(kept)
    later = Spool(folder)
    later.append({"n": "later"})
    complete = kept.count(b"\n")
    assert _drain(folder) == [*({"n": n} for n in range(complete)), {"n": "later"}]
    assert read_status(folder).acknowledged >= later.end()
    spool.close()
    later.close()


def test_a_full_disk_is_reported_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.append({"n": 0})
    real, room = os.write, [7]

    def full(file: int, data: bytes) -> int:
        taken = min(room[0], len(data))
        room[0] -= taken
        if not taken:
            raise OSError(28, "No space left on device")
        return real(file, data[:taken])

    monkeypatch.setattr(os, "write", full)
    spool.append({"n": 1})
    spool.append({"n": 2})
    assert "no space left" in spool.problem.lower()
    assert spool.held == 2
    assert _drain(tmp_path) == [{"n": 0}]
    monkeypatch.undo()
    spool.append({"n": 3})
    assert spool.problem == ""
    assert _drain(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 3}]
    spool.close()


def test_an_unreadable_status_starts_from_the_oldest_segment(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append({"n": 0})
    (tmp_path / "status.json").write_text("{", encoding="utf-8")
    assert _drain(tmp_path) == [{"n": 0}]
    spool.close()


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, wait=False) as first, locked(path, wait=False) as second:
        assert (first, second) == (True, False)
    with locked(path, wait=False) as third:
        assert third


def test_nan_and_infinity_survive(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append({"v": [float("inf"), float("-inf")]})
    spool.append({"v": float("nan")})
    first, second = _drain(tmp_path)
    assert first["v"] == [float("inf"), float("-inf")]
    assert json.dumps(second) == '{"v": NaN}'
    spool.close()


def test_what_a_power_cut_must_not_take_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands in for the power cut: what the disk has is what was there at the last fsync."""
    safe: dict[str, bytes] = {}
    names: set[str] = set()

    def fsync(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path.is_dir():
            names.update(entry.name for entry in path.iterdir())
        else:
            safe[path.name] = path.read_bytes()

    monkeypatch.setattr("study.tracking.spool.os.fsync", fsync)
    spool = Spool(tmp_path, segment_bytes=100)
    after_a_cut = tmp_path / "disk"

    def survivors() -> list[int]:
        for old in after_a_cut.glob("*"):
            old.unlink()
        after_a_cut.mkdir(exist_ok=True)
        for name in names & set(safe):
            (after_a_cut / name).write_bytes(safe[name])
        return [record["n"] for record in _drain(after_a_cut)]

    spool.append({"n": 0})
    assert survivors() == []  # an epoch may go: its trial tells it again
    spool.append({"n": 1}, sync=True)
    assert survivors() == [0, 1]
    for n in range(2, 40):  # over several segments
        spool.append({"n": n})
    spool.append({"n": 40}, sync=True)
    assert survivors() == list(range(41))
    spool.append({"n": 41})
    Consumer(tmp_path).sync()  # as the shipper does while the server is away
    assert survivors() == list(range(42))
    spool.close()

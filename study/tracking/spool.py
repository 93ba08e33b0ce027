"""Spool: records on disk that wait until the tracking store has them.

A spool is a folder of numbered segments with one JSON line per record, which are only appended to.
One process (the study's driver) appends; another (the shipper) reads and then acknowledges a
position. Both may be killed at any moment: an incomplete last line is skipped, and records that
were not acknowledged are read again. Records appended with `sync`, and records that wait for a
server that is down, survive a power failure.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from study.utils.redaction import redact_json

SEGMENT_BYTES = 4 << 20
MAX_PENDING_LINES = 100_000


class SpoolPosition(NamedTuple):
    """A position in the spool; later positions compare greater."""

    segment: int
    offset: int


SPOOL_START = SpoolPosition(0, 0)


@dataclass(frozen=True)
class ShippingStatus:
    """Progress of shipping, as the shipper last wrote it.

    Args:
        acknowledged: Position before which everything is in the tracking store.
        error: Why records cannot be shipped or files cannot be stored at present; else empty.
        refused: Number of records that the store refused permanently; see `refused.jsonl`.
        unstored: Number of files that could not be stored yet.
        note: Information for the user that does not block shipping; else empty.
    """

    acknowledged: SpoolPosition = SPOOL_START
    error: str = ""
    refused: int = 0
    unstored: int = 0
    note: str = ""


class SpoolWriter:
    """Appends records; never raises because of disk errors.

    Args:
        folder: Folder of the spool; created if missing.
        segment_bytes: Size beyond which a new segment begins, so that shipped ones can be deleted.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.write_problem = ""
        self.n_dropped = 0
        self._segment_bytes = segment_bytes
        self._pending_lines: deque[bytes] = deque()
        self._line_is_torn = False
        self._file, self._segment, self._size = -1, 0, 0
        self._lock = threading.Lock()
        # Always a new segment, so that a line torn by a crash stays the last one of its segment.
        last = max([read_status(folder).acknowledged.segment, *list_segments(folder)], default=0)
        self._open_segment(last + 1)

    def append(self, record: Mapping[str, Any], *, sync: bool = False) -> None:
        """Append one record; if the disk is full, keep it in memory until the next call.

        Args:
            record: JSON types.
            sync: Wait until this and all earlier records are on disk and survive a power failure.
        """
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._pending_lines.append(line)
            self._write_pending_lines()
            if sync and not self._pending_lines:
                _fsync_file(self._file)

    def end_position(self) -> SpoolPosition:
        """Return the position after the last record that was written to disk."""
        with self._lock:
            self._write_pending_lines()
            return SpoolPosition(self._segment, self._size)

    @property
    def n_pending(self) -> int:
        """Number of records that could not be written to disk yet."""
        return len(self._pending_lines)

    def close(self) -> None:
        """Close the current segment; delete all segments if everything was shipped."""
        with self._lock:
            self._write_pending_lines()
            os.close(self._file)
            self._file = -1
        if read_status(self.folder).acknowledged >= (self._segment, self._size):
            for segment in list_segments(self.folder):
                segment_path(self.folder, segment).unlink(missing_ok=True)

    def _open_segment(self, segment: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(segment_path(self.folder, segment), flags, 0o600)
        self._segment, self._size = segment, 0
        folder = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        _fsync_file(folder)  # otherwise a power failure could lose the file's name
        os.close(folder)

    def _write_pending_lines(self) -> None:
        try:
            while self._pending_lines:
                if self._size >= self._segment_bytes and not self._line_is_torn:
                    old = self._file
                    self._open_segment(self._segment + 1)
                    _fsync_file(old)
                    os.close(old)
                self._write_line(self._pending_lines[0])
                self._pending_lines.popleft()
            self.write_problem = ""
        except OSError as error:
            self.write_problem = f"cannot write the tracking spool {self.folder}: {error.strerror}"
            while len(self._pending_lines) > MAX_PENDING_LINES:
                self._pending_lines.pop()
                self.n_dropped += 1

    def _write_line(self, line: bytes) -> None:
        done = os.write(self._file, line)
        self._size += done
        # A full disk may accept part of a line; the rest is written first once there is room.
        self._line_is_torn = done < len(line)
        if self._line_is_torn:
            self._pending_lines[0] = line[done:]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SpoolReader:
    """Reads records in order and stores how far they were shipped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status = read_status(folder)

    def read_records(self, limit: int) -> tuple[list[dict[str, Any]], SpoolPosition]:
        """Return up to `limit` records that were not acknowledged, and the position after them."""
        records: list[dict[str, Any]] = []
        position = self.status.acknowledged
        segments = list_segments(self.folder)
        for index, segment in enumerate(segments):
            if segment < position.segment or len(records) >= limit:
                continue
            start = position.offset if segment == position.segment else 0
            lines, offset = _read_lines(
                segment_path(self.folder, segment), start, limit - len(records)
            )
            records += lines
            position = SpoolPosition(segment, offset)
            is_last = index + 1 == len(segments)
            if not is_last and len(records) < limit:
                position = SpoolPosition(segments[index + 1], 0)
        return records, position

    def acknowledge(
        self,
        position: SpoolPosition,
        *,
        refused: int = 0,
        unstored: int = 0,
        error: str = "",
        note: str = "",
    ) -> None:
        """Record that everything before `position` is in the store; delete earlier segments.

        Args:
            position: Position after the last record that was shipped.
            refused: Number of these records that the store refused.
            unstored: Number of files that could not be stored yet.
            error: Why they could not be stored.
            note: See `ShippingStatus`.
        """
        status = ShippingStatus(position, error, self.status.refused + refused, unstored, note)
        if status != self.status:
            self._write_status(status)
        for segment in list_segments(self.folder):
            if segment < position.segment:
                segment_path(self.folder, segment).unlink(missing_ok=True)

    def sync_to_disk(self) -> None:
        """Sync the last segment, because records that cannot be shipped exist only there."""
        for segment in list_segments(self.folder)[-1:]:  # full segments are synced already
            with contextlib.suppress(OSError):
                file = os.open(segment_path(self.folder, segment), os.O_RDONLY | os.O_CLOEXEC)
                _fsync_file(file)
                os.close(file)

    def report_error(self, error: str) -> None:
        """Write the reason why nothing can be shipped to the status."""
        if error != self.status.error:
            self._write_status(replace(self.status, error=error))

    def save_refused_record(self, record: Mapping[str, Any], reason: str) -> None:
        """Append a record that the store refused, and the reason, to `refused.jsonl`."""
        with (self.folder / "refused.jsonl").open("a", encoding="utf-8") as file:
            content = redact_json({"reason": reason, "record": record})
            file.write(json.dumps(content, ensure_ascii=False) + "\n")

    def _write_status(self, status: ShippingStatus) -> None:
        self.status = status
        text = json.dumps(
            {
                "acknowledged": list(status.acknowledged),
                "error": status.error,
                "refused": status.refused,
                "unstored": status.unstored,
                "note": status.note,
            }
        )
        draft = self.folder / "status.json.new"
        draft.write_text(text, encoding="utf-8")
        draft.replace(self.folder / "status.json")


def _fsync_file(file: int) -> None:
    with contextlib.suppress(OSError):  # some file systems do not support it
        os.fsync(file)


def read_status(folder: Path) -> ShippingStatus:
    """Return the status last written by the shipper; the initial status if there is none."""
    try:
        data = json.loads((folder / "status.json").read_text(encoding="utf-8"))
        segment, offset = data["acknowledged"]
        counts = int(data["refused"]), int(data.get("unstored", 0))
        position, note = SpoolPosition(int(segment), int(offset)), str(data.get("note", ""))
        return ShippingStatus(position, str(data["error"]), *counts, note)
    except (OSError, ValueError, KeyError):
        return ShippingStatus()


def has_unshipped_records(folder: Path) -> bool:
    """Whether some records or files are not in the store yet."""
    status = read_status(folder)
    behind = [s for s in list_segments(folder) if s >= status.acknowledged.segment]
    ends = [SpoolPosition(s, segment_path(folder, s).stat().st_size) for s in behind]
    first = status.acknowledged
    return bool(status.unstored) or any(end > first and end.offset for end in ends)


def list_segments(folder: Path) -> list[int]:
    """Return the numbers of the existing segments, in order."""
    return sorted(int(path.stem) for path in folder.glob("[0-9]*.jsonl") if path.stem.isdigit())


def segment_path(folder: Path, segment: int) -> Path:
    """Return the file of a segment."""
    return folder / f"{segment:08d}.jsonl"


@contextlib.contextmanager
def hold_exclusive_lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold an exclusive lock on a file; yield whether it was acquired.

    The lock ends with the process, so a crash leaves nothing to clean up.

    Args:
        path: Lock file; created if missing.
        wait: Wait for the lock; otherwise yield False at once if another process holds it.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(file)


def _read_lines(path: Path, start: int, limit: int) -> tuple[list[dict[str, Any]], int]:
    records: list[dict[str, Any]] = []
    offset = start
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n") or len(records) >= limit:
                break
            offset += len(line)
            # After a power failure a file may contain lines of zeros.
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    records.append(record)
    return records, offset

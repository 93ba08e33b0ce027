"""Where do records wait until the tracking server has them?

A folder of numbered segments, one JSON line per record, only ever appended to. One process (the
study's driver) appends; one process (the shipper) reads and then acknowledges a position. Both may
be killed at any moment: an unfinished last line is skipped, an unacknowledged one is read again.
A power cut leaves what was appended with `sync`, and what waited for a server that was away.
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

from study.tracking.redaction import redact_all

SEGMENT_BYTES = 4 << 20
HELD_LINES = 100_000


class Position(NamedTuple):
    """A place in the spool; later places compare greater."""

    segment: int
    offset: int


START = Position(0, 0)


@dataclass(frozen=True)
class Status:
    """How shipping stands, as the shipper last wrote it.

    Args:
        acknowledged: Everything before it is in the tracking store.
        error: Why records cannot be shipped, or files not stored, at the moment; else empty.
        refused: Records the store refused for good; they are in `refused.jsonl`.
        unstored: Files that could not be stored yet.
        note: What a person should know though it holds up nothing; else empty.
    """

    acknowledged: Position = START
    error: str = ""
    refused: int = 0
    unstored: int = 0
    note: str = ""


class Spool:
    """The appending side; never raises because of the disk.

    Args:
        folder: Made when missing.
        segment_bytes: A new segment is begun beyond this size, so that shipped ones can go.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.problem = ""
        self.dropped = 0
        self._limit = segment_bytes
        self._held: deque[bytes] = deque()
        self._torn = False
        self._file, self._segment, self._size = -1, 0, 0
        self._guard = threading.Lock()
        # Always a new segment: a line torn by a crash stays the end of an old one.
        last = max([read_status(folder).acknowledged.segment, *segments(folder)], default=0)
        self._open(last + 1)

    def append(self, record: Mapping[str, Any], *, sync: bool = False) -> None:
        """Add one record; with a full disk it is held in memory and tried again with the next.

        Args:
            record: JSON types.
            sync: Wait until the disk has it and all before it, so that a power cut leaves it.
        """
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        with self._guard:
            self._held.append(line)
            self._write_held()
            if sync and not self._held:
                _sync(self._file)

    def end(self) -> Position:
        """The place just behind the last record written to disk."""
        with self._guard:
            self._write_held()
            return Position(self._segment, self._size)

    @property
    def held(self) -> int:
        """Records that could not be written to disk yet."""
        return len(self._held)

    def close(self) -> None:
        """Close the current segment; nothing remains of segments that were shipped whole."""
        with self._guard:
            self._write_held()
            os.close(self._file)
            self._file = -1
        if read_status(self.folder).acknowledged >= (self._segment, self._size):
            for segment in segments(self.folder):
                segment_path(self.folder, segment).unlink(missing_ok=True)

    def _open(self, segment: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(segment_path(self.folder, segment), flags, 0o600)
        self._segment, self._size = segment, 0
        folder = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        _sync(folder)  # or a power cut takes the file's name
        os.close(folder)

    def _write_held(self) -> None:
        try:
            while self._held:
                if self._size >= self._limit and not self._torn:
                    old = self._file
                    self._open(self._segment + 1)
                    _sync(old)
                    os.close(old)
                self._write(self._held[0])
                self._held.popleft()
            self.problem = ""
        except OSError as error:
            self.problem = f"cannot write the tracking spool {self.folder}: {error.strerror}"
            while len(self._held) > HELD_LINES:
                self._held.pop()
                self.dropped += 1

    def _write(self, line: bytes) -> None:
        done = os.write(self._file, line)
        self._size += done
        # A full disk may take part of a line: its rest comes first when there is room again.
        self._torn = done < len(line)
        if self._torn:
            self._held[0] = line[done:]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Consumer:
    """The reading side: hands out records in order and remembers how far they were shipped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status = read_status(folder)

    def read(self, limit: int) -> tuple[list[dict[str, Any]], Position]:
        """Up to `limit` records behind the acknowledged place, and the place behind them."""
        records: list[dict[str, Any]] = []
        place = self.status.acknowledged
        known = segments(self.folder)
        for index, segment in enumerate(known):
            if segment < place.segment or len(records) >= limit:
                continue
            start = place.offset if segment == place.segment else 0
            found, offset = _read_lines(
                segment_path(self.folder, segment), start, limit - len(records)
            )
            records += found
            place = Position(segment, offset)
            last = index + 1 == len(known)
            if not last and len(records) < limit:
                place = Position(known[index + 1], 0)
        return records, place

    def acknowledge(
        self,
        place: Position,
        *,
        refused: int = 0,
        unstored: int = 0,
        error: str = "",
        note: str = "",
    ) -> None:
        """Everything before `place` is in the store; whole segments before it are deleted.

        Args:
            place: Behind what was shipped.
            refused: How many of the records the store refused.
            unstored: Files that could not be stored yet, and
            error: why.
            note: See `Status`.
        """
        status = Status(place, error, self.status.refused + refused, unstored, note)
        if status != self.status:
            self._write_status(status)
        for segment in segments(self.folder):
            if segment < place.segment:
                segment_path(self.folder, segment).unlink(missing_ok=True)

    def sync(self) -> None:
        """Let the disk have what cannot be shipped now: no other place does."""
        for segment in segments(self.folder)[-1:]:  # older ones were synced when they were full
            with contextlib.suppress(OSError):
                file = os.open(segment_path(self.folder, segment), os.O_RDONLY | os.O_CLOEXEC)
                _sync(file)
                os.close(file)

    def report(self, error: str) -> None:
        """Say why nothing is shipped."""
        if error != self.status.error:
            self._write_status(replace(self.status, error=error))

    def refuse(self, record: Mapping[str, Any], reason: str) -> None:
        """Keep a record that the store will never take."""
        with (self.folder / "refused.jsonl").open("a", encoding="utf-8") as file:
            content = redact_all({"reason": reason, "record": record})
            file.write(json.dumps(content, ensure_ascii=False) + "\n")

    def _write_status(self, status: Status) -> None:
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


def _sync(file: int) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot; those that can do not fail
        os.fsync(file)


def read_status(folder: Path) -> Status:
    """The shipper's last word; the beginning when it has not spoken yet."""
    try:
        data = json.loads((folder / "status.json").read_text(encoding="utf-8"))
        segment, offset = data["acknowledged"]
        counts = int(data["refused"]), int(data.get("unstored", 0))
        place, note = Position(int(segment), int(offset)), str(data.get("note", ""))
        return Status(place, str(data["error"]), *counts, note)
    except (OSError, ValueError, KeyError):
        return Status()


def is_waiting(folder: Path) -> bool:
    """Whether some records, or files, are not in the store yet."""
    status = read_status(folder)
    behind = [s for s in segments(folder) if s >= status.acknowledged.segment]
    ends = [Position(s, segment_path(folder, s).stat().st_size) for s in behind]
    first = status.acknowledged
    return bool(status.unstored) or any(end > first and end.offset for end in ends)


def segments(folder: Path) -> list[int]:
    """Numbers of the segments present, in order."""
    return sorted(int(path.stem) for path in folder.glob("[0-9]*.jsonl") if path.stem.isdigit())


def segment_path(folder: Path, segment: int) -> Path:
    """File of a segment."""
    return folder / f"{segment:08d}.jsonl"


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold an exclusive lock on a file; gives False at once when `wait` is off and it is taken.

    The lock dies with the process, so a crash leaves nothing to clean up.
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
            # A file system that lost its last blocks in a power cut may hold lines of zeros.
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    records.append(record)
    return records, offset

"""The file under a study's record: one JSON line per operation, in Optuna's own journal format.

Optuna's file backend remembers where every line begins, for ever; this one remembers where it
stopped reading. It needs no lock of its own: one process writes, the one that holds the study.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend


class Journal(BaseJournalBackend):
    """A journal that one process appends to and any number read.

    Args:
        path: The file; made when missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            path.touch()  # who only reads may not be allowed to
        self._number, self._offset = 0, 0

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The operations from a number on; a line that is still being written is none yet."""
        if log_number_from < self._number:
            self._number, self._offset = 0, 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                log = json.loads(line)
                self._number, self._offset = self._number + 1, self._offset + len(line)
                if self._number > log_number_from:
                    yield log

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write operations to the disk, or none of them.

        Raises:
            OSError: The disk does not take them.
        """
        lines = [json.dumps(log, separators=(",", ":")) + "\n" for log in logs]
        content = "".join(lines).encode()
        with self._path.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                if file.write(content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(before)
                raise


def cut_torn_line(path: Path) -> None:
    """Drop a last line that a power cut left half written."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        while size > 0:
            start = max(0, size - 65536)
            file.seek(start)
            newline = file.read(size - start).rfind(b"\n")
            if newline >= 0:
                size = start + newline + 1
                break
            size = start
        file.truncate(size)

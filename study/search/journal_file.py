"""File backend of the study journal: one JSON line per operation, in Optuna's journal format.

Optuna's own file backend keeps the offset of every line in memory; this one keeps only the offset
at which it stopped reading. It needs no lock, because only the process that holds the study writes.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend


class JournalFile(BaseJournalBackend):
    """Optuna journal backend with one writer and any number of readers.

    Args:
        path: The file; created if missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            path.touch()  # only if missing: a reader may lack the permission to write
        self._n_logs_read, self._offset = 0, 0

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the operations from a number on; an incomplete last line is left out."""
        if log_number_from < self._n_logs_read:
            self._n_logs_read, self._offset = 0, 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                log = json.loads(line)
                self._n_logs_read, self._offset = self._n_logs_read + 1, self._offset + len(line)
                if self._n_logs_read > log_number_from:
                    yield log

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append all operations and flush them to disk, or append none.

        Raises:
            OSError: If the disk is full or cannot be written.
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


def truncate_torn_line(path: Path) -> None:
    """Remove an incomplete last line, as left by a power cut or a full disk."""
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

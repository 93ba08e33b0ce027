"""Where does a trial continue after its process died?

One file per unfinished trial, replaced atomically: a crash at any moment leaves the old one or
the new one, never half of one. Nothing of Tune's own state is needed to continue.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

_WRITING = ".writing-"


def save_checkpoint(directory: Path, trial: str, payload: dict[str, Any]) -> None:
    """Replace the trial's checkpoint."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=_WRITING)
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save(payload, file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(checkpoint_path(directory, trial))
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def load_checkpoint(directory: Path, trial: str) -> dict[str, Any] | None:
    """The trial's checkpoint, or None when it has none.

    Loaded with `weights_only`: a checkpoint can hold tensors and plain values, never code.
    """
    path = checkpoint_path(directory, trial)
    if not path.exists():
        return None
    # Mapped, not read: each rank touches only the rows it keeps, and ranks of a node share them.
    mapped = zipfile.is_zipfile(path)
    payload: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    return payload


def remove_checkpoint(directory: Path, trial: str) -> None:
    """Forget the trial's checkpoint, if it has one."""
    checkpoint_path(directory, trial).unlink(missing_ok=True)


def remove_leftovers(directory: Path) -> None:
    """Remove files that were being written when their process died; nobody may be writing now."""
    for path in directory.glob(f"{_WRITING}*"):
        path.unlink(missing_ok=True)


def checkpoint_path(directory: Path, trial: str) -> Path:
    """The file of a trial; keys are made safe for file names."""
    return directory / (re.sub(r"[^A-Za-z0-9.+_-]", "_", trial) + ".pt")

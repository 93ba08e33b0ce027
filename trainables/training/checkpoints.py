"""Checkpoints of trials: one file or S3 object per trial, replaced atomically.

A crash at any moment leaves the old or the new checkpoint, never a partial one. A trial continues
from its spec and its checkpoint alone; Tune's own state is not needed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import torch

from trainables.training.sharded_saving import find_sharded_tensors, save_sharded
from trainables.utils import s3

_TEMPORARY_PREFIX = ".writing-"
_CHECKPOINT_SUFFIX = ".pt"


CheckpointLocation = str | Path
"""A directory or an S3 prefix (`s3://BUCKET/PREFIX`)."""


def save_checkpoint(location: CheckpointLocation, trial: str, payload: dict[str, Any]) -> None:
    """Write or replace the trial's checkpoint atomically.

    If `remove_checkpoint` is called for the trial meanwhile, in any process, no checkpoint appears
    in a directory; S3 cannot take back an upload.

    Raises:
        OSError: If the disk or S3 rejects it, or the trial's checkpoint was removed meanwhile.
    """
    if s3.is_s3_uri(location):
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY_PREFIX) as folder:
            path = checkpoint_path(Path(folder), trial)
            with path.open("w+b") as file:
                _write_payload(payload, file)
            s3.upload_file(path, _checkpoint_uri(location, trial))
        return
    directory = Path(location)
    directory.mkdir(parents=True, exist_ok=True)
    # `remove_checkpoint` finds this file by its name; without it the last step below fails.
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=_partial_prefix(trial))
    try:
        with os.fdopen(descriptor, "w+b") as file:
            _write_payload(payload, file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(checkpoint_path(directory, trial))
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _write_payload(payload: dict[str, Any], file: IO[bytes]) -> None:
    """Write the payload to a file and raise OSError if the disk is full.

    torch's writer converts the OSError of a large tensor to a RuntimeError about its container.
    """
    try:
        if find_sharded_tensors(payload):
            save_sharded(payload, file)
        else:
            torch.save(payload, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        if "inline_container" in str(error) or "PytorchStreamWriter" in str(error):
            raise OSError(str(error).splitlines()[0]) from error
        raise


def load_checkpoint(location: CheckpointLocation, trial: str) -> dict[str, Any] | None:
    """Return the trial's checkpoint, or None if it has none.

    It is loaded with `weights_only`: a checkpoint holds tensors and plain values, never code.
    """
    with local_checkpoint_file(location, trial) as path:
        return None if path is None else read_checkpoint(path)


@contextlib.contextmanager
def local_checkpoint_file(location: CheckpointLocation, trial: str) -> Iterator[Path | None]:
    """Yield the path of the trial's checkpoint on this node, or None if it has none.

    A checkpoint on S3 is downloaded to a temporary file, which is removed afterwards.

    Raises:
        OSError: If S3 does not respond or the disk is full.
    """
    if not s3.is_s3_uri(location):
        path = checkpoint_path(Path(location), trial)
        yield path if path.exists() else None
        return
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY_PREFIX) as folder:
        path = checkpoint_path(Path(folder), trial)
        try:
            s3.download_file(_checkpoint_uri(location, trial), path)
        except FileNotFoundError:
            yield None
            return
        yield path


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's content; the file may be removed or replaced afterwards.

    Raises:
        OSError: If the disk does not respond. Any other exception means that the file is damaged.
    """
    # Memory-mapped: each rank touches only the rows it keeps, and ranks of a node share pages.
    mapped = zipfile.is_zipfile(path)
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError as error:
        if mapped or error.errno != errno.EINVAL:
            raise
        # In a truncated archive torch seeks to a position before the beginning.
        raise ValueError(f"{path.name} is truncated") from error
    if not isinstance(payload, dict):
        raise ValueError(f"a checkpoint must be a mapping, but {path.name} holds {type(payload)}")
    return payload


def remove_checkpoint(location: CheckpointLocation, trial: str) -> None:
    """Remove the trial's checkpoint, if it has one, also while another process writes it."""
    if s3.is_s3_uri(location):
        # If it cannot be deleted now, `make_checkpoint_lookup` finds it on the next resume.
        with contextlib.suppress(OSError):
            s3.remove_object(_checkpoint_uri(location, trial))
        return
    remove_partial_checkpoints(location, trial)
    checkpoint_path(Path(location), trial).unlink(missing_ok=True)


def check_writable(location: CheckpointLocation) -> None:
    """Check that checkpoints can be written, read and deleted at a location.

    If the directory does not exist, its nearest existing parent is checked and nothing is created.

    Raises:
        OSError: If one of these fails. On S3, looking up a missing checkpoint, as every new trial
            does, must work too: without permission to list, S3 responds with `forbidden`.
    """
    trial = f"try-{uuid.uuid4().hex}"
    if not s3.is_s3_uri(location):
        folder = Path(location)
        location = next(f for f in (folder, *folder.parents) if f.exists())
    save_checkpoint(location, trial, {"epoch": 0})
    load_checkpoint(location, trial)
    if s3.is_s3_uri(location):
        s3.remove_object(_checkpoint_uri(location, trial))
        load_checkpoint(location, trial)
    else:
        checkpoint_path(Path(location), trial).unlink()


def make_checkpoint_lookup(location: CheckpointLocation) -> Callable[[str], bool]:
    """Return a function that says whether a trial has a checkpoint, from one listing."""
    if s3.is_s3_uri(location):
        names = {stored.name for stored in s3.list_s3_objects(str(location))}
    else:
        names = {path.name for path in Path(location).glob(f"*{_CHECKPOINT_SUFFIX}")}
    return lambda trial: checkpoint_filename(trial) in names


def remove_partial_checkpoints(location: CheckpointLocation, trial: str | None = None) -> None:
    """Remove files of interrupted writes, of one trial or of all; a write in flight then fails."""
    if s3.is_s3_uri(location):
        return  # S3 never shows a partial object
    prefix = _TEMPORARY_PREFIX if trial is None else _partial_prefix(trial)
    for path in Path(location).glob(f"{prefix}*"):
        path.unlink(missing_ok=True)


def checkpoint_path(directory: Path, trial: str) -> Path:
    """Return the path of a trial's checkpoint in a directory."""
    return directory / checkpoint_filename(trial)


def checkpoint_filename(trial: str) -> str:
    """Return the file name of a trial's checkpoint; unsafe characters become `_`."""
    return re.sub(r"[^A-Za-z0-9.+_-]", "_", trial) + _CHECKPOINT_SUFFIX


def _partial_prefix(trial: str) -> str:
    return f"{_TEMPORARY_PREFIX}{checkpoint_filename(trial)}-"


def _checkpoint_uri(location: CheckpointLocation, trial: str) -> str:
    return f"{str(location).rstrip('/')}/{checkpoint_filename(trial)}"

"""Where does a trial continue after its process died?

One file or S3 object per unfinished trial, replaced atomically: a crash at any moment leaves the
old one or the new one, never half of one. Nothing of Tune's own state is needed to continue.
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

from trainables import objects
from trainables.spread import spread_in, write_spread

_WRITING = ".writing-"
_ENDING = ".pt"


Place = str | Path
"""A directory, or an S3 prefix (`s3://BUCKET/PREFIX`)."""


def save_checkpoint(place: Place, trial: str, payload: dict[str, Any]) -> None:
    """Replace the trial's checkpoint.

    Raises:
        OSError: The disk or S3 does not take it.
    """
    if objects.is_object(place):
        with tempfile.TemporaryDirectory(prefix=_WRITING) as folder:
            path = checkpoint_path(Path(folder), trial)
            with path.open("w+b") as file:
                _write(payload, file)
            objects.upload(path, _address(place, trial))
        return
    directory = Path(place)
    directory.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=_WRITING)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            _write(payload, file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(checkpoint_path(directory, trial))
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _write(payload: dict[str, Any], file: IO[bytes]) -> None:
    """Save; a disk that is full says so.

    torch's writer turns the OSError of a large tensor into a RuntimeError about its container.
    """
    try:
        if spread_in(payload):
            write_spread(payload, file)
        else:
            torch.save(payload, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        if "inline_container" in str(error) or "PytorchStreamWriter" in str(error):
            raise OSError(str(error).splitlines()[0]) from error
        raise


def load_checkpoint(place: Place, trial: str) -> dict[str, Any] | None:
    """The trial's checkpoint, or None when it has none.

    Loaded with `weights_only`: a checkpoint can hold tensors and plain values, never code.
    """
    with checkpoint_file(place, trial) as path:
        return None if path is None else read_checkpoint(path)


@contextlib.contextmanager
def checkpoint_file(place: Place, trial: str) -> Iterator[Path | None]:
    """The trial's checkpoint as a file of this node; of one on S3 a copy that is gone afterwards.

    Raises:
        OSError: S3 does not answer, or the disk is full.
    """
    if not objects.is_object(place):
        path = checkpoint_path(Path(place), trial)
        yield path if path.exists() else None
        return
    with tempfile.TemporaryDirectory(prefix=_WRITING) as folder:
        path = checkpoint_path(Path(folder), trial)
        try:
            objects.download(_address(place, trial), path)
        except FileNotFoundError:
            yield None
            return
        yield path


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint's content; the file may be removed or replaced as soon as this returns.

    Raises:
        OSError: The disk does not answer. Whatever else is raised: the file is damaged.
    """
    # Mapped, not read: each rank touches only the rows it keeps, and ranks of a node share them.
    mapped = zipfile.is_zipfile(path)
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError as error:
        if mapped or error.errno != errno.EINVAL:
            raise
        # Looking for the end of an archive that was cut, torch seeks to before its beginning.
        raise ValueError(f"{path.name} was cut short.") from error
    if not isinstance(payload, dict):
        raise ValueError(f"a checkpoint is a mapping, but {path.name} holds {type(payload)}.")
    return payload


def remove_checkpoint(place: Place, trial: str) -> None:
    """Forget the trial's checkpoint, if it has one."""
    if objects.is_object(place):
        # What cannot be deleted now is found by `has_checkpoints` when the study goes on.
        with contextlib.suppress(OSError):
            objects.remove(_address(place, trial))
        return
    checkpoint_path(Path(place), trial).unlink(missing_ok=True)


def try_place(place: Place) -> None:
    """Write, read and delete a small checkpoint where trials would keep theirs.

    A folder that does not exist yet is not made: its nearest parent is tried instead.

    Raises:
        OSError: One of these is refused. On S3 also asking for a checkpoint that is not there,
            which every new trial does: without the right to list, S3 says `forbidden`.
    """
    trial = f"try-{uuid.uuid4().hex}"
    if not objects.is_object(place):
        folder = Path(place)
        place = next(f for f in (folder, *folder.parents) if f.exists())
    save_checkpoint(place, trial, {"epoch": 0})
    load_checkpoint(place, trial)
    if objects.is_object(place):
        objects.remove(_address(place, trial))
        load_checkpoint(place, trial)
    else:
        checkpoint_path(Path(place), trial).unlink()


def has_checkpoints(place: Place) -> Callable[[str], bool]:
    """Which trials have a checkpoint now; the place is read once."""
    if objects.is_object(place):
        names = {stored.name for stored in objects.stored_below(str(place))}
    else:
        names = {path.name for path in Path(place).glob(f"*{_ENDING}")}
    return lambda trial: file_name(trial) in names


def remove_leftovers(place: Place) -> None:
    """Remove files that were being written when their process died; nobody may be writing now."""
    if objects.is_object(place):
        return  # S3 never shows half an object
    for path in Path(place).glob(f"{_WRITING}*"):
        path.unlink(missing_ok=True)


def checkpoint_path(directory: Path, trial: str) -> Path:
    """The file of a trial."""
    return directory / file_name(trial)


def file_name(trial: str) -> str:
    """What a trial's checkpoint is called; keys are made safe for file names."""
    return re.sub(r"[^A-Za-z0-9.+_-]", "_", trial) + _ENDING


def _address(place: Place, trial: str) -> str:
    return f"{str(place).rstrip('/')}/{file_name(trial)}"

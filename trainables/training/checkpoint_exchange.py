"""Which checkpoint does a trial of several ranks go on from?

Where all nodes share storage every rank sees the same one. Where they do not, it lies on the node
whose rank wrote it, perhaps with older ones on others: the ranks compare what they see, and the
newest is sent to those that lack it, a piece at a time into a file, so that no rank holds it all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainables.checkpoints import checkpoint_file, read_checkpoint
from trainables.settings import TrialSpec
from trainables.world import PIECE_BYTES, World


def newest_checkpoint(
    spec: TrialSpec, world: World, warn: Callable[[str], None] = lambda text: None
) -> dict[str, Any] | None:
    """The newest checkpoint of the trial that any of its ranks sees, on all of them.

    Collective: every rank calls it. One of another training under the same name, left on a node by
    a study that was deleted since, counts as none; so does a damaged one, which `warn` is told of.

    Raises:
        OSError: Whether there is one cannot be told: S3 or the disk does not answer.
    """
    with checkpoint_file(spec.checkpoint_dir, spec.trial) as path:
        payload = None if path is None else _readable(path, warn)
        if payload is not None and payload.get("training") != spec.training_key():
            payload = None
        epoch = -1 if payload is None else int(payload["epoch"])
        epochs = _of_all(world, epoch)
        newest = max(epochs)
        if min(epochs) == newest:
            return payload
        source = epochs.index(newest)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "checkpoint.pt")
            _send(world, path if world.rank == source else None, copy, keep=epoch < newest)
            return payload if epoch == newest else read_checkpoint(copy)


def _readable(path: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """A checkpoint's content; None when it is damaged, in whatever way torch finds that out."""
    try:
        return read_checkpoint(path)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        warn(f"its checkpoint is damaged ({type(error).__name__}: {reason[:200]})")
        return None


def _of_all(world: World, number: int) -> list[int]:
    """Each rank's number, in rank order."""
    numbers = torch.zeros(world.size, dtype=torch.int64, device=world.device)
    numbers[world.rank] = number
    world.sum_(numbers)
    return [int(n) for n in numbers]


def _send(world: World, source: Path | None, copy: Path, *, keep: bool) -> None:
    """Send one rank's file (`source` is None on the others) to the ranks that `keep` a copy."""
    total = sum(_of_all(world, source.stat().st_size if source else 0))
    with copy.open("wb") as written:
        for start in range(0, total, PIECE_BYTES):
            count = min(PIECE_BYTES, total - start)
            piece = np.zeros(count, dtype=np.uint8)
            if source is not None:
                piece = np.fromfile(source, dtype=np.uint8, count=count, offset=start)
            sent = torch.from_numpy(piece).to(world.device)
            world.sum_(sent)  # to zeros: what arrives is what one rank gave
            if keep:
                written.write(sent.cpu().numpy().tobytes())

"""Exchange of checkpoints between ranks, so that all continue from the newest one.

If all nodes share storage, every rank reads the same checkpoint. Otherwise the checkpoint is on the
node whose rank wrote it, and other nodes may have older ones. The ranks compare epochs and the
newest checkpoint is sent to the ranks without it, piece by piece into a file, so that no rank has
to hold it in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainables.config import TrialSpec
from trainables.distributed.world import TRANSFER_PIECE_BYTES, World
from trainables.training.checkpoints import local_checkpoint_file, read_checkpoint
from trainables.utils.precision_names import PRECISIONS, Precision


def load_newest_checkpoint(
    spec: TrialSpec,
    world: World,
    warn: Callable[[str], None] = lambda text: None,
    *,
    precision: Precision | None = None,
) -> dict[str, Any] | None:
    """Return the newest checkpoint of the trial on any rank; None if no rank has one.

    Collective: every rank must call it, and all ranks receive the same checkpoint. A checkpoint of
    a different training under the same name, left on a node by a deleted study, is ignored.

    Args:
        spec: The trial.
        world: The ranks of the trial.
        warn: Called with a message if a checkpoint is damaged, which is then ignored.
        precision: Precision in which the training continues; None accepts any.

    Raises:
        OSError: If S3 or the disk does not respond, so that it is unknown whether one exists.
    """
    keys = [spec.training_key(p) for p in (PRECISIONS if precision is None else [precision])]
    with local_checkpoint_file(spec.checkpoint_dir, spec.trial) as path:
        payload = None if path is None else _read_or_warn(path, warn)
        if payload is not None and payload.get("training") not in keys:
            if payload.get("training") in [spec.training_key(p) for p in PRECISIONS]:
                warn(f"the checkpoint was trained in another precision than {precision}")
            payload = None
        epoch = -1 if payload is None else int(payload["epoch"])
        epochs = _all_gather_int(world, epoch)
        newest = max(epochs)
        if min(epochs) == newest:
            return payload
        source = epochs.index(newest)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "checkpoint.pt")
            _broadcast_file(
                world, path if world.rank == source else None, copy, keep=epoch < newest
            )
            return payload if epoch == newest else read_checkpoint(copy)


def _read_or_warn(path: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """Return a checkpoint's content; warn and return None if it is damaged."""
    try:
        return read_checkpoint(path)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        warn(f"the checkpoint is damaged ({type(error).__name__}: {reason[:200]})")
        return None


def _all_gather_int(world: World, number: int) -> list[int]:
    """Return each rank's number, in rank order."""
    numbers = torch.zeros(world.size, dtype=torch.int64, device=world.device)
    numbers[world.rank] = number
    world.all_reduce_sum_(numbers)
    return [int(n) for n in numbers]


def _broadcast_file(world: World, source: Path | None, copy: Path, *, keep: bool) -> None:
    """Send one rank's file (`source` is None on the others) to the ranks with `keep`."""
    total = sum(_all_gather_int(world, source.stat().st_size if source else 0))
    with copy.open("wb") as file:
        for start in range(0, total, TRANSFER_PIECE_BYTES):
            count = min(TRANSFER_PIECE_BYTES, total - start)
            piece = np.zeros(count, dtype=np.uint8)
            if source is not None:
                piece = np.fromfile(source, dtype=np.uint8, count=count, offset=start)
            buffer = torch.from_numpy(piece).to(world.device)
            world.all_reduce_sum_(buffer)  # all other ranks hold zeros, so this is a broadcast
            if keep:
                file.write(buffer.cpu().numpy().tobytes())

"""A few processes that form gloo groups, started once and used by every test that needs ranks."""

from __future__ import annotations

import multiprocessing as mp
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainables.world import Alone, Group, World

SIZE = 4
WORLDS = (1, 2, 3, 4)
CPU = torch.device("cpu")


class RankPool:
    """Runs a function on the first `size` ranks at once: `pool.run(2, function, *args)`.

    The function is called as `function(world, *args)` and must be importable; the results come
    back in rank order.
    """

    def __init__(self, folder: Path) -> None:
        context = mp.get_context("forkserver")  # which imports torch once for all ranks
        context.set_forkserver_preload(["tests.trainables.rank_cases"])
        self._pipes, self._processes = [], []
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, str(folder / "store"), theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            assert pipe.recv() == "ready"

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        for pipe in self._pipes[:size]:
            pipe.send((size, function, args))
        return self._answers(size)

    def alone(
        self, function: Callable[..., dict[str, Any]], items: dict[str, Any], *args: Any
    ) -> dict[str, Any]:
        """`function(alone, part, *args)` for parts of the items, each by a process of its own."""
        for rank, pipe in enumerate(self._pipes):
            pipe.send((1, function, (dict(list(items.items())[rank::SIZE]), *args)))
        return {key: value for part in self._answers(SIZE) for key, value in part.items()}

    def _answers(self, size: int) -> list[Any]:
        answers = []
        for rank, pipe in enumerate(self._pipes[:size]):
            if not pipe.poll(300):
                raise AssertionError(f"rank {rank} of {size} does not answer")
            answers.append(pipe.recv())
        errors = [error for error, _ in answers if error]
        assert not errors, errors[0]
        return [result for _, result in answers]

    def close(self) -> None:
        for process in self._processes:  # leaving politely takes gloo seconds
            process.kill()
            process.join(20)


def _serve(rank: int, store: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, SIZE),  # type: ignore[attr-defined]
        rank=rank,
        world_size=SIZE,
        timeout=timedelta(seconds=90),
    )
    worlds: dict[int, World] = {}
    for size in WORLDS:
        group = dist.new_group(list(range(size)), timeout=timedelta(seconds=90))
        if size == 1:
            worlds[size] = Alone(CPU)
        elif rank < size:
            worlds[size] = Group(group, device=CPU)
    pipe.send("ready")
    while True:
        size, function, args = pipe.recv()
        try:
            pipe.send(("", function(worlds[size], *args)))
        except Exception:
            pipe.send((traceback.format_exc(), None))

"""Processes that form gloo groups, started once for all tests that need several ranks."""

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

from trainables.distributed.world import ProcessGroupWorld, SingleProcessWorld, World

N_RANKS = 4
WORLD_SIZES = (1, 2, 3, 4)
CPU = torch.device("cpu")


class RankPool:
    """Runs a function on the first `size` ranks at once: `pool.run(2, function, *args)`.

    The function is called as `function(world, *args)` and must be importable; `run` returns the
    results in rank order.
    """

    def __init__(self, folder: Path) -> None:
        context = mp.get_context("forkserver")  # imports torch once for all ranks
        context.set_forkserver_preload(["tests.support.rank_cases"])
        self._pipes, self._processes = [], []
        for rank in range(N_RANKS):
            pipe, rank_pipe = context.Pipe()
            process = context.Process(
                target=_serve_rank, args=(rank, str(folder / "store"), rank_pipe), daemon=True
            )
            process.start()
            rank_pipe.close()
            self._pipes.append(pipe)
            self._processes.append(process)
        for pipe in self._pipes:
            assert pipe.recv() == "ready"

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return the results of `function(world, *args)` on the first `size` ranks."""
        for pipe in self._pipes[:size]:
            pipe.send((size, function, args))
        return self._collect_results(size)

    def run_single(
        self, function: Callable[..., dict[str, Any]], items: dict[str, Any], *args: Any
    ) -> dict[str, Any]:
        """Return the results of `function(world, items, *args)` in worlds of one process.

        The processes share the items: each of them works on a part.
        """
        for rank, pipe in enumerate(self._pipes):
            pipe.send((1, function, (dict(list(items.items())[rank::N_RANKS]), *args)))
        return {
            key: value for part in self._collect_results(N_RANKS) for key, value in part.items()
        }

    def _collect_results(self, size: int) -> list[Any]:
        replies = []
        for rank, pipe in enumerate(self._pipes[:size]):
            if not pipe.poll(300):
                raise AssertionError(f"rank {rank} of {size} does not reply")
            replies.append(pipe.recv())
        errors = [error for error, _ in replies if error]
        assert not errors, errors[0]
        return [result for _, result in replies]

    def close(self) -> None:
        """Kill the ranks; a regular exit takes gloo several seconds."""
        for process in self._processes:
            process.kill()
            process.join(20)


def _serve_rank(rank: int, store: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, N_RANKS),  # type: ignore[attr-defined]
        rank=rank,
        world_size=N_RANKS,
        timeout=timedelta(seconds=90),
    )
    worlds: dict[int, World] = {}
    for size in WORLD_SIZES:
        group = dist.new_group(list(range(size)), timeout=timedelta(seconds=90))
        if size == 1:
            worlds[size] = SingleProcessWorld(CPU)
        elif rank < size:
            worlds[size] = ProcessGroupWorld(group, device=CPU)
    pipe.send("ready")
    while True:
        size, function, args = pipe.recv()
        try:
            pipe.send(("", function(worlds[size], *args)))
        except Exception:
            pipe.send((traceback.format_exc(), None))

"""Ranks in processes of this machine, without Ray: nccl on GPUs, gloo on CPUs."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainables.distributed.world import ProcessGroupWorld

RANK_TIMEOUT_SECONDS = 300.0


class RankProcessError(RuntimeError):
    """A rank failed or did not answer in time."""


def run_on_ranks(
    function: Callable[..., Any],
    n_ranks: int,
    device_type: str,
    *args: Any,
    timeout_seconds: float = RANK_TIMEOUT_SECONDS,
) -> list[Any]:
    """Return the results of `function(world, *args)` on every rank, in rank order.

    Args:
        function: An importable function.
        n_ranks: World size; every rank has a process and, on `cuda`, a GPU of its own.
        device_type: `cuda` or `cpu`.
        args: Further arguments.
        timeout_seconds: Time after which ranks that have not answered are killed.

    Raises:
        RankProcessError: If a rank fails, exits or does not answer in time.
    """
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with tempfile.TemporaryDirectory() as folder:
        pipes: list[Connection] = []
        processes = []
        for rank in range(n_ranks):
            pipe, rank_pipe = context.Pipe()
            process = context.Process(
                target=_run_rank,
                args=(rank, n_ranks, device_type, str(Path(folder, "store")), rank_pipe),
            )
            process.start()
            rank_pipe.close()
            pipe.send((function, args))
            pipes.append(pipe)
            processes.append(process)
        try:
            return _collect_results(pipes, time.monotonic() + timeout_seconds)
        finally:
            for process in processes:
                process.kill()  # a regular exit of a process group takes seconds
                process.join()


def _collect_results(pipes: list[Connection], deadline: float) -> list[Any]:
    """Return the results in rank order; the first failure counts, as other ranks then hang."""
    ranks = {pipe: rank for rank, pipe in enumerate(pipes)}
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [pipe for pipe, rank in ranks.items() if rank not in results]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            missing = ", ".join(str(ranks[pipe]) for pipe in waiting)
            raise RankProcessError(f"ranks {missing} of {len(pipes)} did not answer in time")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            results[ranks[pipe]] = _receive_result(pipe, ranks[pipe])
    return [results[rank] for rank in range(len(pipes))]


def _receive_result(pipe: Connection, rank: int) -> Any:
    try:
        error, result = pickle.loads(pipe.recv_bytes())
    except EOFError:
        raise RankProcessError(f"the process of rank {rank} died") from None
    if error:
        raise RankProcessError(f"rank {rank} failed: {error}")
    return result


def _run_rank(rank: int, size: int, device_type: str, store: str, pipe: Connection) -> None:
    function, args = pipe.recv()
    try:
        device = torch.device(device_type)
        if device_type == "cuda":
            device = torch.device(device_type, rank)
            torch.cuda.set_device(device)
        else:
            torch.set_num_threads(1)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "nccl" if device_type == "cuda" else "gloo",
            store=dist.FileStore(store, size),  # type: ignore[attr-defined]
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=RANK_TIMEOUT_SECONDS),
        )
        reply = ("", function(ProcessGroupWorld(device=device), *args))
    except Exception:
        reply = (traceback.format_exc(), None)
    # The pipe's own pickler would share the memory of tensors, which ends with this process.
    pipe.send_bytes(pickle.dumps(reply))
    pipe.poll(None)  # other ranks may still exchange with this one

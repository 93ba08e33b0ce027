"""Several ranks for one trial: Ray actors inside the trial's own placement group.

They live and die with the trial's actor: Ray ends them when their owner ends, however it ends, and
frees their CPUs and GPUs with the placement group. They stay from trial to trial. The placement
group has one bundle per node; each holds the same number of ranks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import psutil
import ray
import torch.distributed as dist
from ray.exceptions import RayActorError
from ray.util import get_current_placement_group, get_node_ip_address
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainables.settings import TrialSpec
from trainables.worker import Worker, last_line
from trainables.world import Group, default_device

# How long ranks may take to notice that one of them failed before they are ended.
GRACE_SECONDS = 5.0

# How long ranks wait for each other. A node that has just come decodes the data first, while those
# that have them wait; torch's ten minutes (nccl) would end a healthy trial. Ray tells of the dead.
PATIENCE = timedelta(hours=2)


class RanksLostError(Exception):
    """A rank's process died. The trial can start again from its checkpoint, in other ranks."""


class RankGroup:
    """The ranks of a trial, seen from the trial's actor.

    Args:
        resources: `ranks_per_trial`, `nodes_per_trial`, and `cpus_per_trial` and
            `gpus_per_trial`, of which each rank has an equal part.
        rank_class: What runs in each rank's process.
    """

    def __init__(self, resources: Mapping[str, Any], rank_class: type[Any] | None = None) -> None:
        self._resources, self._rank_class = resources, rank_class or Rank
        self._actors: list[Any] = []
        self._spec: TrialSpec | None = None
        self._started = False

    def start(self, spec: TrialSpec) -> None:
        """Take a trial; ranks hear of it with the first step."""
        self._spec, self._started = spec, False

    def step(self) -> dict[str, Any]:
        """One epoch on all ranks; the first rank's report, or that of a rank that failed.

        Raises:
            RanksLostError: A rank's process died. All ranks are ended.
        """
        assert self._spec is not None
        try:
            if not self._actors:
                self._create()
            if not self._started:
                ray.get([actor.start.remote(self._spec.to_dict()) for actor in self._actors])
                self._started = True
            reports = self._reports()
        except RayActorError as error:
            self.close()
            raise RanksLostError(f"a rank of the trial died: {last_line(error)}") from None
        return self._verdict(reports)

    def close(self) -> None:
        """End every rank."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._started = [], False

    def _create(self) -> None:
        group = get_current_placement_group()
        if group is None:
            raise RuntimeError("ranks need a trial with a placement group, but there is none.")
        ranks = int(self._resources["ranks_per_trial"])
        per_bundle = ranks // int(self._resources.get("nodes_per_trial", 1))
        rank_class = ray.remote(self._rank_class)
        self._actors = [
            rank_class.options(
                num_cpus=float(self._resources.get("cpus_per_trial", 0)) / ranks,
                num_gpus=float(self._resources.get("gpus_per_trial", 0)) / ranks,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=rank // per_bundle
                ),
            ).remote(rank, ranks)
            for rank in range(ranks)
        ]
        self._join()

    def _join(self) -> None:
        """Form a process group, anew if there was one."""
        address = ray.get(self._actors[0].meeting_point.remote())
        ray.get([actor.join.remote(*address) for actor in self._actors])
        self._started = False

    def _reports(self) -> dict[int, dict[str, Any]]:
        """Each rank's report. Once one failed the others are not waited for long: they may hang."""
        ranks = {actor.step.remote(): rank for rank, actor in enumerate(self._actors)}
        waiting, reports = list(ranks), {}
        timeout = None
        while waiting:
            done, waiting = ray.wait(waiting, timeout=timeout)
            if not done:
                break
            reports[ranks[done[0]]] = report = ray.get(done[0])
            if report["state"] in ("failed", "lost"):
                timeout = GRACE_SECONDS
        return reports

    def _verdict(self, reports: dict[int, dict[str, Any]]) -> dict[str, Any]:
        broken = [report.pop("broken", False) for report in reports.values()]
        failed = [reports[rank] for rank in sorted(reports) if reports[rank]["state"] == "failed"]
        complete = len(reports) == len(self._actors) and not any(broken)
        if not failed and complete and all(r["state"] != "lost" for r in reports.values()):
            return reports[0]
        if not failed:
            self.close()
            raise RanksLostError(next(r["error"] for r in reports.values() if r["error"]))
        try:
            if complete:
                self._join()  # they may have failed at different points of an exchange
        except Exception:
            complete = False
        if not complete:
            self.close()
        return failed[0]


class Rank:
    """One rank's process."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._store: Any = None
        self._worker: Worker | None = None

    def meeting_point(self) -> tuple[str, int]:
        """Open a store that the ranks meet at, on this node's own address only."""
        address = str(get_node_ip_address())
        with socket.create_server((address, 0)) as server:
            port = int(server.getsockname()[1])
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=os.dup(server.fileno()),
            )
        return address, port

    def join(self, address: str, port: int) -> None:
        """Form the process group with the other ranks: nccl on GPUs, gloo else."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._worker = None
        device = default_device()
        interface = interface_of(str(get_node_ip_address()))
        if interface:  # a host name may resolve to an address that other nodes cannot reach
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        store = self._store
        if self._rank > 0:
            store = dist.TCPStore(address, port)  # type: ignore[attr-defined]
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=self._rank,
            world_size=self._size,
            timeout=PATIENCE,
        )
        self._worker = Worker(Group(device=device))

    def start(self, spec: Mapping[str, Any]) -> None:
        """Take a trial."""
        assert self._worker is not None
        self._worker.start(TrialSpec.from_dict(spec))

    def step(self) -> dict[str, Any]:
        """One epoch; the exchange with the other ranks keeps them together.

        The report says, too, whether this process can train another trial.
        """
        assert self._worker is not None
        return {**self._worker.step(), "broken": self._worker.is_broken}


def interface_of(address: str) -> str | None:
    """The network interface that has an address."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return str(name)
    return None

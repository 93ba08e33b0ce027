"""Ranks of a trial: Ray actors inside the trial's placement group.

The actor that runs the trial owns its rank actors: Ray ends them when the owner ends, for whatever
reason, and frees their CPUs and GPUs with the placement group. Rank actors are reused by the next
trial of the same actor. The placement group has one bundle per node; each bundle holds the same
number of ranks.
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

from trainables.actors.worker import TrialWorker, format_error_line
from trainables.config import TrialSpec
from trainables.distributed.world import ProcessGroupWorld, default_device

# Time that ranks have to notice the failure of another rank before they are killed.
RANK_GRACE_SECONDS = 5.0

# Time that ranks wait for each other in an exchange. A node that has just joined decodes the data
# while the other ranks wait, and torch's default of ten minutes (nccl) would end a healthy trial.
# Ray reports dead ranks, so the timeout is not needed to detect them.
RANK_TIMEOUT = timedelta(hours=2)


class RanksLostError(Exception):
    """A rank's process died. The trial can continue from its checkpoint on new ranks."""


class RankGroup:
    """Handle of the trial's actor to the ranks of its trial.

    Args:
        resources: `ranks_per_trial`, `nodes_per_trial`, `cpus_per_trial` and `gpus_per_trial`;
            CPUs and GPUs are divided equally among the ranks.
        rank_class: Class of the rank actors, `RankActor` by default.
    """

    def __init__(self, resources: Mapping[str, Any], rank_class: type[Any] | None = None) -> None:
        self._resources, self._rank_class = resources, rank_class or RankActor
        self._actors: list[Any] = []
        self._spec: TrialSpec | None = None
        self._is_assigned = False

    def assign_trial(self, spec: TrialSpec) -> None:
        """Set the next trial; the ranks receive it with the first step."""
        self._spec, self._is_assigned = spec, False

    def step(self) -> dict[str, Any]:
        """Train one epoch on all ranks; return the first rank's report, or that of a failed rank.

        Raises:
            RanksLostError: If a rank's process died. All ranks are killed.
        """
        assert self._spec is not None
        try:
            if not self._actors:
                self._create_actors()
            if not self._is_assigned:
                ray.get([actor.assign_trial.remote(self._spec.to_dict()) for actor in self._actors])
                self._is_assigned = True
            reports = self._collect_reports()
        except RayActorError as error:
            self.close()
            raise RanksLostError(f"a rank of the trial died: {format_error_line(error)}") from None
        return self._combine_reports(reports)

    def close(self) -> None:
        """Kill all ranks."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._is_assigned = [], False

    def _create_actors(self) -> None:
        group = get_current_placement_group()
        if group is None:
            raise RuntimeError(
                "ranks must be created inside a placement group, but the trial has none"
            )
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
        self._form_process_group()

    def _form_process_group(self) -> None:
        """Form a process group, replacing the previous one."""
        address = ray.get(self._actors[0].open_rendezvous.remote())
        ray.get([actor.join_process_group.remote(*address) for actor in self._actors])
        self._is_assigned = False

    def _collect_reports(self) -> dict[int, dict[str, Any]]:
        """Return the ranks' reports; after a failure wait briefly, since other ranks may hang."""
        ranks = {actor.step.remote(): rank for rank, actor in enumerate(self._actors)}
        waiting, reports = list(ranks), {}
        timeout = None
        while waiting:
            done, waiting = ray.wait(waiting, timeout=timeout)
            if not done:
                break
            reports[ranks[done[0]]] = report = ray.get(done[0])
            if report["state"] in ("failed", "lost"):
                timeout = RANK_GRACE_SECONDS
        return reports

    def _combine_reports(self, reports: dict[int, dict[str, Any]]) -> dict[str, Any]:
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
                # The ranks may have failed at different points of an exchange.
                self._form_process_group()
        except Exception:
            complete = False
        if not complete:
            self.close()
        return failed[0]


class RankActor:
    """Ray actor of one rank."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._store: Any = None
        self._worker: TrialWorker | None = None

    def open_rendezvous(self) -> tuple[str, int]:
        """Open the rendezvous store on this node's own address and return its address and port."""
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

    def join_process_group(self, address: str, port: int) -> None:
        """Join the process group of the trial: nccl on GPUs, gloo otherwise."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._worker = None
        device = default_device()
        interface = find_network_interface(str(get_node_ip_address()))
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
            timeout=RANK_TIMEOUT,
        )
        self._worker = TrialWorker(ProcessGroupWorld(device=device))

    def assign_trial(self, spec: Mapping[str, Any]) -> None:
        """Set the next trial."""
        assert self._worker is not None
        self._worker.assign_trial(TrialSpec.from_dict(spec))

    def step(self) -> dict[str, Any]:
        """Train one epoch together with the other ranks and return the report.

        The report also says whether this process can no longer train a trial (`broken`).
        """
        assert self._worker is not None
        return {**self._worker.step(), "broken": self._worker.device_failed}


def find_network_interface(address: str) -> str | None:
    """Return the name of the network interface with an address, or None."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return str(name)
    return None

"""Ray actor of one rank: its device, its process group and its worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import psutil
import ray
import torch
import torch.distributed as dist
from ray.util import get_node_ip_address

from trainables.actors.rank_devices import Backend, RankPlace
from trainables.actors.worker import TrialWorker
from trainables.config import TrialSpec
from trainables.distributed.world import ProcessGroupWorld
from trainables.utils import heartbeat

# Time that ranks wait for each other in an exchange. A node that has just joined decodes the data
# while the other ranks wait, and torch's default of ten minutes (nccl) would end a healthy trial.
# Ray reports dead ranks, and `RankGroup` finds ranks that hang after the first step.
RANK_TIMEOUT = timedelta(hours=2)

WATCH_GROUP = "watch"
"""Ray's name for the thread that replies while the rank trains."""


class RankActor:
    """Ray actor of one rank."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._backend: Backend = "gloo"
        self._device = torch.device("cpu")
        self._gpu_index = 0
        self._store: Any = None
        self._worker: TrialWorker | None = None
        self._heartbeat = heartbeat.Heartbeat()

    def find_place(self) -> RankPlace:
        """Return where this rank runs and which GPUs Ray gave to it; torch must not be asked."""
        context = ray.get_runtime_context()
        gpu_ids = tuple(context.get_accelerator_ids().get("GPU", ()))
        return RankPlace(context.get_node_id(), socket.gethostname(), gpu_ids)

    def show_gpus(self, visible_gpu_ids: Sequence[str], own_index: int) -> bool:
        """Make GPUs visible to this process; return whether torch sees the rank's own.

        CUDA reads the variable when torch first asks for GPUs, so no call may come before this.
        """
        if visible_gpu_ids:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible_gpu_ids)
        self._gpu_index = own_index
        return torch.cuda.is_available() and torch.cuda.device_count() > own_index

    def set_backend(self, backend: Backend) -> None:
        """Use nccl on the rank's GPU, or gloo on CPUs."""
        self._backend = backend
        if backend == "nccl":
            self._device = torch.device("cuda", self._gpu_index)
            torch.cuda.set_device(self._device)

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
        """Join the process group of the trial."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._worker = None
        set_network_interface(str(get_node_ip_address()))
        store = self._store
        if self._rank > 0:
            store = dist.TCPStore(address, port)  # type: ignore[attr-defined]
        dist.init_process_group(
            self._backend,
            store=store,
            rank=self._rank,
            world_size=self._size,
            timeout=RANK_TIMEOUT,
        )
        world = ProcessGroupWorld(device=self._device)
        self._heartbeat = world.heartbeat
        self._worker = TrialWorker(world)

    def assign_trial(self, spec: Mapping[str, Any]) -> None:
        """Set the next trial."""
        assert self._worker is not None
        self._heartbeat.start_trial()
        self._worker.assign_trial(TrialSpec.from_dict(spec))

    def step(self) -> dict[str, Any]:
        """Train one epoch together with the other ranks and return the report.

        The report also says whether this process can no longer train a trial (`broken`).
        """
        assert self._worker is not None
        return {**self._worker.step(), "broken": self._worker.device_failed}

    @ray.method(concurrency_group=WATCH_GROUP)  # type: ignore[untyped-decorator]
    def measure_progress(self) -> float | None:
        """Return the seconds since the last batch; None while the rank may take any time."""
        return self._heartbeat.seconds_since_beat

    @ray.method(concurrency_group=WATCH_GROUP)  # type: ignore[untyped-decorator]
    def format_stacks(self) -> str:
        """Return what the threads of this process are doing."""
        return f"pid {os.getpid()} on {socket.gethostname()}\n{heartbeat.format_stacks()}"


def set_network_interface(address: str) -> None:
    """Let the backends use the interface of an address, unless the environment names another.

    A host name may resolve to an address that other nodes cannot reach. NCCL takes a name for a
    prefix, so that eth1 would also be eth10, unless it follows an equals sign.
    """
    if interface := find_network_interface(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def find_network_interface(address: str) -> str | None:
    """Return the name of the network interface with an address, or None."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return str(name)
    return None

"""Devices of the ranks of a trial: which GPUs a process sees, and which backend all ranks use.

Ray shows each rank only its own GPU. Here the ranks of a node see each other's GPUs, as in Ray
Train: NCCL needs that to use direct connections between them. The backend follows from the
resources of the trial. What ranks see is only compared, before they wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Backend = Literal["nccl", "gloo"]


@dataclass(frozen=True)
class RankPlace:
    """Where a rank runs.

    Args:
        node_id: Node of the rank.
        host: Host name of the node.
        gpu_ids: GPUs that Ray gave to the rank, as in CUDA_VISIBLE_DEVICES.
    """

    node_id: str
    host: str
    gpu_ids: tuple[str, ...] = ()

    @property
    def gpu_name(self) -> str:
        """The rank's GPU in words."""
        return f"GPU {self.gpu_ids[0] if self.gpu_ids else '?'} on {self.host}"


class UnequalDevicesError(Exception):
    """Some ranks of a trial see their GPUs and others do not.

    Args:
        blind_places: Places of the ranks that see none.
        n_ranks: World size.
    """

    def __init__(self, blind_places: Sequence[RankPlace], n_ranks: int) -> None:
        names = ", ".join(dict.fromkeys(place.gpu_name for place in blind_places))
        super().__init__(
            f"all ranks of a trial must see their GPUs, but {len(blind_places)} of {n_ranks} do "
            f"not ({names}); check the driver and the torch build there"
        )
        self.faulty_gpu = blind_places[0].gpu_name


def share_gpu_ids(places: Sequence[RankPlace]) -> list[tuple[tuple[str, ...], int]]:
    """Return the GPUs that each rank must see, and the position of its own among them.

    A rank sees the GPUs of all ranks on its node, in the same order on all of them. A rank without
    a GPU sees none.
    """
    shared = []
    for place in places:
        same_node = (other for other in places if other.node_id == place.node_id)
        gpu_ids = {gpu for other in same_node for gpu in other.gpu_ids}
        visible = tuple(sorted(gpu_ids, key=lambda gpu: (len(gpu), gpu)))  # 2 before 10
        shared.append((visible, visible.index(place.gpu_ids[0])) if place.gpu_ids else ((), 0))
    return shared


def choose_backend(
    resources: Mapping[str, Any], places: Sequence[RankPlace], sees_gpu: Sequence[bool]
) -> Backend:
    """Return the backend of all ranks of a trial.

    A trial without GPUs uses gloo on CPUs, even where torch sees GPUs. A trial with GPUs uses nccl.
    If torch sees a GPU on none of its ranks (a torch build without CUDA), it trains on CPUs like
    a trial of one rank, and the study warns.

    Raises:
        UnequalDevicesError: If only some ranks see their GPU; with nccl on some ranks and gloo on
            others, they would wait for each other until the timeout.
    """
    if not float(resources.get("gpus_per_trial", 0)) or not any(sees_gpu):
        return "gloo"
    blind_places = [place for place, sees in zip(places, sees_gpu, strict=True) if not sees]
    if blind_places:
        raise UnequalDevicesError(blind_places, len(places))
    return "nccl"

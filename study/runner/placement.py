"""Placement: resource bundles of a trial, and how many trials fit on a cluster."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from study.config.schema import ResourcesSection
from study.errors import StudyError

SLOT_REFRESH_SECONDS = 5.0


def bundle_per_node(resources: ResourcesSection) -> dict[str, float]:
    """Return what a trial takes of each of its nodes."""
    nodes = resources.nodes_per_trial
    parts = {"CPU": resources.cpus_per_trial / nodes, "GPU": resources.gpus_per_trial / nodes}
    return {name: amount for name, amount in parts.items() if amount}


def make_placement_group(resources: ResourcesSection) -> Any:
    """Return the placement group of a trial: one bundle per node, each on a different node.

    The actor of a trial with several ranks needs no resources: it waits for its ranks, in the
    first bundle.
    """
    from ray.tune import PlacementGroupFactory

    head: list[dict[str, float]] = [{}] if resources.ranks_per_trial > 1 else []
    bundles = [bundle_per_node(resources)] * resources.nodes_per_trial
    strategy = "STRICT_SPREAD" if len(bundles) > 1 else "PACK"
    return PlacementGroupFactory([*head, *bundles], strategy=strategy)


def count_fitting_trials(resources: ResourcesSection, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many trials fit on these nodes at once.

    Each node has a capacity of some bundles, and a trial needs `nodes_per_trial` different nodes.
    So t trials fit if the capacities, each capped at t, add up to enough bundles.
    """
    need = bundle_per_node(resources)
    capacities = [
        min(math.floor(node.get(name, 0.0) / amount + 1e-9) for name, amount in need.items())
        for node in nodes
    ]
    nodes_per_trial = resources.nodes_per_trial
    trials = sum(capacities) // nodes_per_trial
    while trials and sum(min(c, trials) for c in capacities) < trials * nodes_per_trial:
        trials -= 1
    return trials


def check_capacity(
    resources: ResourcesSection,
    nodes: Sequence[Mapping[str, float]],
    possible_nodes: Sequence[Mapping[str, float]] | None = (),
) -> None:
    """Raise when a trial fits neither on these nodes nor on those the cluster can grow to.

    Args:
        resources: Resources of a trial.
        nodes: Resources of each node.
        possible_nodes: Resources of each node of the largest possible cluster; None if unknown.

    Raises:
        StudyError: Not even one trial fits; it would wait forever.
    """
    if (
        possible_nodes is None
        or count_fitting_trials(resources, nodes)
        or count_fitting_trials(resources, possible_nodes)
    ):
        return
    raise StudyError(
        f"resources: {describe_shortage(resources, nodes, possible_nodes)}; lower cpus_per_trial, "
        "gpus_per_trial or ranks_per_trial, or use a cluster with larger nodes"
    )


def unused_gpu_warning(resources: ResourcesSection, nodes: Sequence[Mapping[str, float]]) -> str:
    """Return a warning if trials run on GPU nodes without using a GPU; empty if they do not.

    Args:
        resources: Resources of a trial.
        nodes: Resources of each node that trials may run on.
    """
    gpu_nodes = [
        node for node in nodes if node.get("GPU", 0.0) and count_fitting_trials(resources, [node])
    ]
    if resources.gpus_per_trial or not gpu_nodes:
        return ""
    first = gpu_nodes[0]
    cpus = max(1, math.floor(first.get("CPU", 0.0) / first["GPU"]))
    count = "1 node has" if len(gpu_nodes) == 1 else f"{len(gpu_nodes)} nodes have"
    return (
        f"{count} GPUs, but trials do not use them (gpus_per_trial: 0) and train on the CPU; to "
        f"use them, set resources: {{gpus_per_trial: 1, cpus_per_trial: {cpus}}}"
    )


def describe_shortage(
    resources: ResourcesSection,
    nodes: Sequence[Mapping[str, float]],
    possible_nodes: Sequence[Mapping[str, float]] | None = (),
) -> str:
    """Describe what a trial needs and what the cluster has instead."""
    need = bundle_per_node(resources)
    text = (
        f"a trial needs {_count_nodes(resources.nodes_per_trial)} with {_format_bundle(need)}; the "
        f"cluster has {_format_nodes(need, nodes)}"
    )
    if possible_nodes:
        text += f" and can grow to {_format_nodes(need, possible_nodes)}"
    return text


def _format_nodes(need: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str:
    """Group nodes by what they have of the needed resources: `3 nodes with {CPU: 8, GPU: 0}`."""
    if not nodes:
        return "no nodes"
    kinds = Counter(_format_bundle({k: node.get(k, 0.0) for k in need}) for node in nodes)
    return ", ".join(f"{_count_nodes(count)} with {kind}" for kind, count in kinds.items())


def _format_bundle(bundle: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in bundle.items()) + "}"


def _count_nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def list_alive_nodes() -> list[Mapping[str, float]]:
    """Return the resources of each live node of the connected cluster."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def count_lost_nodes() -> int:
    """Return how many nodes the connected cluster has lost since it was started."""
    import ray

    return sum(not node["Alive"] for node in ray.nodes())


def make_slot_counter(
    resources: ResourcesSection, count_held_slots: Callable[[], int] = lambda: 0
) -> Callable[[], int]:
    """Return a function that says how many trials the cluster can run at once.

    It asks Ray again every few seconds, because clusters grow and shrink.

    Args:
        resources: Resources of a trial.
        count_held_slots: Returns how many trials' resources are kept out of use.
    """
    state = {"slots": 1, "until": 0.0}

    def count_slots() -> int:
        if time.monotonic() >= state["until"]:
            state["slots"] = max(1, count_fitting_trials(resources, list_alive_nodes()))
            state["until"] = time.monotonic() + SLOT_REFRESH_SECONDS
        usable = max(0, int(state["slots"]) - count_held_slots())
        return min(usable, resources.max_concurrent or 10**6)

    return count_slots

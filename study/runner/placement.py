"""Where do the processes of a trial go, and how many trials fit?"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from study.errors import StudyError
from study.file import ResourcesSection

REFRESH_SECONDS = 5.0


def bundle(resources: ResourcesSection) -> dict[str, float]:
    """What a trial takes of each of its nodes."""
    nodes = resources.nodes_per_trial
    parts = {"CPU": resources.cpus_per_trial / nodes, "GPU": resources.gpus_per_trial / nodes}
    return {name: amount for name, amount in parts.items() if amount}


def placement(resources: ResourcesSection) -> Any:
    """The placement group of a trial: one bundle per node, each on a node of its own.

    The actor of a trial with several ranks needs nothing itself: it waits for them, in the first
    bundle.
    """
    from ray.tune import PlacementGroupFactory

    head: list[dict[str, float]] = [{}] if resources.ranks_per_trial > 1 else []
    bundles = [bundle(resources)] * resources.nodes_per_trial
    strategy = "STRICT_SPREAD" if len(bundles) > 1 else "PACK"
    return PlacementGroupFactory([*head, *bundles], strategy=strategy)


def fitting(resources: ResourcesSection, nodes: Sequence[Mapping[str, float]]) -> int:
    """How many trials fit on nodes with these resources at once.

    A node can hold so many bundles; a trial needs `nodes_per_trial` nodes, each once. So t trials
    fit if the nodes hold enough bundles when none counts more than t.
    """
    need = bundle(resources)
    room = [
        min(math.floor(node.get(name, 0.0) / amount + 1e-9) for name, amount in need.items())
        for node in nodes
    ]
    wanted = resources.nodes_per_trial
    trials = sum(room) // wanted
    while trials and sum(min(r, trials) for r in room) < trials * wanted:
        trials -= 1
    return trials


def check_room(
    resources: ResourcesSection,
    nodes: Sequence[Mapping[str, float]],
    may_come: Sequence[Mapping[str, float]] | None = (),
) -> None:
    """Raise when a trial fits neither on these nodes nor on those the cluster may grow to.

    Args:
        resources: What a trial takes.
        nodes: What each node has.
        may_come: What each would have if the cluster were as large as it may; None when nobody
            knows what may come.

    Raises:
        StudyError: Not even one trial fits; it would wait for ever.
    """
    if may_come is None or fitting(resources, nodes) or fitting(resources, may_come):
        return
    advice = "lower cpus_per_trial, gpus_per_trial or ranks_per_trial, or "
    advice += "name a cluster with larger nodes"
    raise StudyError(f"resources: {lack(resources, nodes, may_come)}; {advice}")


def idle_gpus(resources: ResourcesSection, nodes: Sequence[Mapping[str, float]]) -> str:
    """In one line, that trials would run on GPU machines without using a GPU; empty if not.

    Args:
        resources: What a trial takes.
        nodes: What each node has that trials may run on.
    """
    room = [node for node in nodes if node.get("GPU", 0.0) and fitting(resources, [node])]
    if resources.gpus_per_trial or not room:
        return ""
    first = room[0]
    cpus = max(1, math.floor(first.get("CPU", 0.0) / first["GPU"]))
    return (
        f"{len(room)} machine(s) that trials run on have GPUs, but a trial takes none "
        "(gpus_per_trial: 0) and trains on processors; to use them: "
        f"resources: {{gpus_per_trial: 1, cpus_per_trial: {cpus}}}"
    )


def lack(
    resources: ResourcesSection,
    nodes: Sequence[Mapping[str, float]],
    may_come: Sequence[Mapping[str, float]] | None = (),
) -> str:
    """What a trial needs, and what there is instead."""
    need = bundle(resources)
    wanted = ", ".join(f"{name} {amount:g}" for name, amount in need.items())
    text = f"a trial needs {resources.nodes_per_trial} node(s) with {wanted} each, but here "
    text += f"is {_listed(need, nodes)}" if nodes else "is none"
    return text + (f", and may grow to {_listed(need, may_come)}" if may_come else "")


def _listed(need: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str:
    """Nodes by what they have of what is needed: `3 with CPU 8, GPU 1; 1 with CPU 0, GPU 0`."""
    kinds = [", ".join(f"{name} {node.get(name, 0.0):g}" for name in need) for node in nodes]
    return "; ".join(f"{count} with {kind}" for kind, count in Counter(kinds).items())


def alive_nodes() -> list[Mapping[str, float]]:
    """What each node of the cluster has."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def nodes_lost() -> int:
    """How many nodes the cluster has lost since it was started."""
    import ray

    return sum(not node["Alive"] for node in ray.nodes())


def slots(resources: ResourcesSection) -> Callable[[], int]:
    """How many trials the cluster can run at once, asked anew every few seconds."""
    state = {"slots": 1, "until": 0.0}

    def ask() -> int:
        if time.monotonic() >= state["until"]:
            state["slots"] = max(1, fitting(resources, alive_nodes()))
            state["until"] = time.monotonic() + REFRESH_SECONDS
        return min(int(state["slots"]), resources.max_concurrent or 10**6)

    return ask

"""How many nodes does a study want of an autoscaling cluster, and when are they let go?

Tune alone would ask for one trial more than runs, so that a cluster grows node by node. Here all
that the study can use is asked for at once, less when fewer trials are left, nothing at the end.
`python -m study.tuning.growth` on the head takes back what a study that was killed had asked for.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from study.file import ResourcesSection
from study.tuning.placement import bundle, fitting

CLUSTER_FILE = Path("~/ray_bootstrap_config.yaml")
"""Where `ray up` leaves the cluster's file on its head."""

UPDATE_SECONDS = 10.0
Ask = Callable[[list[dict[str, float]]], None]


def possible_nodes(config: Mapping[str, Any]) -> list[Mapping[str, float]]:
    """What each node would have if the cluster were as large as its file allows."""
    head = config.get("head_node_type")
    workers: list[Mapping[str, float]] = []
    heads: list[Mapping[str, float]] = []
    limit = int(config.get("max_workers", 0))
    for name, node in (config.get("available_node_types") or {}).items():
        resources = node.get("resources") or {}
        if name == head:
            heads.append(resources)
        workers += [resources] * int(node.get("max_workers", 0 if name == head else limit))
    # Larger ones first, as far as the limit over all types goes.
    workers.sort(key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), reverse=True)
    return heads + workers[:limit]


def wanted(
    resources: ResourcesSection, trials: int, nodes: Sequence[Mapping[str, float]]
) -> list[dict[str, float]]:
    """What to ask for so that as many of these trials as can run at once.

    Never more than the cluster can have: a request that cannot be met as a whole is not met at all.
    """
    count = min(trials, fitting(resources, nodes), resources.max_concurrent or trials)
    return [bundle(resources)] * (count * resources.nodes_per_trial)


class Growth:
    """Keeps the autoscaler told what a study can use.

    Args:
        resources: What a trial takes.
        nodes: The largest the cluster can be.
        ask: Tells the autoscaler; every request replaces the one before.
        clock: Seconds.
    """

    def __init__(
        self,
        resources: ResourcesSection,
        nodes: Sequence[Mapping[str, float]],
        ask: Ask,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources, self._nodes, self._ask, self._clock = resources, nodes, ask, clock
        self._asked: list[dict[str, float]] = []
        self._next = 0.0

    def update(self, trials_left: int) -> None:
        """Ask for what so many trials can use, if that is something else than before."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + UPDATE_SECONDS
        request = wanted(self._resources, trials_left, self._nodes)
        if request != self._asked:
            self._asked = request
            self._ask(request)

    def close(self) -> None:
        """Let the nodes go."""
        if self._asked:
            self._asked = []
            self._ask([])


@contextlib.contextmanager
def growth(resources: ResourcesSection) -> Iterator[Growth]:
    """Growth of the cluster this process is connected to; without `ray up` it asks for nothing."""
    path = CLUSTER_FILE.expanduser()
    nodes = possible_nodes(yaml.safe_load(path.read_text("utf-8"))) if path.exists() else []
    grown = Growth(resources, nodes, _ask_autoscaler)
    try:
        yield grown
    finally:
        with contextlib.suppress(Exception):  # Ray may be gone, and with it the request
            grown.close()


def _ask_autoscaler(bundles: list[dict[str, float]]) -> None:
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


def _release() -> None:
    import ray

    ray.init(address="auto", logging_level=logging.ERROR, log_to_driver=False)
    _ask_autoscaler([])


if __name__ == "__main__":
    _release()

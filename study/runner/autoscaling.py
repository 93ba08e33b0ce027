"""Autoscaling: resource demands of the studies that share a `ray up` cluster.

Tune alone requests one trial more than runs, so a cluster would grow node by node. A study
requests everything it can use at once, less when fewer trials are left, and nothing at its end.
Ray keeps a single request for a whole cluster, so each study publishes its demand in the key-value
store of Ray's head, and every study requests the sum of all demands.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from study.config.schema import ResourcesSection
from study.runner.placement import bundle_per_node, count_fitting_trials

CLUSTER_CONFIG_PATH = Path("~/ray_bootstrap_config.yaml")
"""Where `ray up` stores the cluster file on the head."""

DEMAND_UPDATE_SECONDS = 10.0
KV_NAMESPACE = b"dml-study"
DEMAND_KEY_PREFIX = b"wish/"  # the name that earlier versions use
RequestBundles = Callable[[list[dict[str, float]]], None]


@dataclass(frozen=True)
class ResourceDemand:
    """Resources that a study can use at once.

    Args:
        bundle: Resources of a trial on each of its nodes.
        nodes: Nodes that a trial spans.
        trials: Number of trials.
    """

    bundle: Mapping[str, float]
    nodes: int
    trials: int


class DemandStore(Protocol):
    """Storage for the demands of all studies of a cluster."""

    def publish_demand(self, demand: ResourceDemand | None) -> None:
        """Replace this study's demand; None removes it."""

    def list_demands(self) -> list[ResourceDemand]:
        """Return the demands of the running studies, in the same order for every reader."""


def parse_possible_nodes(config: Mapping[str, Any]) -> list[Mapping[str, float]]:
    """Return the resources of each node if the cluster were as large as its file allows.

    The file of an on-premises cluster does not state resources: its nodes are empty mappings.
    """
    head = config.get("head_node_type")
    workers: list[Mapping[str, float]] = []
    heads: list[Mapping[str, float]] = []
    limit = int(config.get("max_workers", 0))
    for name, node in (config.get("available_node_types") or {}).items():
        resources = node.get("resources") or {}
        if name == head:
            heads.append(resources)
        workers += [resources] * int(node.get("max_workers", 0 if name == head else limit))
    # The largest nodes first, up to the limit over all node types.
    workers.sort(key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), reverse=True)
    return heads + workers[:limit]


def read_possible_nodes() -> list[Mapping[str, float]]:
    """Return the possible nodes of the cluster whose head this is; empty on other machines."""
    path = CLUSTER_CONFIG_PATH.expanduser()
    return parse_possible_nodes(yaml.safe_load(path.read_text("utf-8"))) if path.exists() else []


def possible_nodes_or_none(alive: int) -> list[Mapping[str, float]] | None:
    """Return the resources of each possible node; None if they are unknown.

    Args:
        alive: Number of nodes that are up. An on-premises file only states how many nodes there
            will be; when all are up, no other node can come.
    """
    nodes = read_possible_nodes()
    if nodes and all(nodes):
        return nodes
    return [] if nodes and alive >= len(nodes) else None


def compute_demand(
    resources: ResourcesSection, trials: int, nodes: Sequence[Mapping[str, float]]
) -> ResourceDemand:
    """Return what a study could use at once if it had the cluster to itself."""
    count = min(trials, count_fitting_trials(resources, nodes), resources.max_concurrent or trials)
    return ResourceDemand(bundle_per_node(resources), resources.nodes_per_trial, count)


def combine_demands(
    demands: Sequence[ResourceDemand], nodes: Sequence[Mapping[str, float]]
) -> list[dict[str, float]]:
    """Return the bundles to request so that the studies get trials in turn, as many as fit.

    Ray does not serve a request that exceeds the largest possible cluster at all, so the result
    never does.
    """
    free = [dict(node) for node in nodes]
    bundles: list[dict[str, float]] = []
    left = [(demand, demand.trials) for demand in demands if demand.trials]
    while left:
        remaining = []
        for demand, count in left:
            if _allocate_trial(free, demand):
                bundles += [dict(demand.bundle)] * demand.nodes
                remaining += [(demand, count - 1)] if count > 1 else []
        left = remaining
    return bundles


def _allocate_trial(free: list[dict[str, float]], demand: ResourceDemand) -> bool:
    """Take one trial's resources from the nodes with the most capacity, if it fits."""
    capacity = {
        i: min(n.get(k, 0.0) / v for k, v in demand.bundle.items()) for i, n in enumerate(free)
    }
    fits = [i for i in sorted(capacity, key=lambda i: -capacity[i]) if capacity[i] >= 1 - 1e-9]
    if len(fits) < demand.nodes:
        return False
    # A trial on one node takes the node where it fits most tightly and leaves larger nodes free.
    chosen = fits[-1:] if demand.nodes == 1 else fits[: demand.nodes]
    for i in chosen:
        free[i] = {k: v - demand.bundle.get(k, 0.0) for k, v in free[i].items()}
    return True


class AutoscalerClient:
    """Requests nodes for all studies of a cluster.

    Args:
        resources: Resources of one trial of this study.
        nodes: The largest possible cluster; empty disables all requests.
        demand_store: Holds the demands of all studies.
        request_bundles: Sends a request to the autoscaler; each request replaces the last one.
        count_trials_left: Returns how many trials this study has left.
        clock: Seconds.
    """

    def __init__(
        self,
        resources: ResourcesSection,
        nodes: Sequence[Mapping[str, float]],
        demand_store: DemandStore,
        request_bundles: RequestBundles,
        *,
        count_trials_left: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources, self._nodes, self._clock = resources, nodes, clock
        self._demand_store, self._request_bundles = demand_store, request_bundles
        self._count_trials_left = count_trials_left
        self._last_request: list[dict[str, float]] = []
        self._next_update = 0.0

    def update(self) -> None:
        """Request what all studies can use now, if that has changed; at most every few seconds.

        Two studies that update at the same moment may miss each other; the next update corrects it.
        """
        if not self._nodes or self._clock() < self._next_update:
            return
        self._next_update = self._clock() + DEMAND_UPDATE_SECONDS
        demand = compute_demand(self._resources, self._count_trials_left(), self._nodes)
        self._demand_store.publish_demand(demand)
        request = combine_demands(self._demand_store.list_demands(), self._nodes)
        if request != self._last_request:
            self._last_request = request
            self._request_bundles(request)

    def close(self) -> None:
        """Release the nodes that no other study demands."""
        if self._nodes:
            self._demand_store.publish_demand(None)
            self._last_request = []
            self._request_bundles(combine_demands(self._demand_store.list_demands(), self._nodes))
            self._nodes = []


class RayDemandStore:
    """Demands in the key-value store of the connected Ray cluster, one entry per Ray job.

    The entry of a study whose driver is gone is ignored and removed: Ray knows which jobs run.

    Args:
        study: Name of the study.
    """

    def __init__(self, study: str) -> None:
        self._study = study

    def publish_demand(self, demand: ResourceDemand | None) -> None:
        """Replace this study's demand; None removes it."""
        from ray.experimental import internal_kv as store

        key = DEMAND_KEY_PREFIX + _current_job_id().encode()
        if demand is None:
            store._internal_kv_del(key, namespace=KV_NAMESPACE)
            return
        entry = json.dumps({"study": self._study, **asdict(demand)}).encode()
        store._internal_kv_put(key, entry, overwrite=True, namespace=KV_NAMESPACE)

    def list_demands(self) -> list[ResourceDemand]:
        """Return the demands of running studies, by job; remove the entries of the others."""
        from ray.experimental import internal_kv as store

        entries = self._read_entries()
        live = _live_job_ids() if set(entries) - {_current_job_id()} else set(entries)
        for key in set(entries) - live:
            store._internal_kv_del(DEMAND_KEY_PREFIX + key.encode(), namespace=KV_NAMESPACE)
        chosen = [entries[key] for key in sorted(live & set(entries))]
        return [ResourceDemand(e["bundle"], e["nodes"], e["trials"]) for e in chosen]

    def remove_demands(self) -> None:
        """Remove this study's entries, whichever process wrote them."""
        from ray.experimental import internal_kv as store

        for key, entry in self._read_entries().items():
            if entry["study"] == self._study:
                store._internal_kv_del(DEMAND_KEY_PREFIX + key.encode(), namespace=KV_NAMESPACE)

    def _read_entries(self) -> dict[str, dict[str, Any]]:
        from ray.experimental import internal_kv as store

        entries = {}
        for key in store._internal_kv_list(DEMAND_KEY_PREFIX, namespace=KV_NAMESPACE):
            entry = store._internal_kv_get(key, namespace=KV_NAMESPACE)
            if entry:  # a study may have ended in between
                entries[bytes(key).removeprefix(DEMAND_KEY_PREFIX).decode()] = json.loads(entry)
        return entries


@contextlib.contextmanager
def open_autoscaler_client(
    study: str, resources: ResourcesSection, count_trials_left: Callable[[], int]
) -> Iterator[AutoscalerClient]:
    """Open a client for the connected cluster; outside `ray up` clusters it requests nothing."""
    client = AutoscalerClient(
        resources,
        read_possible_nodes(),
        RayDemandStore(study),
        _request_from_ray,
        count_trials_left=count_trials_left,
    )
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):  # Ray may be gone, and the request with it
            client.close()


def release_demand(study: str) -> None:
    """Withdraw the demand of a study that was killed; other studies keep theirs."""
    demand_store = RayDemandStore(study)
    demand_store.remove_demands()
    _request_from_ray(combine_demands(demand_store.list_demands(), read_possible_nodes()))


def _request_from_ray(bundles: list[dict[str, float]]) -> None:
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


def _current_job_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_job_id())


def _live_job_ids() -> set[str]:
    from ray._private.state import jobs

    return {job["JobID"] for job in jobs() if not job["IsDead"]}


def main(study: str) -> None:
    """Run `python -m study.runner.autoscaling NAME` on a head: release the study's demand."""
    import ray

    ray.init(address="auto", logging_level=logging.ERROR, log_to_driver=False)
    release_demand(study)


if __name__ == "__main__":
    main(sys.argv[1])

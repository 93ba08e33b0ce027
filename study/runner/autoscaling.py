"""How many nodes does a study want of an autoscaling cluster, and when are they let go?

Tune alone would ask for one trial more than runs, so that a cluster grows node by node. Here all
that the study can use is asked for at once, less when fewer trials are left, nothing at the end.
Ray keeps one request for a whole cluster, so studies that share one leave what each wants on its
head (see `board`), and whoever asks, asks for all of them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from study.file import ResourcesSection
from study.tuning.board import ClusterBoard, Wish
from study.tuning.placement import bundle, fitting

CLUSTER_FILE = Path("~/ray_bootstrap_config.yaml")
"""Where `ray up` leaves the cluster's file on its head."""

UPDATE_SECONDS = 10.0
Ask = Callable[[list[dict[str, float]]], None]


class Board(Protocol):
    """Where the studies of a cluster leave what they want."""

    def publish(self, wish: Wish | None) -> None:
        """Replace what this study wants."""

    def wishes(self) -> list[Wish]:
        """What the studies that live want, in the same order for whoever asks."""


def possible_nodes(config: Mapping[str, Any]) -> list[Mapping[str, float]]:
    """What each node would have if the cluster were as large as its file allows.

    The file of one's own machines does not say what they have: those nodes are empty here.
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
    # Larger ones first, as far as the limit over all types goes.
    workers.sort(key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), reverse=True)
    return heads + workers[:limit]


def nodes_of_file() -> list[Mapping[str, float]]:
    """The same for the cluster whose head this is; nothing elsewhere."""
    path = CLUSTER_FILE.expanduser()
    return possible_nodes(yaml.safe_load(path.read_text("utf-8"))) if path.exists() else []


def nodes_that_may_come(alive: int) -> list[Mapping[str, float]] | None:
    """What each node would have, if anyone knows; None if not.

    Args:
        alive: How many there are. The file of one's own machines says no more than how many will
            come: when all are there, nothing else will.
    """
    nodes = nodes_of_file()
    if nodes and all(nodes):
        return nodes
    return [] if nodes and alive >= len(nodes) else None


def wish_of(resources: ResourcesSection, trials: int, nodes: Sequence[Mapping[str, float]]) -> Wish:
    """What a study can use at once, on a cluster of its own."""
    count = min(trials, fitting(resources, nodes), resources.max_concurrent or trials)
    return Wish(bundle(resources), resources.nodes_per_trial, count)


def together(
    wishes: Sequence[Wish], nodes: Sequence[Mapping[str, float]]
) -> list[dict[str, float]]:
    """What to ask for so that the studies have as many trials as fit, turn by turn.

    Never more than the cluster can have: a request that cannot be met as a whole is not met at all.
    """
    free = [dict(node) for node in nodes]
    asked: list[dict[str, float]] = []
    left = [(wish, wish.trials) for wish in wishes if wish.trials]
    while left:
        again = []
        for wish, count in left:
            if _take(free, wish):
                asked += [dict(wish.bundle)] * wish.nodes
                again += [(wish, count - 1)] if count > 1 else []
        left = again
    return asked


def _take(free: list[dict[str, float]], wish: Wish) -> bool:
    """Take a trial's part of as many nodes as it spans, those with the most room; if they exist."""
    room = {i: min(n.get(k, 0.0) / v for k, v in wish.bundle.items()) for i, n in enumerate(free)}
    fits = [i for i in sorted(room, key=lambda i: -room[i]) if room[i] >= 1 - 1e-9]
    if len(fits) < wish.nodes:
        return False
    # A trial on one node goes where it fits most tightly, which leaves the large ones whole.
    chosen = fits[-1:] if wish.nodes == 1 else fits[: wish.nodes]
    for i in chosen:
        free[i] = {k: v - wish.bundle.get(k, 0.0) for k, v in free[i].items()}
    return True


class Growth:
    """Keeps the autoscaler told what the studies of a cluster can use.

    Args:
        resources: What a trial of this study takes.
        nodes: The largest the cluster can be.
        board: What the others want.
        ask: Tells the autoscaler; every request replaces the one before, whoever made it.
        clock: Seconds.
    """

    def __init__(
        self,
        resources: ResourcesSection,
        nodes: Sequence[Mapping[str, float]],
        board: Board,
        ask: Ask,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources, self._nodes, self._clock = resources, nodes, clock
        self._board, self._ask = board, ask
        self._asked: list[dict[str, float]] = []
        self._next = 0.0

    def update(self, trials_left: int) -> None:
        """Ask for what so many trials can use, and the other studies, if that has changed.

        Two studies that ask at the same moment may overlook each other; the next time sees both.
        """
        if not self._nodes or self._clock() < self._next:
            return
        self._next = self._clock() + UPDATE_SECONDS
        self._board.publish(wish_of(self._resources, trials_left, self._nodes))
        request = together(self._board.wishes(), self._nodes)
        if request != self._asked:
            self._asked = request
            self._ask(request)

    def close(self) -> None:
        """Let the nodes go that no other study wants."""
        if self._nodes:
            self._board.publish(None)
            self._asked = []
            self._ask(together(self._board.wishes(), self._nodes))
            self._nodes = []


@contextlib.contextmanager
def growth(study: str, resources: ResourcesSection) -> Iterator[Growth]:
    """Growth of the cluster this process is connected to; without `ray up` it asks for nothing."""
    grown = Growth(resources, nodes_of_file(), ClusterBoard(study), _ask_autoscaler)
    try:
        yield grown
    finally:
        with contextlib.suppress(Exception):  # Ray may be gone, and with it the request
            grown.close()


def _ask_autoscaler(bundles: list[dict[str, float]]) -> None:
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


def release(study: str) -> None:
    """Take back what a study that was killed had asked for; the others keep theirs."""
    board = ClusterBoard(study)
    board.forget()
    _ask_autoscaler(together(board.wishes(), nodes_of_file()))


def main(study: str) -> None:
    """`python -m study.tuning.growth NAME` on the head."""
    import ray

    ray.init(address="auto", logging_level=logging.ERROR, log_to_driver=False)
    release(study)


if __name__ == "__main__":
    main(sys.argv[1])

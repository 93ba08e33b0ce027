"""What becomes of checkpoints on nodes that share no storage?

Each node then keeps those of the trials that ran there, at the path the study has on its own
machine. Small tasks, each pinned to a node, drop what the study no longer needs while it runs, and
at its end bring what it keeps to its own folder. The nodes may share the folder all the same (a
common home): a mark in it says whose it is.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

PIECE_BYTES = 16 * 2**20
FORGET_SECONDS = 20.0
"""Least time between two rounds of forgetting: a task may have to start a process."""

WAIT_SECONDS = 60.0
MARK = ".of-the-study"


class NodeFiles:
    """The checkpoint folders of the nodes besides this one.

    Args:
        folder: The study's own; None when all nodes share storage: then there is nothing to do.
        file_name: Names a trial's file.
        there: The folder as the nodes see it; None for the same path.
        nodes: The living nodes besides this one, by Ray's number.
        clock: Seconds.
    """

    def __init__(
        self,
        folder: Path | None,
        file_name: Callable[[str], str],
        *,
        there: Path | None = None,
        nodes: Callable[[], list[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._there = folder, there or folder
        self._file_name, self._nodes, self._clock = file_name, nodes or other_nodes, clock
        self._forgotten: list[str] = []
        self._next = 0.0

    def forget(self, trial: str) -> None:
        """Drop a trial's checkpoint wherever it is, with the next round."""
        if self._folder is not None:
            self._forgotten.append(self._file_name(trial))

    def update(self) -> None:
        """To be called often: sends a round when it is time and there is something to forget."""
        if self._forgotten and self._clock() >= self._next:
            self._next = self._clock() + FORGET_SECONDS
            names, self._forgotten = self._forgotten, []
            for node in self._nodes():
                _on(node, drop).remote(str(self._there), names)

    def bring_home(self, trials: Sequence[str]) -> list[str]:
        """Fetch these trials' checkpoints, then clear the nodes; gives the trials that have none.

        For the end of a study: the nodes' folders hold nothing it needs afterwards.
        """
        if self._folder is None:
            return []
        nodes = self._nodes()
        for name in [self._file_name(trial) for trial in trials] if nodes else []:
            if not (self._folder / name).exists():
                self._fetch(nodes, name)
        if nodes:
            self._clear(nodes)
        return [t for t in trials if not (self._folder / self._file_name(t)).exists()]

    def _fetch(self, nodes: Sequence[str], name: str) -> None:
        """The file as it was written last, should several nodes have one."""
        import ray

        path = str(Path(str(self._there), name))
        asked = {_on(node, written).remote(path): node for node in nodes}
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=WAIT_SECONDS)
        found = []
        for answer in done:
            with contextlib.suppress(ray.exceptions.RayError):  # the node is gone
                found.append((ray.get(answer), asked[answer]))
        when, node = max(found, default=(0.0, ""))
        if not when:
            return
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(dir=self._folder, prefix=".writing-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in _on(node, pieces, num_returns="streaming").remote(path, PIECE_BYTES):
                    file.write(ray.get(piece))
            Path(new).replace(self._folder / name)
        except ray.exceptions.RayError:  # the node is gone in mid-sentence
            Path(new).unlink()

    def _clear(self, nodes: Sequence[str]) -> None:
        import ray

        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        mark, token = self._folder / MARK, secrets.token_hex(8)
        mark.write_text(token, encoding="ascii")
        try:
            asked = [_on(node, clear).remote(str(self._there), token) for node in nodes]
            ray.wait(asked, num_returns=len(asked), timeout=WAIT_SECONDS)
        finally:
            mark.unlink()


def other_nodes() -> list[str]:
    """The living nodes besides this one, by Ray's number."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own]


def _on(node: str, function: Callable[..., Any], **options: Any) -> Any:
    """A task that runs on this very node, once, and takes nothing of what trials need."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pinned = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(
        num_cpus=0, max_retries=0, scheduling_strategy=pinned, **options
    )


# What runs on the nodes


def drop(folder: str, names: Sequence[str]) -> None:
    """Remove some files."""
    for name in names:
        Path(folder, name).unlink(missing_ok=True)


def clear(folder: str, token: str) -> None:
    """Remove all checkpoints, unless the folder is the one of the study itself."""
    mark = Path(folder, MARK)
    if mark.exists() and mark.read_text(encoding="ascii") == token:
        return
    for path in Path(folder).glob("*.pt"):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        Path(folder).rmdir()


def written(path: str) -> float:
    """When a file was last written; 0 if there is none."""
    return Path(path).stat().st_mtime if Path(path).exists() else 0.0


def pieces(path: str, size: int) -> Iterator[bytes]:
    """A file, at most so many bytes at a time."""
    with Path(path).open("rb") as file:
        while piece := file.read(size):
            yield piece

"""Node checkpoints: checkpoints on nodes that do not share storage.

Each node then keeps the checkpoints of the trials that ran there, at the same path as on the
study's machine. Small Ray tasks, each pinned to a node, remove what the study no longer needs
while it runs, and fetch what it keeps at its end. If the nodes share the folder after all (a
common home directory), a mark file in it shows that it is the study's own.
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

CHUNK_BYTES = 16 * 2**20
CLEANUP_INTERVAL_SECONDS = 20.0
"""Least time between two clean-ups: a task may have to start a process."""

NODE_TIMEOUT_SECONDS = 60.0
OWNER_MARK_FILE = ".of-the-study"
PARTIAL_PREFIX = ".writing-"
"""Beginning of the names that `trainables.training.checkpoints` gives to files while it writes."""


class NodeCheckpoints:
    """The checkpoint folders of the other nodes.

    Args:
        folder: The study's checkpoint folder; None if all nodes share storage, which disables
            everything here.
        file_name: Returns the file name of a trial's checkpoint.
        there: The folder's path on the other nodes; None for the same path.
        nodes: Returns the Ray ids of the other live nodes.
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
        self._folder, self._remote_folder = folder, there or folder
        self._file_name, self._list_nodes, self._clock = file_name, nodes or list_other_nodes, clock
        self._files_to_drop: list[str] = []
        self._next_cleanup = 0.0

    def forget_checkpoint(self, trial: str) -> None:
        """Remove a trial's checkpoint from all nodes with the next clean-up."""
        if self._folder is not None:
            self._files_to_drop.append(self._file_name(trial))

    def update(self) -> None:
        """Start a clean-up when it is due and there is something to remove; call often."""
        if self._files_to_drop and self._clock() >= self._next_cleanup:
            self._next_cleanup = self._clock() + CLEANUP_INTERVAL_SECONDS
            names, self._files_to_drop = self._files_to_drop, []
            for node in self._list_nodes():
                _task_on_node(node, drop_files).remote(str(self._remote_folder), names)

    def fetch_checkpoints(self, trials: Sequence[str]) -> list[str]:
        """Fetch these trials' checkpoints, then clear the nodes' folders, at a study's end.

        Returns:
            The trials whose checkpoint was not found.
        """
        if self._folder is None:
            return []
        nodes = self._list_nodes()
        for name in [self._file_name(trial) for trial in trials] if nodes else []:
            if not (self._folder / name).exists():
                self._fetch_file(nodes, name)
        if nodes:
            self._clear_nodes(nodes)
        return [t for t in trials if not (self._folder / self._file_name(t)).exists()]

    def _fetch_file(self, nodes: Sequence[str], name: str) -> None:
        """Fetch the newest copy of a file."""
        import ray

        path = str(Path(str(self._remote_folder), name))
        tasks = {_task_on_node(node, read_modification_time).remote(path): node for node in nodes}
        done, _ = ray.wait(list(tasks), num_returns=len(tasks), timeout=NODE_TIMEOUT_SECONDS)
        copies = []
        for task in done:
            with contextlib.suppress(ray.exceptions.RayError):  # the node is gone
                copies.append((ray.get(task), tasks[task]))
        modified, node = max(copies, default=(0.0, ""))
        if not modified:
            return
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(dir=self._folder, prefix=PARTIAL_PREFIX)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in _task_on_node(node, read_chunks, num_returns="streaming").remote(
                    path, CHUNK_BYTES
                ):
                    file.write(ray.get(piece))
            Path(new).replace(self._folder / name)
        except ray.exceptions.RayError:  # the node was lost during the transfer
            Path(new).unlink()

    def _clear_nodes(self, nodes: Sequence[str]) -> None:
        import ray

        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        mark, token = self._folder / OWNER_MARK_FILE, secrets.token_hex(8)
        mark.write_text(token, encoding="ascii")
        try:
            tasks = [
                _task_on_node(node, clear_folder).remote(str(self._remote_folder), token)
                for node in nodes
            ]
            ray.wait(tasks, num_returns=len(tasks), timeout=NODE_TIMEOUT_SECONDS)
        finally:
            mark.unlink()


def list_other_nodes() -> list[str]:
    """Return the Ray ids of the live nodes other than this one."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own]


def _task_on_node(node: str, function: Callable[..., Any], **options: Any) -> Any:
    """Return a task pinned to a node, without retries and without resources that trials need."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pinned = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(
        num_cpus=0, max_retries=0, scheduling_strategy=pinned, **options
    )


# Ray tasks


def drop_files(folder: str, names: Sequence[str]) -> None:
    """Remove checkpoints from a folder, also those that a process writes at this moment."""
    for name in names:
        for path in Path(folder).glob(f"{PARTIAL_PREFIX}{name}-*"):
            path.unlink(missing_ok=True)
        Path(folder, name).unlink(missing_ok=True)


def clear_folder(folder: str, token: str) -> None:
    """Remove all checkpoints, unless the folder is the study's own."""
    mark = Path(folder, OWNER_MARK_FILE)
    if mark.exists() and mark.read_text(encoding="ascii") == token:
        return
    for pattern in (f"{PARTIAL_PREFIX}*", "*.pt"):
        for path in Path(folder).glob(pattern):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        Path(folder).rmdir()


def read_modification_time(path: str) -> float:
    """Return when a file was last written; 0 if it does not exist."""
    return Path(path).stat().st_mtime if Path(path).exists() else 0.0


def read_chunks(path: str, size: int) -> Iterator[bytes]:
    """Yield a file in chunks of at most `size` bytes."""
    with Path(path).open("rb") as file:
        while piece := file.read(size):
            yield piece

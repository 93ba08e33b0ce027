"""Checkpoints on nodes that share no storage: dropped while a study runs, fetched at its end.

The node is the one of a real Ray here, but with a folder of its own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import ray

from study.runner import node_checkpoints
from study.runner.node_checkpoints import (
    OWNER_MARK_FILE,
    NodeCheckpoints,
    clear_folder,
    list_other_nodes,
)
from trainables.training.checkpoints import checkpoint_filename

pytestmark = pytest.mark.ray
GONE = "0" * 56


def test_nodes_are_tidied_and_what_is_kept_comes_home(
    tmp_path: Path, shared_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_checkpoints, "CHUNK_BYTES", 100)
    here, there, now = tmp_path / "here", tmp_path / "there", [0.0]
    for folder in (here, there):
        folder.mkdir()
    content = {name: os.urandom(250) for name in ("a", "b", "c", "d")}
    for name in ("a", "b", "c"):
        (there / checkpoint_filename(name)).write_bytes(content[name])
    for name in ("a", "c"):  # as `save_checkpoint` names them while it writes
        (there / f".writing-{checkpoint_filename(name)}-x").touch()
    (here / checkpoint_filename("d")).write_bytes(content["d"])
    node = ray.get_runtime_context().get_node_id()
    files = NodeCheckpoints(
        here, checkpoint_filename, there=there, nodes=lambda: [GONE, node], clock=lambda: now[0]
    )
    files.forget_checkpoint("a")
    files.update()
    wait_gone(there / checkpoint_filename("a"))
    assert sorted(path.name for path in there.iterdir()) == [".writing-c.pt-x", "b.pt", "c.pt"]
    files.forget_checkpoint("c")
    files.update()
    assert files._files_to_drop == [checkpoint_filename("c")], "a round waits for its time"
    assert files.fetch_checkpoints(["b", "d", "e"]) == ["e"], "no node has it"
    assert sorted(path.name for path in here.iterdir()) == ["b.pt", "d.pt"]
    for name in ("b", "d"):
        assert (here / checkpoint_filename(name)).read_bytes() == content[name]
    assert not there.exists()
    assert list_other_nodes() == []


def wait_gone(path: Path) -> None:
    deadline = time.monotonic() + 60
    while path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_folder_that_the_nodes_share_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    (tmp_path / OWNER_MARK_FILE).write_text("mine")
    clear_folder(str(tmp_path), "mine")
    assert (tmp_path / "a.pt").exists()
    clear_folder(str(tmp_path), "of another run")
    assert not (tmp_path / "a.pt").exists()
    clear_folder(str(tmp_path / "none"), "mine")


def test_shared_storage_needs_none_of_it() -> None:
    files = NodeCheckpoints(None, checkpoint_filename, nodes=pytest.fail)
    files.forget_checkpoint("a")
    files.update()
    assert files.fetch_checkpoints(["a"]) == []

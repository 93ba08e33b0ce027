"""Checkpoints on nodes that share no storage: dropped while a study runs, fetched at its end.

The node is the one of a real Ray here, but with a folder of its own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import ray

from study.tuning import node_files
from study.tuning.node_files import MARK, NodeFiles, clear, other_nodes
from trainables.checkpoints import file_name

pytestmark = pytest.mark.ray
GONE = "0" * 56


def test_nodes_are_tidied_and_what_is_kept_comes_home(
    tmp_path: Path, shared_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_files, "PIECE_BYTES", 100)
    here, there, now = tmp_path / "here", tmp_path / "there", [0.0]
    for folder in (here, there):
        folder.mkdir()
    content = {name: os.urandom(250) for name in ("a", "b", "c", "d")}
    for name in ("a", "b", "c"):
        (there / file_name(name)).write_bytes(content[name])
    (here / file_name("d")).write_bytes(content["d"])
    node = ray.get_runtime_context().get_node_id()
    files = NodeFiles(
        here, file_name, there=there, nodes=lambda: [GONE, node], clock=lambda: now[0]
    )
    files.forget("a")
    files.update()
    wait_gone(there / file_name("a"))
    files.forget("c")
    files.update()
    assert files._forgotten == [file_name("c")], "a round waits for its time"
    assert files.bring_home(["b", "d", "e"]) == ["e"], "nobody has it"
    assert sorted(path.name for path in here.iterdir()) == ["b.pt", "d.pt"]
    for name in ("b", "d"):
        assert (here / file_name(name)).read_bytes() == content[name]
    assert not there.exists()
    assert other_nodes() == []


def wait_gone(path: Path) -> None:
    deadline = time.monotonic() + 60
    while path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_folder_that_the_nodes_share_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    (tmp_path / MARK).write_text("mine")
    clear(str(tmp_path), "mine")
    assert (tmp_path / "a.pt").exists()
    clear(str(tmp_path), "of another run")
    assert not (tmp_path / "a.pt").exists()
    clear(str(tmp_path / "none"), "mine")


def test_shared_storage_needs_none_of_it() -> None:
    files = NodeFiles(None, file_name, nodes=pytest.fail)
    files.forget("a")
    files.update()
    assert files.bring_home(["a"]) == []

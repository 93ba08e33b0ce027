"""A report folder contains one complete report, whatever happened to earlier ones."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from study.utils import atomic_folder


def write_report(out: Path, *names: str, text: str = "new") -> None:
    with atomic_folder.replacing_folder(out) as new:
        for name in ("index.html", *names):
            (new / name).write_text(text, "utf-8")


def list_files(out: Path) -> set[str]:
    return {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}


def test_leftovers_of_killed_processes_are_removed_and_those_of_running_ones_kept(
    tmp_path: Path,
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    leftover = atomic_folder.staging_path(tmp_path, dead.pid)
    alive = atomic_folder.staging_path(tmp_path, os.getppid())
    elsewhere = Path(str(leftover).replace(socket.gethostname(), "another-host"))
    for path in (leftover, alive, elsewhere):
        path.mkdir(parents=True)
    write_report(tmp_path, "figures/a.png")
    assert [path.exists() for path in (leftover, alive, elsewhere)] == [False, True, True]
    assert not atomic_folder.staging_path(tmp_path, os.getpid()).exists()


def test_the_next_report_cleans_up_after_an_interrupted_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(tmp_path, "figures/a.png", "figures/b.png", text="old")
    moved: list[str] = []

    def breaks(source: Path, target: Path) -> None:
        if len(moved) == 2:
            raise OSError("the disk is gone")
        moved.append(target.name)
        source.replace(target)

    with monkeypatch.context() as patch:
        patch.setattr(atomic_folder, "_move_file", breaks)
        with pytest.raises(OSError, match="gone"):
            write_report(tmp_path, "figures/c.png", "figures/d.png")
    write_report(tmp_path, "figures/e.png")
    assert list_files(tmp_path) == {"index.html", "manifest.json", "figures/e.png"}
    listed = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    assert listed == {"files": ["figures/e.png"]}


def test_the_figures_folder_may_be_on_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated by the error that renaming raises there."""
    rename = Path.replace

    def far(self: Path, target: Path) -> Path:
        if self.parent != Path(target).parent and Path(target).parent.name == "figures":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", far)
    write_report(tmp_path, "figures/a.png", text="old")
    write_report(tmp_path, "figures/a.png")
    assert (tmp_path / "figures" / "a.png").read_text("utf-8") == "new"
    assert list_files(tmp_path) == {"index.html", "manifest.json", "figures/a.png"}


def test_the_first_report_can_be_locked(tmp_path: Path) -> None:
    with atomic_folder.replacing_folder(tmp_path) as new:
        assert (tmp_path / atomic_folder.MANIFEST_FILE).exists()
        (new / "index.html").write_text("first", "utf-8")
    with atomic_folder.report_lock(tmp_path):
        assert (tmp_path / "index.html").read_text("utf-8") == "first"

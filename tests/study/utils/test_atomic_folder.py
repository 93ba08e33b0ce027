"""A report's folder holds one report, whatever happened to those before it."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from study.report import folder


def put(out: Path, *names: str, text: str = "new") -> None:
    with folder.replaced(out) as new:
        for name in ("index.html", *names):
            (new / name).write_text(text, "utf-8")


def held(out: Path) -> set[str]:
    return {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}


def test_what_a_killed_report_left_is_removed_and_a_running_ones_is_not(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = folder.unfinished(tmp_path, dead.pid)
    alive = folder.unfinished(tmp_path, os.getppid())
    elsewhere = Path(str(left).replace(socket.gethostname(), "another-host"))
    for path in (left, alive, elsewhere):
        path.mkdir(parents=True)
    put(tmp_path, "figures/a.png")
    assert [path.exists() for path in (left, alive, elsewhere)] == [False, True, True]
    assert not folder.unfinished(tmp_path, os.getpid()).exists()


def test_a_report_broken_off_while_it_is_put_in_place_is_tidied_up_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "figures/a.png", "figures/b.png", text="old")
    moved: list[str] = []

    def breaks(source: Path, target: Path) -> None:
        if len(moved) == 2:
            raise OSError("the disk is gone")
        moved.append(target.name)
        source.replace(target)

    with monkeypatch.context() as patch:
        patch.setattr(folder, "_move", breaks)
        with pytest.raises(OSError, match="gone"):
            put(tmp_path, "figures/c.png", "figures/d.png")
    put(tmp_path, "figures/e.png")
    assert held(tmp_path) == {"index.html", "manifest.json", "figures/e.png"}
    listed = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    assert listed == {"files": ["figures/e.png"]}


def test_figures_may_lead_to_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As renaming answers there: by experience, since a test has one file system."""
    rename = Path.replace

    def far(self: Path, target: Path) -> Path:
        if self.parent != Path(target).parent and Path(target).parent.name == "figures":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", far)
    put(tmp_path, "figures/a.png", text="old")
    put(tmp_path, "figures/a.png")
    assert (tmp_path / "figures" / "a.png").read_text("utf-8") == "new"
    assert held(tmp_path) == {"index.html", "manifest.json", "figures/a.png"}


def test_the_first_report_can_be_waited_for(tmp_path: Path) -> None:
    with folder.replaced(tmp_path) as new:
        assert (tmp_path / folder.MANIFEST).exists()
        (new / "index.html").write_text("first", "utf-8")
    with folder.still(tmp_path):
        assert (tmp_path / "index.html").read_text("utf-8") == "first"

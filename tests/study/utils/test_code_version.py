"""The version of the code is a commit, or that of the installed package."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

from study.utils.code_version import detect_code_version


def _git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_repository_gives_its_commit_and_whether_files_were_changed(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "a.py").write_text("1", encoding="utf-8")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "first")
    commit = _git(tmp_path, "rev-parse", "HEAD")[:12]
    assert detect_code_version(tmp_path) == commit
    (tmp_path / "notes.txt").write_text("not code", encoding="utf-8")
    assert detect_code_version(tmp_path) == commit
    (tmp_path / "study" / "b.py").write_text("2", encoding="utf-8")
    assert detect_code_version(tmp_path) == f"{commit}-dirty"


def test_an_installed_package_gives_its_version(tmp_path: Path) -> None:
    """Even within an unrelated repository, as in a virtual environment."""
    _git(tmp_path, "init", "-q")
    (tmp_path / "site-packages").mkdir()
    assert detect_code_version(tmp_path / "site-packages") == version("dml-study")
    assert detect_code_version(tmp_path) == version("dml-study")  # a repository without a commit

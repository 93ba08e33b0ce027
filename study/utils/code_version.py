"""Version of the code that runs a study: a git commit or a package version."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

VERSIONED_PACKAGES = ("study", "trainables", "search_spaces")
GIT_TIMEOUT_SECONDS = 10.0


def detect_code_version(root: Path | None = None) -> str:
    """Return the commit of the repository with the packages, else the installed version.

    Args:
        root: Folder that contains the packages; None for the folder of this one.

    Returns:
        `0123456789ab`, followed by `-dirty` if files of the packages differ from the commit; or
        `0.1.0`.
    """
    root = root or Path(__file__).resolve().parents[2]
    # Only a repository whose root is this folder: the packages may be installed in a virtual
    # environment inside an unrelated repository.
    commit = _run_git(root, "rev-parse", "HEAD") if (root / ".git").exists() else ""
    if commit:
        changed = _run_git(root, "status", "--porcelain", "--", *VERSIONED_PACKAGES)
        return commit[:12] + ("-dirty" if changed or changed is None else "")
    try:
        return version("dml-study")
    except PackageNotFoundError:
        return "unknown"


def _run_git(root: Path, *arguments: str) -> str | None:
    """Return the output of a git command; None if git is missing or fails."""
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None

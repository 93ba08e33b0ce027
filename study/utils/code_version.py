"""Which code ran a study?"""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("study", "trainables", "search_spaces")
SECONDS = 10.0


def code_version(root: Path | None = None) -> str:
    """The commit of the repository the packages run from, else the installed package's version.

    Args:
        root: Folder of the packages; None for where this one is.

    Returns:
        `0123456789ab`, with `-dirty` behind it when files of the packages differ from the commit;
        or `0.1.0`.
    """
    root = root or Path(__file__).resolve().parents[1]
    # Only a repository of these packages: one that a virtual environment lies in is another's.
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else ""
    if commit:
        changed = _git(root, "status", "--porcelain", "--", *PACKAGES)
        return commit[:12] + ("-dirty" if changed or changed is None else "")
    try:
        return version("dml-study")
    except PackageNotFoundError:
        return "unknown"


def _git(root: Path, *words: str) -> str | None:
    """What git answers; None when there is no git, or it refuses."""
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

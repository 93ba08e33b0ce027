"""Commands and environments for child processes that run a module of this project.

Children must not import from the current directory: it may contain a folder `study` or a file
`random.py` that is not ours.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_command(module: str) -> list[str]:
    """Return the command that runs a module; run our own with `child_environment`."""
    return [sys.executable, "-P", "-m", module]


def child_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with our packages on the path, and more variables."""
    top = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [top, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **variables}

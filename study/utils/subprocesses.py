"""How is one of our modules started in a process of its own?

With our code: the folder that we are called from may hold a `study` of its own, or a `random.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def module(name: str) -> list[str]:
    """The command that runs a module; `surroundings` go with one of ours."""
    return [sys.executable, "-P", "-m", name]


def surroundings(**variables: str) -> dict[str, str]:
    """Our environment, in which the module is found, with further variables."""
    top = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [top, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **variables}

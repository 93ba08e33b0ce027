"""Where studies and decoded data live on this machine, unless told otherwise."""

from __future__ import annotations

import os
from pathlib import Path

from trainables.hosts import of_this_host

ROOT_VARIABLE = "DML_STUDY_HOME"
CACHE_VARIABLE = "DML_STUDY_CACHE"


def studies_root(given: Path | None = None) -> Path:
    """The folder of all studies: as given, as the environment says, or `./studies`."""
    return Path(given or os.environ.get(ROOT_VARIABLE, "studies")).absolute()


def cache_dir() -> Path:
    """Where this node keeps decoded data: shared by all studies."""
    return Path(of_this_host(str(cache_of_each_host())))


def cache_of_each_host() -> Path:
    """The same for whatever host a trial runs on: `{host}` in it stands for that host's name."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "dml-study"
    return Path(os.environ.get(CACHE_VARIABLE, default)).absolute()

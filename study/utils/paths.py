"""Default folders of studies and of decoded data on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from trainables.utils.host_paths import expand_host

STUDIES_ROOT_VARIABLE = "DML_STUDY_HOME"
CACHE_DIR_VARIABLE = "DML_STUDY_CACHE"


def studies_root(given: Path | None = None) -> Path:
    """Return the folder of all studies: the given one, `$DML_STUDY_HOME`, or `./studies`."""
    return Path(given or os.environ.get(STUDIES_ROOT_VARIABLE, "studies")).absolute()


def cache_dir() -> Path:
    """Return the folder of decoded data on this node; all studies share it."""
    return Path(expand_host(str(cache_dir_template())))


def cache_dir_template() -> Path:
    """Return the cache folder for any host; `{host}` in it stands for the host's name."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "dml-study"
    return Path(os.environ.get(CACHE_DIR_VARIABLE, default)).absolute()

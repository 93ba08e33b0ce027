"""Cluster files, study files and studies on a head, for the tests of `study.cluster`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from study.cluster.head_process import DetachedRun, _prepare_command
from study.cluster.templates import render_onprem_file
from study.config.plan import save_plan
from tests.support.scheduler_simulation import make_plan

SSH_KEY = Path("/keys/id_ed25519")
STUDY_FILE = "name: far\ndata: glyphs\nlosses: [triplet]\nsearch: {trials: 2, repeats: 1}\n"


def make_onprem_file(**changes: Any) -> str:
    """Return a cluster file of two on-premises machines, with options replaced by `changes`."""
    options: dict[str, Any] = {
        "name": "own",
        "hosts": ["h0", "10.0.0.2"],
        "user": "me",
        "key": SSH_KEY,
    }
    return render_onprem_file(**{**options, **changes})


def prepare_command(text: str, *options: str) -> tuple[list[str], str]:
    """Return the command and message with which the head runs a study file sent to it."""
    run = DetachedRun("far")
    run.folder.mkdir(parents=True, exist_ok=True)
    return _prepare_command(run, list(options), text)


def save_study(folder: Path, name: str, uri: str | None) -> None:
    """Write the plan of a study on the head."""
    study_dir = folder / "studies" / name
    study_dir.mkdir(parents=True)
    save_plan(make_plan(name=name, tracking={"uri": uri}), study_dir)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail after 30 s."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)

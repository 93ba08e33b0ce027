"""A study file that came to the head: complete it, and compare it with the one that is known."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.cluster.places import CHECKPOINTS_VARIABLE, TRACKING_VARIABLE
from study.errors import StudyError
from study.file import StudyFile
from study.folders import studies_root


@dataclass(frozen=True)
class Sent:
    """A study file with what this cluster has where the file says nothing: as read, and as text."""

    file: StudyFile
    text: str


def completed(content: str, folder: Path) -> Sent:
    """Check and complete a file; `folder` is private, since the file may hold a password.

    Raises:
        StudyError: It is not valid here.
    """
    from study.planning import build_plan
    from study.read_file import merged_text, read_study_file

    with tempfile.TemporaryDirectory(dir=folder) as private:
        path = Path(private, "sent.yaml")
        path.write_text(content, encoding="utf-8")
        file, given = read_study_file(path), []
        if file.tracking.uri is None and os.environ.get(TRACKING_VARIABLE):
            given.append(f"tracking.uri={os.environ[TRACKING_VARIABLE]}")
        if file.storage.checkpoints is None and os.environ.get(CHECKPOINTS_VARIABLE):
            given.append(f"storage.checkpoints={os.environ[CHECKPOINTS_VARIABLE]}")
        plan = build_plan(read_study_file(path, given))
        return Sent(plan.file, merged_text(path, given))


def known_file(name: str, last: Path) -> StudyFile | None:
    """The file of the study of this name; before it has a plan the one it was started with."""
    from study.plan import PLAN_FILE, load_plan
    from study.read_file import read_study_file

    home = studies_root() / name
    if (home / PLAN_FILE).exists():
        return load_plan(home).file
    return read_study_file(last) if last.exists() else None


def refuse_another(sent: Sent, known: StudyFile | None, problem: str) -> None:
    """Raise when a file does not say what the study of its name was started with.

    Raises:
        StudyError: Names a key that differs; not its values, which may be passwords.
    """
    if known is None or sent.file == known:
        return
    key = _difference(sent.file.model_dump(mode="json"), known.model_dump(mode="json"))
    name = sent.file.name
    raise StudyError(
        f"study {name} {problem} (`{key}` differs), so this one would be ignored: follow it with "
        f"`study status {name} --follow`, or choose another name (--set name=...)"
    )


def _difference(new: Any, old: Any, path: str = "") -> str:
    if isinstance(new, dict) and isinstance(old, dict):
        for key in sorted({*new, *old}):
            if new.get(key) != old.get(key):
                return _difference(new.get(key), old.get(key), f"{path}.{key}".lstrip("."))
    return path

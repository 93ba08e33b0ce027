"""Submitted study file: completed on the head and compared with the file of the same study."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.cluster.constants import CHECKPOINTS_VARIABLE, TRACKING_VARIABLE
from study.config.schema import StudyConfig
from study.errors import StudyError
from study.utils.paths import studies_root


@dataclass(frozen=True)
class SubmittedFile:
    """A study file completed with the cluster's defaults.

    Args:
        file: The validated content.
        text: The content as YAML.
    """

    file: StudyConfig
    text: str


def apply_cluster_defaults(content: str, folder: Path) -> SubmittedFile:
    """Validate a study file and add the cluster's tracking URI and checkpoint storage.

    Args:
        content: Text of the file.
        folder: Private folder for a temporary copy, because the file may contain a password.

    Raises:
        StudyError: The file is not valid on this machine.
    """
    from study.config.loader import load_config, merged_yaml
    from study.config.planner import build_plan

    with tempfile.TemporaryDirectory(dir=folder) as private:
        path = Path(private, "sent.yaml")
        path.write_text(content, encoding="utf-8")
        file, defaults = load_config(path), []
        if file.tracking.uri is None and os.environ.get(TRACKING_VARIABLE):
            defaults.append(f"tracking.uri={os.environ[TRACKING_VARIABLE]}")
        if file.storage.checkpoints is None and os.environ.get(CHECKPOINTS_VARIABLE):
            defaults.append(f"storage.checkpoints={os.environ[CHECKPOINTS_VARIABLE]}")
        plan = build_plan(load_config(path, defaults))
        return SubmittedFile(plan.file, merged_yaml(path, defaults))


def load_current_file(name: str, last: Path) -> StudyConfig | None:
    """Return the file of an existing study, from its plan or else the file it was started with.

    Args:
        name: Name of the study.
        last: File that the study was last started with.
    """
    from study.config.loader import load_config
    from study.config.plan import PLAN_FILE, load_plan

    study_dir = studies_root() / name
    if (study_dir / PLAN_FILE).exists():
        return load_plan(study_dir).file
    return load_config(last) if last.exists() else None


def require_same_file(submitted: SubmittedFile, current: StudyConfig | None, problem: str) -> None:
    """Check that a submitted file equals the file of the existing study.

    Args:
        submitted: The submitted file.
        current: File of the existing study; None if there is no such study.
        problem: What the error message says about the study.

    Raises:
        StudyError: They differ. The message names a key, but no values, which may be passwords.
    """
    if current is None or (file := submitted.file.with_stored_defaults(current)) == current:
        return
    key = _first_difference(file.model_dump(mode="json"), current.model_dump(mode="json"))
    name = file.name
    raise StudyError(
        f"study {name} {problem} (`{key}` differs), and this file would be ignored; follow it with "
        f"`study status {name} --cluster FILE --follow`, or choose another name (--set name=...)"
    )


def _first_difference(new: Any, old: Any, path: str = "") -> str:
    if isinstance(new, dict) and isinstance(old, dict):
        for key in sorted({*new, *old}):
            if new.get(key) != old.get(key):
                return _first_difference(new.get(key), old.get(key), f"{path}.{key}".lstrip("."))
    return path

"""Study files, saved plans and results for tests that run `study ...` in the test process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from study.config.loader import parse_config
from study.config.plan import Plan, save_plan
from study.config.planner import build_plan
from study.trials.job import Job
from study.utils.paths import studies_root

STUDY: dict[str, Any] = {
    "name": "s",
    "data": {"name": "glyphs", "classes": 200, "samples": 6},
    "losses": ["proxy_anchor", "triplet"],
    "training": {"epochs": 2, "batch_size": 32, "embedding_dim": 16},
    "search": {"trials": 3, "repeats": 1},
}


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class ImportedStudy:
    """Folder with the imported study `theirs`, and the output of the import."""

    root: Path
    output: str


@dataclass
class RecordedRuns:
    """Arguments of the calls of `run_and_print`."""

    plans: list[Plan] = field(default_factory=list)
    requests: list[Sequence[Job]] = field(default_factory=list)
    searches: list[bool] = field(default_factory=list)


RunCommand = Callable[..., CommandResult]
"""Type of the fixture `study`, which is called with the arguments of a command."""


def change_study(**changes: Any) -> dict[str, Any]:
    """Return the content of the study file with other values of some top-level keys."""
    return {**STUDY, **changes}


def write_study_file(content: dict[str, Any] | str) -> str:
    """Write my.yaml into the current folder and return its name."""
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    Path("my.yaml").write_text(text, encoding="utf-8")
    return "my.yaml"


def save_study_plan(uri: str | None = None, name: str = "s") -> Path:
    """Save the plan of a study that has not run, below the current folder; return its directory."""
    plan = build_plan(parse_config(change_study(name=name, tracking={"uri": uri})))
    directory = studies_root(None).absolute() / plan.name
    directory.mkdir(parents=True)
    save_plan(plan, directory)
    return directory


def save_image(path: Path, seed: int = 0) -> None:
    """Save an image of random pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def save_image_folder(classes: int, images: int) -> str:
    """Save a folder with one directory per class below the current folder; return its name."""
    for c in range(classes):
        for i in range(images):
            save_image(Path("images") / f"class{c:02d}" / f"{i}.png", seed=100 * c + i)
    return "images"


def save_folder_with_single_image_class() -> str:
    """Save a folder in which one class, class99, has a single image; return its name."""
    save_image(Path("images") / "class99" / "0.png", seed=9999)
    return save_image_folder(20, 3)

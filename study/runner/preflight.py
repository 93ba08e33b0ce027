"""Does the study fit its data? Asked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces.scale import from_unit
from study.errors import StudyError
from study.plan import Plan
from trainables.checkpoints import try_place
from trainables.data.cache import Progress
from trainables.data.dataset import Part
from trainables.data.sampler import epoch_batches
from trainables.training import split_tasks
from trainables.workbench import Bench, open_bench


def open_data(plan: Plan, *, cache_dir: Path, progress: Progress | None = None) -> Bench:
    """Load (or build) the study's data and check that every loss can train on it.

    Raises:
        StudyError: The data set, the backbone or the batches do not work out; one line.
    """
    dataset = {"name": plan.file.data.name, **plan.file.data.options}
    try:
        bench = open_bench(
            dataset, plan.file.backbone.model_dump(), cache_dir=cache_dir, progress=progress
        )
        bench.new_backbone(seed=0, bn_freeze="none")  # an unknown name or a wrong size shows here
        check_classes(plan, bench)
    except (ValueError, OSError) as error:
        raise StudyError(" ".join(str(error).split())) from None
    return bench


def check_tracking(plan: Plan) -> str:
    """Why the server or database that the study names cannot be reached; empty when it can.

    A store in the study's own directory needs no question.

    Raises:
        StudyError: It will not take this study; see `check_store`.
    """
    from study.tracking.probe import check_store

    if plan.file.tracking.uri is None:
        return ""
    return check_store(plan.file.tracking.uri, experiment=plan.name, study_id=plan.study_id)


def check_storage(plan: Plan) -> None:
    """Raise unless the bucket or folder that nodes share takes checkpoints and gives them back.

    Raises:
        StudyError: It does not; one line.
    """
    place = plan.file.storage.checkpoints
    if place is None:
        return
    try:
        try_place(place)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise StudyError(
            f"storage.checkpoints: {place} cannot be written, read and cleared from here: {reason}"
        ) from None


def check_classes(plan: Plan, bench: Bench) -> None:
    """Raise ValueError unless each loss can fill its batches on every fold."""
    tasks = split_tasks(bench.dataset, "validation", plan.file.protocol.folds)
    for part, name in [
        *((task.score, "validation") for task in tasks),
        (bench.dataset.test, "test"),
    ]:
        _something_to_find(part, name)
    for loss in plan.losses:
        for task in tasks:
            try:
                epoch_batches(task.train.labels, **_widest_batch(plan, loss), seed=0)
            except ValueError as error:
                raise ValueError(f"{loss}: {error}") from None


def _widest_batch(plan: Plan, loss: str) -> dict[str, int]:
    """The batch of the space that needs the most classes."""
    settings, _ = plan.settings(loss, plan.example(loss))
    batch_sizes, per_class = [settings.batch_size], [settings.images_per_class]
    for knob, values in (("batch_size", batch_sizes), ("images_per_class", per_class)):
        distribution = plan.spaces[loss].distributions.get(knob)
        if distribution is not None:
            values[:] = [int(from_unit(distribution, u / 16)) for u in range(17)]
    balanced = [n for n in per_class if n > 0]
    return {
        "batch_size": max(batch_sizes),
        "images_per_class": min(balanced) if balanced else 0,
    }


def describe_data(plan: Plan, bench: Bench) -> dict[str, Any]:
    """Counts of a study's data, for people and for the record."""
    data = bench.dataset
    task = split_tasks(data, "validation", plan.file.protocol.folds)[0]
    parts: Mapping[str, np.ndarray[Any, Any]] = {
        "train": task.train.labels,
        "validation": task.score.labels,
        "test": data.test.labels,
    }
    return {
        "name": data.name,
        "fingerprint": data.fingerprint,
        "kind": data.train.kind,
        **{f"{k}_items": len(v) for k, v in parts.items()},
        **{f"{k}_classes": len(np.unique(v)) for k, v in parts.items()},
        "notes": list(bench.notes),
    }


def _something_to_find(part: Part, name: str) -> None:
    """A query finds items of its class; of all queries at least one must have some."""
    asked, found = part.labels, part.labels
    if part.is_query is not None:
        asked, found = part.labels[part.is_query], part.labels[~part.is_query]
    classes, counts = np.unique(found, return_counts=True)
    enough = classes[counts >= (2 if part.is_query is None else 1)]
    if not np.isin(asked, enough).any():
        raise ValueError(
            f"data: no {name} image has another one of its class to find, among "
            f"{len(asked):,} queries and {len(found):,} images to find"
        )

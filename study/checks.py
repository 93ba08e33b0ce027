"""Does the study fit its data? Asked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces.scale import from_unit
from study.errors import StudyError
from study.plan import Plan
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


def check_classes(plan: Plan, bench: Bench) -> None:
    """Raise ValueError unless each loss can fill its batches on every fold."""
    tasks = split_tasks(bench.dataset, "validation", plan.file.protocol.folds)
    _no_lone_classes(bench)
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
    """A query finds gallery items of its class, if there are any."""
    if part.is_query is None:
        return
    shared = np.intersect1d(part.labels[part.is_query], part.labels[~part.is_query])
    if not len(shared):
        raise ValueError(
            f"data: no {name} query has an item of its class in the gallery: {name} classes have "
            f"{int(part.is_query.sum()):,} queries of {len(part):,} items"
        )


def _no_lone_classes(bench: Bench) -> None:
    """A class with one image can be neither learned from nor retrieved."""
    data = bench.dataset
    for part, name in ((data.train, "training"), (data.test, "test")):
        if part.is_query is not None:
            continue
        classes, counts = np.unique(part.labels, return_counts=True)
        lone = classes[counts == 1]
        if len(lone):
            example = data.class_names[int(lone[0])]
            raise ValueError(
                f"data: {len(lone)} {name} class(es) have one image, for example {example!r}; "
                "a class needs two, or none can be retrieved"
            )

"""Preflight checks: data, batches, checkpoint storage and tracking store, before a run starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces.unit_scale import from_unit
from study.config.plan import Plan
from study.errors import StudyError
from trainables.data.batch_sampler import sample_epoch_batches
from trainables.data.cache import DataProgressCallback
from trainables.data.dataset import DatasetPart
from trainables.training.checkpoints import check_writable
from trainables.training.context import TrainingContext, open_context
from trainables.training.tasks import build_fold_tasks


def open_data(
    plan: Plan, *, cache_dir: Path, progress: DataProgressCallback | None = None
) -> TrainingContext:
    """Load or build the study's data and check that every loss can train on it.

    Raises:
        StudyError: The data set, the backbone or the batches are not usable.
    """
    dataset = {"name": plan.file.data.name, **plan.file.data.reader_options}
    try:
        context = open_context(
            dataset, plan.file.backbone.model_dump(), cache_dir=cache_dir, progress=progress
        )
        context.new_backbone(seed=0, bn_freeze="none")  # raises for an unknown name or size
        check_class_counts(plan, context)
    except (ValueError, OSError) as error:
        raise StudyError(" ".join(str(error).split())) from None
    return context


def check_tracking(plan: Plan) -> str:
    """Return why the study's tracking server or database is unreachable; empty if it is not.

    A store in the study's own directory is not checked.

    Raises:
        StudyError: The store does not accept this study; see `check_store`.
    """
    from study.tracking.health import check_store

    if plan.file.tracking.uri is None:
        return ""
    return check_store(plan.file.tracking.uri, experiment=plan.name, study_id=plan.study_id)


def check_storage(plan: Plan) -> None:
    """Raise unless checkpoints can be written to the shared storage and read back.

    Raises:
        StudyError: They cannot.
    """
    location = plan.file.storage.checkpoints
    if location is None:
        return
    try:
        check_writable(location)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise StudyError(
            f"storage.checkpoints: {location} cannot be written, read and cleared from this "
            f"machine: {reason}"
        ) from None


def check_class_counts(plan: Plan, context: TrainingContext) -> None:
    """Raise ValueError unless each loss can fill its batches on every fold."""
    tasks = build_fold_tasks(context.dataset, "validation", plan.file.protocol.folds)
    for part, name in [
        *((task.evaluation, "validation") for task in tasks),
        (context.dataset.test, "test"),
    ]:
        _check_retrievable(part, name)
    for loss in plan.losses:
        for task in tasks:
            try:
                sample_epoch_batches(task.train.labels, **_widest_batch(plan, loss), seed=0)
            except ValueError as error:
                raise ValueError(f"{loss}: {error}") from None


def _widest_batch(plan: Plan, loss: str) -> dict[str, int]:
    """Return the batch of the search space that needs the most classes."""
    settings, _ = plan.resolve_settings(loss, plan.example_point(loss))
    batch_sizes, per_class = [settings.batch_size], [settings.images_per_class]
    for param, values in (("batch_size", batch_sizes), ("images_per_class", per_class)):
        distribution = plan.spaces[loss].distributions.get(param)
        if distribution is not None:
            values[:] = [int(from_unit(distribution, u / 16)) for u in range(17)]
    balanced = [n for n in per_class if n > 0]
    return {
        "batch_size": max(batch_sizes),
        "images_per_class": min(balanced) if balanced else 0,
    }


def describe_data(plan: Plan, context: TrainingContext) -> dict[str, Any]:
    """Return name, fingerprint, counts and notes of a study's data."""
    data = context.dataset
    task = build_fold_tasks(data, "validation", plan.file.protocol.folds)[0]
    parts: Mapping[str, np.ndarray[Any, Any]] = {
        "train": task.train.labels,
        "validation": task.evaluation.labels,
        "test": data.test.labels,
    }
    return {
        "name": data.name,
        "fingerprint": data.fingerprint,
        "kind": data.train.kind,
        **{f"{k}_items": len(v) for k, v in parts.items()},
        **{f"{k}_classes": len(np.unique(v)) for k, v in parts.items()},
        "notes": list(context.quality_notes),
    }


def _check_retrievable(part: DatasetPart, name: str) -> None:
    """Raise unless at least one query has another item of its class in the gallery."""
    queries, gallery = part.labels, part.labels
    if part.is_query is not None:
        queries, gallery = part.labels[part.is_query], part.labels[~part.is_query]
    classes, counts = np.unique(gallery, return_counts=True)
    retrievable = classes[counts >= (2 if part.is_query is None else 1)]
    if not np.isin(queries, retrievable).any():
        raise ValueError(
            f"data: no {name} query has another image of its class in the gallery "
            f"({len(queries):,} queries, {len(gallery):,} gallery images)"
        )

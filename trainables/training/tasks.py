"""Fold tasks of a trial: the items to train on and those to evaluate on, per fold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainables.data.dataset import Dataset, DatasetPart
from trainables.data.splits import split_class_folds


@dataclass(frozen=True)
class FoldTask:
    """Training and evaluation items of one fold.

    Args:
        train: Items to train on.
        evaluation: Items of other classes to evaluate on.
    """

    train: DatasetPart
    evaluation: DatasetPart


def build_fold_tasks(data: Dataset, split: str, n_folds: int) -> list[FoldTask]:
    """Return the tasks of a split.

    `validation` divides the training classes into folds and never uses the test classes; `test` is
    a single task that trains on all training classes and evaluates on the test classes.
    """
    if split == "test":
        return [FoldTask(train=data.train, evaluation=data.test)]
    return [
        FoldTask(
            train=_select_items(data.train, train), evaluation=_select_items(data.train, held_out)
        )
        for train, held_out in split_class_folds(data.train.labels, n_folds)
    ]


def _select_items(part: DatasetPart, indices: np.ndarray[Any, np.dtype[np.int64]]) -> DatasetPart:
    """Return some items of a part; they share its memory map and are gathered when read."""
    queries = None if part.is_query is None else part.is_query[indices]
    index = indices if part.index is None else part.index[indices]
    return replace(part, labels=part.labels[indices], is_query=queries, index=index)

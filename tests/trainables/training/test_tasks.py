"""Fold tasks: disjoint classes, queries as in the test split, and shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from trainables.data.dataset import Dataset, DatasetPart
from trainables.training.context import TrainingContext
from trainables.training.tasks import build_fold_tasks


def test_splits_share_no_class(glyphs_context: TrainingContext) -> None:
    dataset = glyphs_context.dataset
    for split, folds in (("validation", 1), ("validation", 4), ("test", 1)):
        for task in build_fold_tasks(dataset, split, folds):
            evaluated = set(task.evaluation.labels)
            assert not set(task.train.labels) & evaluated
            assert not (split == "validation" and evaluated & set(dataset.test.labels))


@pytest.mark.parametrize("n_folds", [1, 2, 4])
def test_validation_uses_the_same_queries_and_gallery_as_the_test(n_folds: int) -> None:
    labels = np.repeat(np.arange(16), 6)
    queries = np.tile([True, False, False], 32)
    items = np.arange(96, dtype=np.float32)[:, None] + np.zeros(4, np.float32)
    half = DatasetPart(items, labels, queries)
    data = Dataset("arrays", half, half, tuple(map(str, range(16))), "")
    for task in build_fold_tasks(data, "validation", n_folds):
        assert task.evaluation.is_query is not None
        rows = task.evaluation.read_items(slice(None))[:, 0].astype(int)
        np.testing.assert_array_equal(task.evaluation.is_query, queries[rows])


@pytest.mark.parametrize("n_folds", [1, 2, 4])
def test_folds_of_mixed_classes_copy_no_items(n_folds: int) -> None:
    labels = np.tile(np.arange(16), 6)  # items of a class are not adjacent
    half = DatasetPart(np.arange(96, dtype=np.float32)[:, None], labels)
    data = Dataset("arrays", half, half, tuple(map(str, range(16))), "")
    for task in build_fold_tasks(data, "validation", n_folds):
        for part in (task.train, task.evaluation):
            assert np.shares_memory(part.items, half.items)
            assert len(part) == len(part.read_items(slice(None)))
            rows = part.read_items(np.array([3, 0]))[:, 0].astype(int)
            np.testing.assert_array_equal(labels[rows], part.labels[[3, 0]])

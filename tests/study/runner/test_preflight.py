"""Preflight checks: data, batches and checkpoint storage that do not work are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from study.config.plan import Plan
from study.errors import StudyError
from study.runner.preflight import check_storage, check_tracking, describe_data, open_data
from tests.support.scheduler_simulation import make_plan


def write_arrays(folder: Path, *, classes: int, images: int) -> Path:
    labels = np.repeat(np.arange(classes), images)
    features = np.random.default_rng(0).normal(size=(len(labels), 6)).astype(np.float32)
    np.savez(folder / "a.npz", labels=labels, features=features)
    return folder / "a.npz"


def plan_of(path: Path, **changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "losses": ["triplet"],
        "data": {"name": "arrays", "path": str(path)},
        "training": {"epochs": 1, "batch_size": 8, "embedding_dim": 4},
    }
    return make_plan(**{**fields, **changes})


def test_counts_of_the_data_are_those_of_its_parts(tmp_path: Path) -> None:
    plan = plan_of(write_arrays(tmp_path, classes=24, images=4))
    data = describe_data(plan, open_data(plan, cache_dir=tmp_path))
    assert (data["name"], data["kind"]) == ("arrays", "features")
    assert data["train_classes"] + data["validation_classes"] + data["test_classes"] == 24
    assert data["train_items"] + data["validation_items"] + data["test_items"] == 96


def test_queries_without_another_image_of_their_class_are_refused(tmp_path: Path) -> None:
    path = write_arrays(tmp_path, classes=24, images=1)
    plan = plan_of(path, data={"name": "arrays", "path": str(path), "min_images": 1})
    with pytest.raises(StudyError, match="no validation query has another image of its class"):
        open_data(plan, cache_dir=tmp_path)


def test_batches_that_the_classes_cannot_fill_are_refused(tmp_path: Path) -> None:
    training = {"epochs": 1, "batch_size": 64, "images_per_class": 2, "embedding_dim": 4}
    plan = plan_of(write_arrays(tmp_path, classes=24, images=4), training=training)
    with pytest.raises(StudyError, match=r"triplet: .*64"):
        open_data(plan, cache_dir=tmp_path)


def test_storage_that_takes_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    check_storage(make_plan())
    check_storage(make_plan(storage={"checkpoints": str(tmp_path / "new")}))
    with pytest.raises(StudyError, match=r"storage.checkpoints: .*file"):
        check_storage(make_plan(storage={"checkpoints": str(tmp_path / "file")}))


def test_the_own_store_of_a_study_needs_no_check() -> None:
    assert check_tracking(make_plan()) == ""

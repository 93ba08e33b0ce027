"""Data and weights of a resumed study are compared with those it started with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from study.errors import StudyError
from study.runner.data_fingerprint import DATA_FILE_NAME, DataFingerprint
from study.runner.preflight import open_data
from tests.support.scheduler_simulation import make_plan
from trainables.data.registry import load_dataset
from trainables.models.backbone import build_backbone
from trainables.training.context import TrainingContext


def test_a_moved_split_is_refused(tmp_path: Path) -> None:
    """Validation classes must never have been test classes, nor the other way round."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(96, 8)), np.repeat(np.arange(24), 4)

    def fingerprint(n_train: int) -> str:
        split = np.arange(24) >= n_train
        np.savez(tmp_path / "a.npz", labels=labels, features=features, class_split=split)
        path = str(tmp_path / "a.npz")
        return load_dataset("arrays", cache_dir=tmp_path / "c", path=path).fingerprint

    DataFingerprint(tmp_path, fingerprint(12))
    DataFingerprint(tmp_path, fingerprint(12))
    with pytest.raises(StudyError, match=r"changed \(fingerprint"):
        DataFingerprint(tmp_path, fingerprint(16))


def bench_with_weights(folder: Path, seed: int) -> TrainingContext:
    """A study's small data and a backbone that starts from a file."""
    torch.manual_seed(seed)
    backbone = build_backbone("conv4", in_channels=1, image_size=28)
    torch.save(backbone.model.state_dict(), folder / "w.pth")
    plan = make_plan(
        data={"name": "glyphs", "classes": 80, "samples": 4},
        backbone={"pretrained": str(folder / "w.pth")},
        training={"batch_size": 16},
    )
    return open_data(plan, cache_dir=folder / "cache")


def test_replaced_weights_are_refused(tmp_path: Path) -> None:
    """The file has the same name; trials would start elsewhere and the untrained row be stale."""
    (tmp_path / "small").mkdir()
    for _ in range(2):
        context = bench_with_weights(tmp_path, seed=1)
        DataFingerprint(
            tmp_path / "small", context.dataset.fingerprint, context.initial_weights_fingerprint
        )
    other = bench_with_weights(tmp_path, seed=2)
    assert other.dataset.fingerprint == context.dataset.fingerprint
    with pytest.raises(StudyError, match="the weights that small starts from changed"):
        DataFingerprint(
            tmp_path / "small", other.dataset.fingerprint, other.initial_weights_fingerprint
        )


def test_a_study_of_an_older_version_continues(tmp_path: Path) -> None:
    """Its fingerprint was computed in another way; the study continues with today's files."""
    scores = {"validation": {"map_at_r": 0.5}}
    (tmp_path / DATA_FILE_NAME).write_text(json.dumps({"fingerprint": "old", "untrained": scores}))
    for _ in range(2):
        known = DataFingerprint(tmp_path, "new", "weights")
        assert known.get_baseline_scores("validation") == scores["validation"]
    for now in (("other", "weights"), ("new", "others")):
        with pytest.raises(StudyError, match=r"changed \(fingerprint"):
            DataFingerprint(tmp_path, *now)

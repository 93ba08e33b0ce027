"""A study goes on with what it began with, or says what has changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from study.checks import open_data
from study.data_record import DATA_FILE, DataRecord
from study.errors import StudyError
from tests.study.tuning_simulation import make_plan
from trainables.backbone import build_backbone
from trainables.data import load_dataset
from trainables.workbench import Bench


def test_a_moved_split_is_refused(tmp_path: Path) -> None:
    """Validation classes must never have been test classes, nor the other way round."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(96, 8)), np.repeat(np.arange(24), 4)

    def fingerprint(n_train: int) -> str:
        split = np.arange(24) >= n_train
        np.savez(tmp_path / "a.npz", labels=labels, features=features, class_split=split)
        path = str(tmp_path / "a.npz")
        return load_dataset("arrays", cache_dir=tmp_path / "c", path=path).fingerprint

    DataRecord(tmp_path, fingerprint(12))
    DataRecord(tmp_path, fingerprint(12))
    with pytest.raises(StudyError, match="are not those it began with"):
        DataRecord(tmp_path, fingerprint(16))


def bench_with_weights(folder: Path, seed: int) -> Bench:
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
        bench = bench_with_weights(tmp_path, seed=1)
        DataRecord(tmp_path / "small", bench.dataset.fingerprint, bench.weights)
    other = bench_with_weights(tmp_path, seed=2)
    assert other.dataset.fingerprint == bench.dataset.fingerprint
    with pytest.raises(StudyError, match="the weights that small starts from are not those it"):
        DataRecord(tmp_path / "small", other.dataset.fingerprint, other.weights)


def test_a_study_of_an_older_version_goes_on(tmp_path: Path) -> None:
    """Its fingerprint was made in another way; what is there now is what it goes on with."""
    scores = {"validation": {"map_at_r": 0.5}}
    (tmp_path / DATA_FILE).write_text(json.dumps({"fingerprint": "old", "untrained": scores}))
    for _ in range(2):
        known = DataRecord(tmp_path, "new", "weights")
        assert known.untrained("validation") == scores["validation"]
    for now in (("other", "weights"), ("new", "others")):
        with pytest.raises(StudyError, match="are not those it began with"):
            DataRecord(tmp_path, *now)

"""A study goes on with what it began with, or says what has changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from study.data_record import DATA_FILE, DataRecord
from study.errors import StudyError
from trainables.data import load_dataset


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


def test_a_study_of_an_older_version_goes_on(tmp_path: Path) -> None:
    """Its fingerprint was made in another way; what is there now is what it goes on with."""
    scores = {"validation": {"map_at_r": 0.5}}
    (tmp_path / DATA_FILE).write_text(json.dumps({"fingerprint": "old", "untrained": scores}))
    assert DataRecord(tmp_path, "new").untrained("validation") == scores["validation"]
    assert DataRecord(tmp_path, "new").untrained("validation") == scores["validation"]
    with pytest.raises(StudyError, match="are not those it began with"):
        DataRecord(tmp_path, "other")

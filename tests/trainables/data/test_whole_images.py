"""Images stored with `fit: whole`, in folds, as features and in a trial."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.gradient_images import write_gradient_folders
from trainables.config import TrainingSettings, TrialSpec
from trainables.data.augment import ImageTransform
from trainables.data.registry import load_dataset
from trainables.models.backbone import build_backbone
from trainables.models.embedding import pool_features
from trainables.models.frozen_features import compute_features
from trainables.training.context import open_context
from trainables.training.evaluation import embed_items
from trainables.training.tasks import build_fold_tasks
from trainables.training.trial_trainer import TrialTrainer

pytestmark = pytest.mark.split


@pytest.mark.parametrize("query", ["", "asks=1"])
def test_folds_queries_and_galleries_keep_aspects_with_their_items(
    tmp_path: Path, query: str
) -> None:
    files = sorted(write_gradient_folders(tmp_path / "p").rglob("*.png"))
    blobs = [path.read_bytes() for path in files]
    blobs[4] = b""  # skipped: rows after it move up
    order = np.random.default_rng(0).permutation(len(blobs))  # classes do not lie together
    blobs = [blobs[i] for i in order]
    np.savez(
        tmp_path / "a.npz",
        png=np.frombuffer(b"".join(blobs), np.uint8),
        offsets=np.cumsum([0, *map(len, blobs)]),
        labels=order // 3,
        asks=(order % 3 == 0).astype(int),
    )
    data = load_dataset(
        "arrays", cache_dir=tmp_path / "c", path=str(tmp_path / "a.npz"), query=query, size=16,
        fit="whole", on_bad_image="skip",
    )  # fmt: skip
    tasks = [task for n in (1, 2, 4) for task in build_fold_tasks(data, "validation", n)]
    parts = [data.train, data.test, *(p for task in tasks for p in (task.train, task.evaluation))]
    for part in parts:
        for rows in (slice(None), np.array([3, 0])):
            which = np.rint(part.read_items(rows)[:, 8, 8, 2] / 5)
            aspects = part.read_aspects(rows)
            assert aspects is not None
            np.testing.assert_allclose(aspects, (128 + which) / 96, rtol=1e-6)
        assert (part.is_query is None) is (query == "")


def test_features_of_whole_images(tmp_path: Path) -> None:
    data = load_dataset(
        "folder",
        cache_dir=tmp_path,
        path=str(write_gradient_folders(tmp_path / "p")),
        size=32,
        fit="whole",
    )
    torch.manual_seed(0)
    backbone = build_backbone("conv4", in_channels=3, image_size=28, frozen=True)
    features = compute_features(
        data, backbone, pooling="avg", cache_dir=tmp_path, device=torch.device("cpu"), batch_size=7
    )
    augment = ImageTransform("none", size=28, mean=backbone.mean, std=backbone.std)
    for part, images in ((features.train, data.train), (features.test, data.test)):
        with torch.no_grad():
            direct = pool_features(
                backbone(augment.preprocess_images(images.items, images.aspects)), "avg"
            ).numpy()
            squashed = pool_features(
                backbone(augment.preprocess_images(images.items)), "avg"
            ).numpy()
        assert np.allclose(part.items, direct, atol=1e-5)
        assert not np.allclose(part.items, squashed, atol=1e-3)
        assert part.aspects is None


def test_a_trial_on_whole_images(tmp_path: Path) -> None:
    dataset = {
        "name": "folder",
        "path": str(write_gradient_folders(tmp_path / "p")),
        "size": 32,
        "fit": "whole",
    }
    backbone = {"name": "conv4", "pretrained": False, "frozen": False}
    context = open_context(dataset, backbone, cache_dir=tmp_path / "c")
    spec = TrialSpec(
        trial="triplet-0000",
        loss="triplet",
        loss_knobs={"margin": 0.2},
        settings=TrainingSettings(epochs=1, batch_size=9, embedding_dim=8, augment="papers"),
        seed=5,
        dataset=dataset,
        backbone=backbone,
        cache_dir="",
        threads=1,
    )
    training = TrialTrainer(spec, context)
    (replica,) = training.replicas
    assert replica.augment is not None
    train, score, rows = replica.task.train, replica.task.evaluation, np.arange(9)
    value = replica.compute_gradients(rows, torch.Generator().manual_seed(1))
    labels = torch.from_numpy(train.labels[rows])

    def loss(aspects: NDArray[np.float32] | None) -> float:
        generator = torch.Generator().manual_seed(1)
        assert replica.augment is not None
        inputs = replica.augment.augment_images(train.read_items(rows), generator, aspects=aspects)
        with torch.no_grad():
            return float(replica.loss(replica.model(inputs), labels))

    assert value == pytest.approx(loss(train.read_aspects(rows)), rel=1e-5)
    assert value != pytest.approx(loss(None), rel=1e-3)
    everything = slice(None)
    inputs = replica.augment.preprocess_images(
        score.read_items(everything), score.read_aspects(everything)
    )
    vectors = embed_items(replica.model, score, replica.augment)
    with torch.no_grad():
        assert np.allclose(vectors, replica.model(inputs).numpy(), atol=1e-6)
    assert np.isfinite(training.run_epoch()["score"])

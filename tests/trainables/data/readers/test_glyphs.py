"""The embedded data set: the same everywhere, hard for pixels, learnable, with room above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from trainables.data.augment import ImageTransform
from trainables.data.batch_sampler import sample_epoch_batches
from trainables.data.dataset import Dataset
from trainables.data.readers.glyphs import CHARACTERS
from trainables.data.registry import load_dataset
from trainables.models.backbone import build_backbone
from trainables.retrieval.metrics import evaluate

pytestmark = pytest.mark.split


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_dataset("glyphs", cache_dir=tmp_path_factory.mktemp("cache"))


def test_shape_and_disjoint_halves(glyphs: Dataset) -> None:
    assert len(glyphs.class_names) >= 200
    assert len(set(CHARACTERS)) == len(CHARACTERS)
    assert glyphs.train.items.shape == glyphs.test.items.shape == (1920, 28, 28, 1)
    assert not set(glyphs.train.labels) & set(glyphs.test.labels)
    assert (np.bincount(np.concatenate([glyphs.train.labels, glyphs.test.labels])) == 16).all()
    # No image is empty, and no two are equal.
    both = np.concatenate([glyphs.train.items, glyphs.test.items]).reshape(3840, -1)
    assert (both.max(axis=1) > 100).all()
    assert len(np.unique(both, axis=0)) == 3840


def test_deterministic_and_moved_by_every_option(tmp_path: Path) -> None:
    def draw(folder: str, **options: int) -> Dataset:
        base: dict[str, Any] = {"classes": 6, "samples": 4, "size": 20, "seed": 0}
        return load_dataset("glyphs", cache_dir=tmp_path / folder, **{**base, **options})

    one, again = draw("a"), draw("b")
    assert one.fingerprint == again.fingerprint
    assert np.array_equal(one.train.items, again.train.items)
    assert draw("a", seed=1).fingerprint != one.fingerprint
    assert draw("a", size=24).train.items.shape[1:3] == (24, 24)
    assert len(draw("a", samples=7).train) == 21
    larger = draw("a", classes=8)
    assert len(larger.class_names) == 8
    # More classes do not change the images of the first ones.
    assert np.array_equal(larger.train.items[:12], one.train.items)


@pytest.mark.slow
def test_a_trained_net_beats_pixels_on_unseen_characters(glyphs: Dataset) -> None:
    test = glyphs.test
    pixels = evaluate(test.items.reshape(len(test), -1).astype(np.float32), test.labels)
    torch.manual_seed(0)
    backbone = build_backbone("conv4", in_channels=1, image_size=28)
    head, proxies = nn.Linear(backbone.num_features, 64), nn.Parameter(torch.randn(120, 64))
    augment = ImageTransform("light", size=28, mean=backbone.mean, std=backbone.std)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(
        [
            {"params": [*backbone.parameters(), *head.parameters()], "lr": 3e-3},
            {"params": [proxies], "lr": 3e-2},
        ]
    )

    def embed(images: torch.Tensor) -> torch.Tensor:
        return normalize(head(backbone(images).amax(dim=(2, 3))))

    def score() -> dict[str, float]:
        backbone.eval()
        with torch.no_grad():
            embeddings = torch.cat(
                [
                    embed(augment.preprocess_images(test.items[i : i + 480]))
                    for i in range(0, 1920, 480)
                ]
            )
        backbone.train()
        return evaluate(embeddings, test.labels)

    untrained = score()
    for epoch in range(8):
        for batch in sample_epoch_batches(
            glyphs.train.labels, batch_size=64, images_per_class=4, seed=(0, epoch)
        ):
            embeddings = embed(augment.augment_images(glyphs.train.items[batch], generator))
            logits = 16 * embeddings @ normalize(proxies).T
            loss = cross_entropy(logits, torch.from_numpy(glyphs.train.labels[batch]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    trained = score()
    print(f"R@1: pixels {pixels['recall_at_1']:.3f}, untrained {untrained['recall_at_1']:.3f}, "
          f"trained {trained['recall_at_1']:.3f}; MAP@R {trained['map_at_r']:.3f}")  # fmt: skip
    assert 0.15 < pixels["recall_at_1"] < 0.35
    assert trained["recall_at_1"] > pixels["recall_at_1"] + 0.3
    assert trained["recall_at_1"] < 0.95
    assert trained["map_at_r"] < 0.7
    assert untrained["map_at_r"] < trained["map_at_r"] / 3

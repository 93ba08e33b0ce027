"""Embedding model: pooling, normalisation, and temporary moves to a device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainables.config import TrainingSettings
from trainables.models.embedding import EmbeddingModel, on_device, pool_features

pytestmark = pytest.mark.split


def test_pooling() -> None:
    maps = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert pool_features(maps, "avg").item() == 7.5
    assert pool_features(maps, "max").item() == 15.0
    assert pool_features(maps, "avg+max").item() == 22.5
    with pytest.raises(ValueError, match="avg, max, avg\\+max"):
        pool_features(maps, "median")


def test_embeddings_have_unit_length_and_raw_embeddings_do_not() -> None:
    torch.manual_seed(0)
    model = EmbeddingModel(nn.Conv2d(1, 8, 3), 8, TrainingSettings(embedding_dim=4))
    images = torch.randn(5, 1, 6, 6)
    raw, embeddings = model.compute_raw_embeddings(images), model(images)
    assert embeddings.shape == (5, 4)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(embeddings, raw / raw.norm(dim=1, keepdim=True))
    assert not torch.allclose(raw.norm(dim=1), torch.ones(5))


def test_layer_norm_centres_and_scales_features_without_weights() -> None:
    settings = TrainingSettings(embedding_dim=4, layer_norm=True)
    model = EmbeddingModel(None, 8, settings)
    features = torch.randn(3, 8)
    shifted = model.compute_raw_embeddings(5 * features + 2)
    torch.testing.assert_close(shifted, model.compute_raw_embeddings(features), rtol=0, atol=1e-4)
    assert {name for name, _ in model.named_parameters()} == {"head.weight", "head.bias"}


def test_features_pass_through_a_model_without_backbone() -> None:
    model = EmbeddingModel(None, 8, TrainingSettings(embedding_dim=4))
    features = torch.randn(3, 8)
    assert model.extract_features(features) is features


def test_a_model_is_moved_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    devices: list[torch.device] = []
    monkeypatch.setattr(model, "to", devices.append)
    gpu = torch.device("cpu", 0)  # not equal to torch.device("cpu"), but always available

    def fail_on_device() -> None:
        with on_device(model, gpu):
            assert devices == [gpu]
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_on_device()
    assert devices == [gpu, torch.device("cpu")]

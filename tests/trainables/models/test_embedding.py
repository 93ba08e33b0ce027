"""Embedding model: pooling, normalisation, and temporary moves to a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainables.config import TrainingSettings
from trainables.models import embedding
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


@pytest.mark.parametrize("layer_norm", [False, True])
def test_embeddings_of_a_bf16_model_are_float32_before_they_are_normalised(
    layer_norm: bool,
) -> None:
    torch.manual_seed(0)
    settings = TrainingSettings(embedding_dim=16, layer_norm=layer_norm)
    model = EmbeddingModel(nn.Conv2d(1, 8, 3), 8, settings)
    images = torch.randn(64, 1, 6, 6)
    exact = model(images)
    model.precision = "bf16"
    raw, embeddings = model.compute_raw_embeddings(images), model(images)
    assert raw.dtype == embeddings.dtype == torch.float32
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(64), rtol=1e-6, atol=1e-6)
    cosines = (embeddings * exact).sum(dim=1)
    assert 0.999 < float(cosines.detach().min()) < 1.0
    assert not torch.equal(embeddings, exact)


def test_models_of_one_shape_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    def count_graphs(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    def compile_with_counter(function: Any, **options: Any) -> Any:
        return compile_function(function, backend=count_graphs, **options)

    compile_function = torch.compile
    monkeypatch.setattr(torch, "compile", compile_with_counter)
    embedding._compile_embedding.cache_clear()
    images = torch.randn(5, 1, 6, 6)
    try:
        for _ in range(3):  # trials of one process
            model = EmbeddingModel(nn.Conv2d(1, 8, 3), 8, TrainingSettings(embedding_dim=4))
            expected = model(images)
            model.is_compiled = True
            torch.testing.assert_close(model(images), expected)
        assert len(graphs) == 1
        model(torch.randn(3, 1, 6, 6))
        assert len(graphs) == 2, "another batch size"
        monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)
        assert model(torch.randn(2, 1, 6, 6)).shape == (2, 4), "more shapes than the limit"
        assert len(graphs) == 3
    finally:
        embedding._compile_embedding.cache_clear()
        torch._dynamo.reset()

"""Evaluation of a network: inputs, embeddings and metrics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.trial_specs import make_spec
from trainables.data.dataset import DatasetPart
from trainables.distributed.world import SingleProcessWorld
from trainables.retrieval.metrics import compute_nmi
from trainables.training import evaluation
from trainables.training.baseline import untrained_metrics
from trainables.training.context import TrainingContext
from trainables.training.errors import DivergedError
from trainables.training.evaluation import (
    EVALUATION_BATCH_SIZE,
    embed_items,
    score_embeddings,
)
from trainables.training.trial_trainer import TrialTrainer

WORLD = SingleProcessWorld(torch.device("cpu"))


def test_nmi_is_computed_on_request(glyphs_context: TrainingContext) -> None:
    spec = make_spec("triplet")
    assert "nmi" not in TrialTrainer(spec, glyphs_context).replicas[0].compute_metrics()
    with_nmi = replace(spec, nmi=True)
    replica = TrialTrainer(with_nmi, glyphs_context).replicas[0]
    expected = compute_nmi(
        embed_items(replica.model, replica.task.evaluation, replica.augment),
        replica.task.evaluation.labels,
    )
    assert replica.compute_metrics()["nmi"] == expected
    assert 0 < expected < 1
    assert 0 < untrained_metrics(with_nmi, glyphs_context)["nmi"] < 1


def test_embeddings_that_are_not_finite_are_a_divergence(glyphs_context: TrainingContext) -> None:
    replica = TrialTrainer(make_spec("triplet"), glyphs_context).replicas[0]
    with torch.no_grad():
        replica.model.head.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="embeddings"):
        replica.compute_metrics()


def test_queries_are_searched_in_the_gallery_only() -> None:
    """The nearest neighbour of each query is the other query, which must not count."""
    vectors = np.array([[1, 0], [0.99, 0.1], [0.8, 0.6], [0, 1]], np.float32)
    labels = np.array([0, 1, 0, 1])
    is_query = np.array([True, True, False, False])
    spec = make_spec("triplet", recall_at=(1,))
    part = DatasetPart(vectors, labels, is_query)
    metrics = score_embeddings(vectors, part, spec, WORLD)
    assert metrics["recall_at_1"] == 0.5, "query 0 finds item 2, query 1 does not find item 3"
    all_queries = score_embeddings(vectors, DatasetPart(vectors, labels), spec, WORLD)
    assert all_queries["recall_at_1"] == 0.0


def test_embeddings_of_several_batches_are_in_order() -> None:
    items = np.arange(EVALUATION_BATCH_SIZE + 3, dtype=np.float32)[:, None]
    part = DatasetPart(items, np.zeros(len(items), np.int64))
    embeddings = embed_items(nn.Identity(), part, None, WORLD)
    np.testing.assert_array_equal(embeddings, items)


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_rank_computes_on_its_cpu(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StubWorld(SingleProcessWorld):
        """One of two ranks; collectives are not exchanged."""

        def broadcast_(self, values: torch.Tensor) -> None:
            values.fill_(0.25)

    def record_call(*_: object) -> float:
        called.append("nmi")
        return 0.5

    called: list[str] = []
    monkeypatch.setattr(evaluation, "compute_nmi", record_call)
    world = StubWorld(torch.device("cpu"))
    world.rank, world.size = rank, 2
    vectors = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).numpy()
    part = DatasetPart(vectors, np.arange(12) // 3)
    metrics = score_embeddings(vectors, part, replace(make_spec("triplet"), nmi=True), world)
    assert called == ([] if rank else ["nmi"])
    assert metrics["nmi"] == metrics["similarity_concentration"] == 0.25


def test_a_batch_that_does_not_fit_is_embedded_in_parts() -> None:
    class SmallMemory(nn.Module):
        """A network that has memory for 100 items."""

        def forward(self, items: torch.Tensor) -> torch.Tensor:
            if len(items) > 100:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            sizes.append(len(items))
            return items

    sizes: list[int] = []
    items = np.arange(EVALUATION_BATCH_SIZE + 3, dtype=np.float32)[:, None]
    part = DatasetPart(items, np.zeros(len(items), np.int64))
    np.testing.assert_array_equal(embed_items(SmallMemory(), part, None, WORLD), items)
    assert max(sizes) <= 100
    assert sum(sizes) == len(items)

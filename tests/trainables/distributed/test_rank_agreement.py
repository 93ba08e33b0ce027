"""Augmentation, evaluation and usage shared by several ranks agree with one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support import rank_cases as cases
from tests.support.rank_pool import CPU, RankPool
from trainables.data.augment import ImageTransform
from trainables.distributed.world import SingleProcessWorld, World, rank_slice
from trainables.retrieval.metrics import evaluate
from trainables.training.trial_trainer import TrialTrainer
from trainables.training.usage import UsageMonitor, reduce_usage

pytestmark = pytest.mark.xdist_group("ranks")

SINGLE_PROCESS = SingleProcessWorld(CPU)


@pytest.mark.parametrize("preset", ["none", "light", "papers"])
@pytest.mark.parametrize("side", [8, 12])
@pytest.mark.parametrize("squashed", [False, True])
def test_the_slices_of_a_batch_are_augmented_like_the_complete_batch(
    preset: str, side: int, squashed: bool
) -> None:
    augment = ImageTransform(preset, size=8, mean=(0.5,), std=(0.5,))
    images = np.random.default_rng(0).integers(0, 256, (7, side, side, 1)).astype(np.uint8)
    aspects = np.linspace(0.5, 2, 7, dtype=np.float32) if squashed else None
    complete = augment.augment_images(images, torch.Generator().manual_seed(3), aspects=aspects)
    parts = []
    for rank in range(9):  # two of the slices are empty
        own = rank_slice(7, rank, 9)
        generator = torch.Generator().manual_seed(3)
        own_aspects = None if aspects is None else aspects[own]
        parts.append(
            augment.augment_images(images[own], generator, aspects=own_aspects, part=(own.start, 7))
        )
    assert torch.equal(torch.cat(parts), complete)


def evaluate_random_vectors(world: World, case: str) -> dict[str, float]:
    random = np.random.default_rng(4)
    vectors = random.normal(size=(61, 5)).round(1)  # rounded, so that there are ties
    labels = random.integers(0, 12, 61)
    if case == "gallery":
        gallery = {"gallery": vectors[40:], "gallery_labels": labels[40:]}
        return evaluate(vectors[:40], labels[:40], ks=(1, 4), world=world, **gallery)
    return evaluate(vectors, labels, ks=(1, 4), world=world)


@pytest.mark.parametrize("case", ["plain", "gallery"])
@pytest.mark.parametrize("size", [2, 4])
def test_shared_evaluation_gives_the_same_bits(case: str, size: int, rank_pool: RankPool) -> None:
    expected = evaluate_random_vectors(SINGLE_PROCESS, case)
    assert 0 < expected["map_at_r"] < 1
    assert rank_pool.run(size, evaluate_random_vectors, case) == [expected] * size


def reduce_different_usage(world: World) -> dict[str, dict[str, float]]:
    """Reduce figures that differ by rank; the driver of the second rank reports no GPU use."""
    rank = world.rank
    usage = {"memory_mib": 100.0 + rank, "node_memory_percent": 50.0 - rank, "gpu_memory_mib": 7.5}
    gpu = {} if rank == 1 else {"gpu_use_percent": 30.0 * rank}
    return {
        "all": reduce_usage(usage | gpu, world),
        "no gpu": reduce_usage({"memory_mib": 1.0}, world),
    }


def test_the_usage_of_all_ranks_is_reported_as_one(rank_pool: RankPool) -> None:
    for usage in rank_pool.run(3, reduce_different_usage):
        assert usage["all"] == {
            "memory_mib": 102.0,
            "node_memory_percent": 50.0,
            "gpu_memory_mib": 7.5,
            "gpu_use_percent": 30.0,
        }
        assert usage["no gpu"] == {"memory_mib": 1.0}


def test_a_trial_reports_the_memory_of_the_rank_that_uses_most(rank_pool: RankPool) -> None:
    results = rank_pool.run(2, memory_of_an_epoch, 64)
    reported = [metrics["memory_mib"] for metrics, _ in results]
    assert reported[0] == reported[1]
    own = [mib for _, mib in results]
    assert own[1] > own[0] + 32, "the second rank does hold more"
    assert reported[0] == pytest.approx(own[1], rel=0.05)


def memory_of_an_epoch(world: World, mib: int) -> tuple[dict[str, float], float]:
    """Run an epoch on ranks with different memory; return its metrics and the rank's memory."""
    ballast = np.ones(2 * world.rank * mib * 2**17)
    context = cases.make_training_context("features")
    training = TrialTrainer(cases.make_rank_spec("triplet", kind="features"), context, world)
    metrics = training.run_epoch()["metrics"]
    own = UsageMonitor().collect_usage()["memory_mib"]
    del ballast
    return metrics, own

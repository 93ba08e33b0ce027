"""Losses, crops, scores, training and ranks on CUDA devices equal those of the CPU (`make gpu`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from study.runner.device_check import (
    MAX_SCORE_DIFFERENCE,
    list_checked_losses,
    published_params,
)
from tests.support.trial_specs import CONV4, GLYPHS, LOSS_PARAMS, make_spec
from trainables.device_checks.device_info import explain_missing_cuda
from trainables.device_checks.numerics import (
    MAX_GREY_LEVELS,
    compare_image_transforms,
    compare_loss,
    compare_scores,
)
from trainables.device_checks.rank_exactness import (
    RANK_TOLERANCE,
    RankCase,
    compare_ranks,
)
from trainables.distributed.world import SingleProcessWorld
from trainables.losses import LOSSES
from trainables.training.context import open_context
from trainables.training.trial_trainer import TrialTrainer

REASON = explain_missing_cuda()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON)]

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
N_DEVICES = torch.cuda.device_count()


@pytest.mark.parametrize("name", list_checked_losses())
def test_a_loss_and_its_gradients_are_those_of_the_cpu(name: str) -> None:
    difference = compare_loss(CUDA, name, published_params(name))
    assert difference.is_exact, difference


def test_crops_are_those_of_the_cpu() -> None:
    assert compare_image_transforms(CUDA, n=1000) <= MAX_GREY_LEVELS


def test_scores_are_those_of_the_cpu() -> None:
    assert compare_scores(CUDA, n=6000) <= MAX_SCORE_DIFFERENCE


@pytest.mark.parametrize("loss", LOSS_PARAMS)
def test_an_epoch_ends_near_that_of_the_cpu(loss: str, data_cache: Path) -> None:
    """Convolutions run in TF32 by default, so that weights differ after some steps."""
    context = open_context(GLYPHS, CONV4, cache_dir=data_cache)
    spec = make_spec(loss)
    spec = replace(spec, settings=replace(spec.settings, precision="fp32"))
    results = [
        TrialTrainer(spec, context, SingleProcessWorld(device)).run_epoch()["metrics"]
        for device in (CPU, CUDA)
    ]
    assert results[1]["loss"] == pytest.approx(results[0]["loss"], rel=0.05)
    assert results[1]["map_at_r"] == pytest.approx(results[0]["map_at_r"], abs=0.05)


@pytest.mark.skipif(N_DEVICES < 2, reason="ranks over nccl need two CUDA devices")
@pytest.mark.parametrize("n_ranks", sorted({2, min(max(N_DEVICES, 2), 8)}))
def test_ranks_over_nccl_have_the_gradients_of_one(n_ranks: int) -> None:
    cases = [RankCase(name, published_params(name)) for name in list_checked_losses()]
    proxy = [c for c in cases if LOSSES[c.loss.split("+")[0]].family == "proxy"]
    cases += [replace(case, shard_proxies=True) for case in proxy]
    differences = compare_ranks(cases, n_ranks, CUDA)
    assert {name: d for name, d in differences.items() if not d <= RANK_TOLERANCE} == {}

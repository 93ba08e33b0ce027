"""Batch norm over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.rank_pool import CPU, RankPool
from trainables.distributed.batch_norm import SynchronisedBatchNorm, synchronise_batch_norm
from trainables.distributed.world import SingleProcessWorld, World, gather_rows, rank_slice
from trainables.utils.torchvision_import import import_torchvision

pytestmark = pytest.mark.xdist_group("ranks")

SINGLE_PROCESS = SingleProcessWorld(CPU)


def make_norms() -> dict[str, tuple[nn.Module, Tensor]]:
    """Return batch norms of every kind, with inputs whose mean is large."""
    import_torchvision()
    from timm.layers import BatchNormAct2d

    generator = torch.Generator().manual_seed(0)

    def make_inputs(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) + 1e3

    plain = nn.BatchNorm2d(3)
    nn.init.normal_(plain.weight, generator=generator)
    bare = nn.BatchNorm2d(3, affine=False, track_running_stats=False)
    return {
        "2d": (plain, make_inputs(7, 3, 4, 4)),
        "1d": (nn.BatchNorm1d(3, momentum=None), make_inputs(5, 3)),
        "bare": (bare, make_inputs(6, 3, 2, 2)),
        "timm": (BatchNormAct2d(3, act_layer=nn.SiLU), make_inputs(3, 3, 2, 2)),
    }


def normalise(world: World, name: str) -> dict[str, Any]:
    """Run two training steps and one evaluation of a batch norm on a rank's share."""
    norm, inputs = make_norms()[name]
    module = synchronise_batch_norm(nn.Sequential(norm.double()), world)
    if world.size > 1:
        assert any(isinstance(child, SynchronisedBatchNorm) for child in module.children())
    own = rank_slice(len(inputs), world.rank, world.size)
    own_inputs = inputs[own].clone().requires_grad_()
    for _ in range(2):
        out = gather_rows(world, module(own_inputs), len(inputs))
    torch.autograd.backward((out.sin() * torch.arange(out.numel()).view_as(out)).sum())
    weight_gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    assert own_inputs.grad is not None
    for gradient in weight_gradients:
        world.all_reduce_sum_(gradient)
    module.eval()
    return {
        "training": out.detach(),
        "input gradient": world.all_gather(own_inputs.grad, len(inputs)),
        "weight gradients": weight_gradients,
        "state": module.state_dict(),
        "evaluation": world.all_gather(module(own_inputs).detach(), len(inputs)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2d", "1d", "bare", "timm"])
@pytest.mark.parametrize("size", [2, 4])
def test_statistics_are_those_of_the_global_batch(
    name: str, size: int, rank_pool: RankPool
) -> None:
    expected = normalise(SINGLE_PROCESS, name)
    for result in rank_pool.run(size, normalise, name):
        for key in ("training", "input gradient", "weight gradients", "evaluation"):
            torch.testing.assert_close(result[key], expected[key], rtol=1e-9, atol=1e-9)
        assert list(result["state"]) == list(expected["state"]), "checkpoints stay readable"
        torch.testing.assert_close(dict(result["state"]), dict(expected["state"]))


def test_a_single_process_keeps_its_batch_norms() -> None:
    module = nn.Sequential(nn.BatchNorm2d(3))
    norm = module[0]
    assert synchronise_batch_norm(module, SINGLE_PROCESS) is module
    assert module[0] is norm
    assert type(norm) is nn.BatchNorm2d


def error_of_one_value(world: World) -> str:
    """Return the error of a batch norm when only the first rank has a sample."""
    norm = synchronise_batch_norm(nn.BatchNorm1d(3), world)
    try:
        norm(torch.zeros(1 if world.rank == 0 else 0, 3))
    except ValueError as error:
        return str(error)
    return ""


def test_one_value_per_channel_is_refused_on_every_rank(rank_pool: RankPool) -> None:
    for message in rank_pool.run(2, error_of_one_value):
        assert "more than one value per channel" in message

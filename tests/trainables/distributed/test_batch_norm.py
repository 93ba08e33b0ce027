"""Batch norm over the batches of all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm as TorchFunction

from tests.support.mirrored_world import MirroredWorld
from tests.support.native_batch_norm import register_native_batch_norm
from tests.support.pretend_device import (
    DeviceCounters,
    PretendTensor,
    count_device_work,
    register_pretend_device,
)
from tests.support.rank_pool import CPU, RankPool
from trainables.distributed import batch_norm
from trainables.distributed.batch_norm import (
    BatchShares,
    SynchronisedBatchNorm,
    synchronise_batch_norm,
)
from trainables.distributed.batch_norm_kernels import NATIVE_KERNELS, PORTABLE_KERNELS
from trainables.distributed.world import SingleProcessWorld, World, gather_rows, rank_slice
from trainables.utils.torchvision_import import import_torchvision

pytestmark = pytest.mark.xdist_group("ranks")

SINGLE_PROCESS = SingleProcessWorld(CPU)
DEVICE = register_pretend_device()
KERNELS = {"portable": PORTABLE_KERNELS, "native": NATIVE_KERNELS}


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


def normalise(
    world: World, name: str, kernels: str = "portable", known_shares: bool = True
) -> dict[str, Any]:
    """Run two training steps and one evaluation of a batch norm on a rank's share."""
    register_native_batch_norm()
    with mock.patch.object(batch_norm, "select_kernels", return_value=KERNELS[kernels]):
        return _normalise(world, name, known_shares)


def _normalise(world: World, name: str, known_shares: bool) -> dict[str, Any]:
    norm, inputs = make_norms()[name]
    shares = BatchShares(world)
    if known_shares:
        shares.set_batch_size(len(inputs))
    module = synchronise_batch_norm(nn.Sequential(norm.double()), world, shares)
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
@pytest.mark.parametrize("known_shares", [True, False])
@pytest.mark.parametrize("kernels", list(KERNELS))
@pytest.mark.parametrize("name", ["2d", "1d", "bare", "timm"])
@pytest.mark.parametrize("size", [2, 4])
def test_statistics_are_those_of_the_global_batch(
    name: str, size: int, kernels: str, known_shares: bool, rank_pool: RankPool
) -> None:
    """Shares are uneven, and with four ranks one share of timm's batch norm is empty."""
    expected = normalise(SINGLE_PROCESS, name)
    for result in rank_pool.run(size, normalise, name, kernels, known_shares):
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


def normalise_like_torch(world: World, dtype: torch.dtype) -> list[list[Tensor]]:
    """Return outputs, gradients and statistics with torch's own function and with this module."""
    register_native_batch_norm()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(5, 3, 4, 4, generator=generator).to(dtype)
    own = inputs[rank_slice(5, world.rank, world.size)]
    results = []
    for is_torch in (True, False):
        norm = nn.BatchNorm2d(3)
        x = own.clone().requires_grad_()
        if is_torch:
            group = dist.group.WORLD if world.size == 4 else world._group  # type: ignore[attr-defined]
            out = TorchFunction.apply(  # type: ignore[no-untyped-call]
                x,
                norm.weight,
                norm.bias,
                norm.running_mean,
                norm.running_var,
                norm.eps,
                norm.momentum,
                group,
                world.size,
            )
        else:
            shares = BatchShares(world)
            shares.set_batch_size(5)
            with mock.patch.object(batch_norm, "select_kernels", return_value=NATIVE_KERNELS):
                out = SynchronisedBatchNorm(norm, world, shares)(x)
        torch.autograd.backward((out.float().sin() * (1 + world.rank)).sum())
        tensors = [out.detach(), x.grad, norm.weight.grad, norm.bias.grad]
        results.append([*tensors, norm.running_mean, norm.running_var])
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 3])
def test_the_native_form_has_the_bits_of_torchs_module(
    dtype: torch.dtype, size: int, rank_pool: RankPool
) -> None:
    for expected, computed in rank_pool.run(size, normalise_like_torch, dtype):
        assert computed[0].dtype == computed[1].dtype == dtype
        assert all(torch.equal(a, b) for a, b in zip(computed, expected, strict=True))


def count_layer(norm: nn.Module, steps: int = 2) -> DeviceCounters:
    """Return the device work of the last forward and backward pass of a module."""
    with count_device_work() as counters:
        x = torch.randn(4, 3, 2, 2).to(DEVICE).requires_grad_()
        for _ in range(steps):
            for counter in (counters.launches, counters.waits, counters.uploads):
                counter.clear()
            torch.autograd.backward(norm(x).sum())
    return counters


def make_device_norm(batch_size: int | None) -> nn.Module:
    register_native_batch_norm()
    world = MirroredWorld()
    shares = BatchShares(world)
    if batch_size is not None:
        shares.set_batch_size(batch_size)
    with count_device_work():
        return synchronise_batch_norm(nn.BatchNorm2d(3), world, shares).to(DEVICE)


def test_a_layer_neither_waits_nor_uploads() -> None:
    counters = count_layer(make_device_norm(batch_size=8))
    assert not counters.waits
    assert not counters.uploads
    kernels = {name: n for name, n in counters.launches.items() if "batch_norm" in name}
    assert kernels == {
        "batch_norm_stats": 1,
        "batch_norm_gather_stats_with_counts": 1,
        "batch_norm_elemt": 1,
        "batch_norm_backward_reduce": 1,
        "batch_norm_backward_elemt": 1,
    }
    # The rest are the sum, its gradient and the accumulation of gradients.
    assert sum(counters.launches.values()) - len(kernels) <= 6
    assert count_layer(make_device_norm(batch_size=None)).waits, "shares are not known"


def test_torchs_own_module_waits_in_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`nn.SyncBatchNorm` reads the counts of the ranks, which is why it is not used itself."""
    register_native_batch_norm()
    group = SimpleNamespace(_get_backend_name=lambda: "nccl")

    def gather(out: PretendTensor, own: PretendTensor, *_: Any, **__: Any) -> None:
        out.host_tensor.copy_(own.host_tensor.repeat(2).view_as(out.host_tensor))

    monkeypatch.setattr(dist, "all_gather_single", gather)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    with count_device_work():
        norm = nn.BatchNorm2d(3).to(DEVICE)

    class TorchModule(nn.Module):
        def forward(self, x: Tensor) -> Any:
            statistics = (norm.running_mean, norm.running_var, norm.eps, norm.momentum)
            return TorchFunction.apply(x, norm.weight, norm.bias, *statistics, group, 2)  # type: ignore[no-untyped-call]

    counters = count_layer(TorchModule())
    assert sum(counters.waits.values()) == 3
    own = count_layer(make_device_norm(batch_size=8))
    assert sum(own.launches.values()) + 5 <= sum(counters.launches.values())


def test_no_float32_activations_are_kept_for_half_precision_inputs() -> None:
    world = RepeatingWorld(CPU)
    norm = synchronise_batch_norm(nn.BatchNorm2d(3), world)
    x = torch.randn(4, 3, 8, 8).bfloat16().requires_grad_()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = norm(x)
    assert out.dtype == torch.bfloat16
    large = [tensor for tensor in kept if tensor.numel() >= x.numel()]
    assert [tensor.dtype for tensor in large] == [torch.bfloat16]
    assert large[0].data_ptr() == x.data_ptr()


class RepeatingWorld(SingleProcessWorld):
    """Two ranks with the same values."""

    size = 2

    def all_gather_many(self, tensors: Any) -> list[Tensor]:
        return [torch.stack([tensor, tensor]) for tensor in tensors]


def test_a_batch_of_another_size_than_announced_is_refused() -> None:
    shares = BatchShares(RepeatingWorld(CPU))
    shares.set_batch_size(5)
    assert shares.count_values(torch.zeros(3, 2, 4, 4)).per_rank == (48, 32)
    with pytest.raises(ValueError, match=r"rank 0 has 3 images of the batch.* received 4"):
        shares.count_values(torch.zeros(4, 2))
    shares.set_images_per_rank([4, 1])
    assert shares.count_values(torch.zeros(4, 2)).per_rank == (4, 1)


def test_the_number_of_batches_is_saved_and_loaded() -> None:
    norm = synchronise_batch_norm(nn.BatchNorm2d(3), RepeatingWorld(CPU))
    for _ in range(3):
        norm(torch.randn(2, 3, 2, 2))
    state = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    assert int(state["num_batches_tracked"]) == int(norm.state_dict()["num_batches_tracked"]) == 3
    norm(torch.randn(2, 3, 2, 2))
    assert int(norm.state_dict()["num_batches_tracked"]) == 4
    norm(torch.randn(2, 3, 2, 2))
    norm.load_state_dict(state)
    assert int(norm.state_dict()["num_batches_tracked"]) == 3


def test_timm_networks_keep_names_activations_and_dropout() -> None:
    import_torchvision()
    import timm
    from timm.layers import BatchNormAct2d

    before = timm.create_model("efficientnet_lite0", num_classes=0)
    names, children = list(before.state_dict()), {}
    for name, module in before.named_modules():
        if isinstance(module, BatchNormAct2d):
            children[name] = dict(module.named_children())
    parameters = dict(before.named_parameters())
    state = {name: tensor.clone() for name, tensor in before.state_dict().items()}
    after = synchronise_batch_norm(before, RepeatingWorld(CPU))
    assert children
    for name, expected in children.items():
        converted = after.get_submodule(name)
        assert type(converted) is SynchronisedBatchNorm
        assert dict(converted.named_children()) == expected
    assert list(after.state_dict()) == names
    assert all(p is parameters[name] for name, p in after.named_parameters())
    after.load_state_dict(state)
    assert not [m for m in after.modules() if type(m) in (nn.BatchNorm2d, BatchNormAct2d)]

"""What ranks exchange: shares, sums, rows, statistics; and what they hold each."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.trainables import rank_cases as cases
from tests.trainables.rank_pool import CPU, RankPool
from trainables.batch_norm import SynchronisedBatchNorm, synchronise_batch_norm
from trainables.data.augment import Augment
from trainables.losses import build_loss, reseed
from trainables.losses.classes import sampled, start_values
from trainables.retrieval import evaluate
from trainables.training import Training
from trainables.usage import Usage, over_ranks
from trainables.vision import import_torchvision
from trainables.world import Alone, World, gather_rows, share

ALONE = Alone(CPU)


@pytest.mark.parametrize("total", [0, 1, 3, 4, 14])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shares_cover_everything_once_and_evenly(total: int, size: int) -> None:
    shares = [share(total, rank, size) for rank in range(size)]
    assert [i for s in shares for i in range(total)[s]] == list(range(total))
    lengths = [s.stop - s.start for s in shares]
    assert max(lengths) - min(lengths) <= 1


def exchanges(world: World, total: int) -> dict[str, Any]:
    own = share(total, world.rank, world.size)
    rows = torch.arange(3.0 * total).view(total, 3)
    mine = rows[own].clone().requires_grad_()
    gathered = gather_rows(world, mine, total)
    torch.autograd.backward((gathered * torch.arange(1.0, total + 1)[:, None]).sum())
    added, largest = torch.tensor([1.0, world.rank]), torch.tensor([float(world.rank)])
    world.sum_(added)
    world.maximum_(largest)
    told = torch.full((2, 2), float(world.rank)).T  # not contiguous
    world.broadcast_(told)
    return {
        "gathered": gathered.detach(),
        "gradient": mine.grad,
        "expected": torch.arange(1.0, total + 1)[own][:, None].expand(-1, 3),
        "added": added,
        "largest": largest,
        "told": told,
        "collected": list(world.collect(rows[own], total)),
    }


@pytest.mark.parametrize("total", [1, 6, 7])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_ranks_exchange_uneven_and_empty_shares(size: int, total: int, rank_pool: RankPool) -> None:
    rows = torch.arange(3.0 * total).view(total, 3)
    for rank, result in enumerate(rank_pool.run(size, exchanges, total)):
        assert torch.equal(result["gathered"], rows)
        assert torch.equal(result["gradient"], result["expected"])
        assert result["added"].tolist() == [size, sum(range(size))]
        assert result["largest"].tolist() == [size - 1]
        assert result["told"].abs().sum() == 0
        if rank == 0:
            assert torch.equal(torch.cat(result["collected"]), rows)
        else:
            assert not result["collected"]


def norms() -> dict[str, tuple[nn.Module, Tensor]]:
    """Batch norms of every kind, with inputs whose mean is large."""
    import_torchvision()
    from timm.layers import BatchNormAct2d

    generator = torch.Generator().manual_seed(0)

    def inputs(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) + 1e3

    plain = nn.BatchNorm2d(3)
    nn.init.normal_(plain.weight, generator=generator)
    return {
        "2d": (plain, inputs(7, 3, 4, 4)),
        "1d": (nn.BatchNorm1d(3, momentum=None), inputs(5, 3)),
        "bare": (nn.BatchNorm2d(3, affine=False, track_running_stats=False), inputs(6, 3, 2, 2)),
        "timm": (BatchNormAct2d(3, act_layer=nn.SiLU), inputs(3, 3, 2, 2)),
    }


def normalised(world: World, name: str) -> dict[str, Any]:
    made, inputs = norms()[name]
    module = synchronise_batch_norm(nn.Sequential(made.double()), world)
    if world.size > 1:
        assert any(isinstance(child, SynchronisedBatchNorm) for child in module.children())
    own = share(len(inputs), world.rank, world.size)
    mine = inputs[own].clone().requires_grad_()
    for _ in range(2):
        out = gather_rows(world, module(mine), len(inputs))
    torch.autograd.backward((out.sin() * torch.arange(out.numel()).view_as(out)).sum())
    weights = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    assert mine.grad is not None
    for weight in weights:
        world.sum_(weight)
    module.eval()
    return {
        "out": out.detach(),
        "gradient": world.gather(mine.grad, len(inputs)),
        "weights": weights,
        "state": module.state_dict(),
        "later": world.gather(module(mine).detach(), len(inputs)),
    }


@pytest.mark.parametrize("name", ["2d", "1d", "bare", "timm"])
@pytest.mark.parametrize("size", [2, 4])
def test_batch_norm_sees_the_global_batch(name: str, size: int, rank_pool: RankPool) -> None:
    expected = normalised(ALONE, name)
    for result in rank_pool.run(size, normalised, name):
        torch.testing.assert_close(result["out"], expected["out"], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(result["gradient"], expected["gradient"], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(result["weights"], expected["weights"], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(result["later"], expected["later"], rtol=1e-9, atol=1e-9)
        assert list(result["state"]) == list(expected["state"]), "checkpoints stay readable"
        torch.testing.assert_close(dict(result["state"]), dict(expected["state"]))


def test_one_process_keeps_its_batch_norms() -> None:
    module = nn.Sequential(nn.BatchNorm2d(3))
    before = copy.copy(module[0])
    assert type(synchronise_batch_norm(module, ALONE)[0]) is type(before)  # type: ignore[index]


@pytest.mark.parametrize("preset", ["none", "light", "papers"])
@pytest.mark.parametrize("side", [8, 12])
@pytest.mark.parametrize("squashed", [False, True])
def test_a_share_of_a_batch_looks_as_in_the_whole_batch(
    preset: str, side: int, squashed: bool
) -> None:
    augment = Augment(preset, size=8, mean=(0.5,), std=(0.5,))
    images = np.random.default_rng(0).integers(0, 256, (7, side, side, 1)).astype(np.uint8)
    aspects = np.linspace(0.5, 2, 7, dtype=np.float32) if squashed else None
    whole = augment.train(images, torch.Generator().manual_seed(3), aspects=aspects)
    parts = []
    for rank in range(9):  # two of them empty
        own = share(7, rank, 9)
        generator = torch.Generator().manual_seed(3)
        mine = None if aspects is None else aspects[own]
        parts.append(augment.train(images[own], generator, aspects=mine, part=(own.start, 7)))
    assert torch.equal(torch.cat(parts), whole)


def evaluated(world: World, case: str) -> dict[str, float]:
    random = np.random.default_rng(4)
    vectors = random.normal(size=(61, 5)).round(1)  # rounded: ties
    labels = random.integers(0, 12, 61)
    if case == "gallery":
        gallery = {"gallery": vectors[40:], "gallery_labels": labels[40:]}
        return evaluate(vectors[:40], labels[:40], ks=(1, 4), world=world, **gallery)
    return evaluate(vectors, labels, ks=(1, 4), world=world)


@pytest.mark.parametrize("case", ["plain", "gallery"])
@pytest.mark.parametrize("size", [2, 4])
def test_shared_evaluation_gives_the_same_bits(case: str, size: int, rank_pool: RankPool) -> None:
    expected = evaluated(ALONE, case)
    assert 0 < expected["map_at_r"] < 1
    assert rank_pool.run(size, evaluated, case) == [expected] * size


@pytest.mark.parametrize("n_classes", [5, 4096, 9000])
def test_proxies_start_the_same_whoever_holds_them(n_classes: int) -> None:
    whole = start_values(n_classes, (3,), slice(0, n_classes), seed=8)
    parts = [start_values(n_classes, (3,), share(n_classes, r, 3), seed=8) for r in range(3)]
    assert torch.equal(torch.cat(parts), whole)
    assert len(torch.unique(whole[:, 0])) == n_classes
    assert float(whole.norm(dim=1).square().mean()) == pytest.approx(1, rel=0.7)


def test_drawn_classes_are_the_same_whoever_holds_them() -> None:
    labels = torch.tensor([3, 8999, 4096])
    whole = sampled(labels, 9000, slice(0, 9000), 0.2, seed=(1, 2))
    parts = []
    for rank in range(3):
        own = share(9000, rank, 3)
        parts.append(sampled(labels, 9000, own, 0.2, seed=(1, 2)) + own.start)
    assert torch.equal(torch.cat(parts), whole)
    assert set(labels.tolist()) <= set(whole.tolist())
    assert len(whole) == pytest.approx(1800, rel=0.1)
    assert not torch.equal(whole, sampled(labels, 9000, slice(0, 9000), 0.2, seed=(1, 3)))


@pytest.mark.parametrize("name", ["proxy_nca", "proxy_anchor", "norm_softmax"])
def test_a_batch_of_one_class_is_compared_with_some_other(name: str) -> None:
    points: dict[str, dict[str, Any]] = {
        "proxy_nca": {"scale": 3.0},
        "proxy_anchor": {"alpha": 32.0, "delta": 0.1},
        "norm_softmax": {"temperature": 0.1},
    }
    loss = build_loss(name, n_classes=6, dim=4, negative_share=0.01, **points[name])
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    for step in range(20):
        reseed(loss, step)
        assert bool(loss(x, torch.tensor([5, 5, 5])).isfinite()), step
    for seed in range(20):
        labels = torch.tensor([4, 4])
        whole = sampled(labels, 9, slice(0, 9), 0.01, seed=(seed, 1))
        parts = [
            sampled(labels, 9, share(9, rank, 2), 0.01, seed=(seed, 1)) + share(9, rank, 2).start
            for rank in range(2)
        ]
        assert len(whole) >= 2
        assert torch.equal(torch.cat(parts), whole)


def test_a_share_of_the_negatives_is_the_loss_over_the_drawn_classes() -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 0, 7, 7, 30, 30])
    few = build_loss("norm_softmax", n_classes=40, dim=4, temperature=0.1, negative_share=0.3)
    few.double()
    reseed(few, 5)
    kept = sampled(labels, 40, slice(0, 40), 0.3, seed=(5, 1))
    small = build_loss("norm_softmax", n_classes=len(kept), dim=4, temperature=0.1).double()
    small.load_state_dict({"proxies": few.state_dict()["proxies"][kept]})
    value = few(x, labels)
    expected = small(x, torch.searchsorted(kept, labels))
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    value.backward()
    expected.backward()
    gradient, wanted = few.get_parameter("proxies").grad, small.get_parameter("proxies").grad
    assert gradient is not None
    assert wanted is not None
    assert torch.allclose(gradient[kept], wanted, rtol=1e-12)
    assert int((gradient.abs().sum(dim=1) > 0).sum()) == len(kept) < 40


def uses(world: World) -> dict[str, dict[str, float]]:
    """Figures that differ by rank; the second rank's driver does not say how busy its GPU is."""
    rank = world.rank
    use = {"memory_mib": 100.0 + rank, "node_memory_percent": 50.0 - rank, "gpu_memory_mib": 7.5}
    gpu = {} if rank == 1 else {"gpu_use_percent": 30.0 * rank}
    return {"all": over_ranks(use | gpu, world), "no gpu": over_ranks({"memory_mib": 1.0}, world)}


def test_what_ranks_use_of_their_machines_is_told_as_one(rank_pool: RankPool) -> None:
    for found in rank_pool.run(3, uses):
        assert found["all"] == {
            "memory_mib": 102.0,
            "node_memory_percent": 50.0,
            "gpu_memory_mib": 7.5,
            "gpu_use_percent": 30.0,
        }
        assert found["no gpu"] == {"memory_mib": 1.0}


def test_a_trial_reports_the_memory_of_the_rank_that_uses_most(rank_pool: RankPool) -> None:
    found = rank_pool.run(2, memory_of_an_epoch, 64)
    reported = [metrics["memory_mib"] for metrics, _ in found]
    assert reported[0] == reported[1]
    own = [mib for _, mib in found]
    assert own[1] > own[0] + 32, "the second rank does hold more"
    assert reported[0] == pytest.approx(own[1], rel=0.05)


def memory_of_an_epoch(world: World, mib: int) -> tuple[dict[str, float], float]:
    """An epoch of a trial of which later ranks hold more; its metrics, and this rank's memory."""
    held = np.ones(2 * world.rank * mib * 2**17)
    training = Training(cases.spec("triplet", kind="features"), cases.bench("features"), world)
    metrics = training.run_epoch()["metrics"]
    own = Usage().take()["memory_mib"]
    del held
    return metrics, own

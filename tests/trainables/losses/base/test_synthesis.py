"""Proxy Synthesis makes the synthetic classes of the paper for any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from trainables.losses import LOSSES, reseed_loss
from trainables.losses.base.synthesis import ProxySynthesis, SynthesisDraw, SynthesisPath
from trainables.losses.kernels.blocks import unit_rows
from trainables.losses.kernels.mixture import EmbeddingBatch

pytestmark = pytest.mark.split

HOSTS = [name for name, info in LOSSES.items() if info.family == "proxy"]
Batch = tuple[Tensor, Tensor]
Make = Callable[..., Any]


def sample_vectors(samples: EmbeddingBatch, *, on_sphere: bool = True) -> Tensor:
    """Return all samples as vectors, including the interpolated ones."""
    x, between = samples
    return (
        x
        if between is None
        else torch.cat([x, between.interpolate_rows(unit_rows(x) if on_sphere else x)])
    )


@pytest.mark.parametrize("host", HOSTS)
def test_mu_zero_is_the_host(host: str, make_loss: Make, batch: Batch) -> None:
    x, y = batch[0].requires_grad_(), batch[1]
    plain, with_plugin = make_loss(host), make_loss(f"{host}+synthesis", synthesis_mu=0.0)
    values = [loss(x, y) for loss in (plain, with_plugin)]
    torch.testing.assert_close(values[0], values[1], rtol=0.0, atol=0.0)
    of_host, of_plugin = (
        torch.autograd.grad(v, [x, *loss.parameters()])
        for v, loss in zip(values, (plain, with_plugin), strict=True)
    )
    torch.testing.assert_close(of_host, of_plugin, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("path", ["linear", "spherical"])
@pytest.mark.parametrize("host", [*HOSTS, "norm_softmax of 3"])
def test_equals_the_host_on_the_enlarged_sets(
    host: str, path: SynthesisPath, make_loss: Make, random_batch: Batch
) -> None:
    """The plug-in equals the plain host with the synthetic vectors as classes of its own.

    The plug-in mixes similarities, the plain host multiplies vectors; value and gradients agree.
    """
    x, y = random_batch[0].requires_grad_(), random_batch[1]
    host, _, several = host.partition(" of ")
    params = {"proxies_per_class": int(several)} if several else {}
    options = {"synthesis_mu": 1.5, "synthesis_draw": "sample", "synthesis_path": path}
    loss = make_loss(f"{host}+synthesis", **options, **params)
    synthesis = loss.synthesis
    assert isinstance(synthesis, ProxySynthesis)
    reseed_loss(loss, 11)
    value = loss(x, y)
    gradients = torch.autograd.grad(value, [x, loss.proxies])
    reseed_loss(loss, 11)
    samples, more_y, segments = synthesis(x, y, loss.proxies)
    more_x, extra = sample_vectors(samples, on_sphere=synthesis.on_sphere), segments[1].proxies
    assert len(extra) == 16
    tau = {"tau": 0.0} if host == "soft_triple" else {}
    plain = make_loss(host, n_classes=7 + 16, **tau, **params)
    plain.proxies.data = torch.cat([loss.proxies.detach(), extra.detach()])
    expected = plain(more_x, more_y)
    of_x, of_p = torch.autograd.grad(expected, [more_x, plain.proxies], retain_graph=True)
    wanted = [*torch.autograd.grad([more_x, extra], [x, loss.proxies], [of_x, of_p[7:]])]
    wanted[1] = wanted[1] + of_p[:7]
    if host == "soft_triple":
        # The regulariser covers only the trained centres.
        regularised = make_loss(host)
        spread = regularised(x, y) - make_loss(host, tau=0.0)(x, y)
        expected = expected + spread
        more = torch.autograd.grad(regularised(x, y), regularised.proxies)[0]
        without = make_loss(host, tau=0.0)
        wanted[1] = wanted[1] + more - torch.autograd.grad(without(x, y), without.proxies)[0]
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(list(gradients), wanted, rtol=1e-9, atol=1e-11)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    mu=st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.7]),
    seed=st.integers(0, 10),
)
def test_pairs_never_share_a_class(labels: list[int], mu: float, seed: int) -> None:
    y = torch.tensor(labels)
    first, second = ProxySynthesis(alpha=0.4, mu=mu, seed=seed).draw_pairs(y)
    assert len(first) == len(second)
    assert (y[first] != y[second]).all()
    wanted = int(len(y) * mu + 1e-9) if len(set(labels)) > 1 else 0
    assert len(first) == wanted


def test_first_members_are_used_equally_and_second_ones_are_uniform() -> None:
    y = torch.tensor([0, 0, 0, 1, 2, 2])
    synthesis = ProxySynthesis(alpha=0.4, mu=1.0, seed=0)
    counts = torch.zeros(6, 6)
    for _ in range(3000):
        first, second = synthesis.draw_pairs(y)
        assert sorted(first.tolist()) == list(range(6))
        counts[first, second] += 1
    allowed = y[:, None] != y
    expected = 3000 * allowed / allowed.sum(dim=1, keepdim=True)
    assert (counts[~allowed] == 0).all()
    assert ((counts - expected).abs() <= 5 * expected.sqrt()).all()


@pytest.mark.parametrize("draw", ["batch", "sample"])
def test_lambda_has_a_beta_distribution(draw: SynthesisDraw) -> None:
    """Beta(alpha, alpha) has the mean 1/2 and the variance 1 / (4 (2 alpha + 1))."""
    synthesis = ProxySynthesis(alpha=0.4, mu=1.0, draw=draw, seed=1)
    per_call = [synthesis.draw_lambdas(50) for _ in range(2000)]
    assert all((p == p[0]).all() == (draw == "batch") for p in per_call[:20])
    draws = torch.stack([p[0] for p in per_call])
    assert abs(float(draws.mean()) - 0.5) < 0.04
    assert abs(float(draws.var()) - 1 / (4 * 1.8)) < 0.015


@pytest.mark.parametrize("path", ["linear", "spherical"])
@pytest.mark.parametrize("several", [False, True])
def test_synthetic_vectors_are_of_unit_length_between_their_parents(
    path: SynthesisPath, several: bool, random_batch: Batch
) -> None:
    x, y = random_batch
    generator = torch.Generator().manual_seed(2)
    shape = (7, 3, 5) if several else (7, 5)
    proxies = torch.randn(*shape, dtype=torch.float64, generator=generator)
    synthesis = ProxySynthesis(alpha=1.0, mu=2.0, draw="sample", path=path, seed=4)
    samples, more_y, (_, (first_class, extra)) = synthesis(x, y, proxies)
    more_x = sample_vectors(samples)
    assert first_class == 7
    assert more_y[len(y) :].tolist() == list(range(7, 7 + 22))
    torch.testing.assert_close(more_x[: len(x)], x)
    ones = torch.ones((), dtype=torch.float64)
    for vectors in (more_x[len(x) :], extra):
        torch.testing.assert_close(vectors.norm(dim=-1), ones.expand(vectors.shape[:-1]))
    # The same draws again give the parents and the places.
    synthesis.reseed(4)
    i, j = synthesis.draw_pairs(y)
    place = synthesis.draw_lambdas(len(i))
    a, b, synthetic = normalize(x[i]), normalize(x[j]), more_x[len(x) :]
    if path == "linear":
        expected = normalize(place[:, None] * a + (1 - place)[:, None] * b)
        torch.testing.assert_close(synthetic, expected)
    else:
        angle = torch.acos((a * b).sum(-1))
        torch.testing.assert_close(torch.acos((synthetic * b).sum(-1)), place * angle)
        torch.testing.assert_close(torch.acos((synthetic * a).sum(-1)), (1 - place) * angle)
    p, q = normalize(proxies[y[i]], dim=-1), normalize(proxies[y[j]], dim=-1)
    assert torch.linalg.matrix_rank(torch.stack([p, q, extra], dim=-2), atol=1e-9).max() == 2


@pytest.mark.parametrize("path", ["linear", "spherical"])
def test_gradients_reach_both_parents(path: SynthesisPath, random_batch: Batch) -> None:
    x, y = random_batch[0].requires_grad_(), random_batch[1]
    proxies = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    proxies.requires_grad_()
    synthesis = ProxySynthesis(alpha=1.0, mu=0.1, path=path, seed=4)
    samples, _, (_, (_, extra)) = synthesis(x, y, proxies)
    more_x = sample_vectors(samples)
    weights = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    of_x, of_p = torch.autograd.grad(((more_x[-1] + extra[0]) * weights).sum(), [x, proxies])
    synthesis.reseed(4)
    i, j = synthesis.draw_pairs(y)
    assert set(torch.nonzero(of_x.norm(dim=1)).flatten().tolist()) == {int(i), int(j)}
    classes = {int(y[i]), int(y[j])}
    assert set(torch.nonzero(of_p.norm(dim=1)).flatten().tolist()) == classes


@pytest.mark.parametrize("path", ["linear", "spherical"])
def test_parallel_and_opposite_parents_stay_finite(path: SynthesisPath) -> None:
    x = torch.eye(4, dtype=torch.float64)[[0, 0, 0]] * torch.tensor([[1.0], [1.0], [-1.0]])
    x.requires_grad_()
    y = torch.tensor([0, 1, 2])
    proxies = x.detach().clone().requires_grad_()
    synthesis = ProxySynthesis(alpha=1.0, mu=4.0, draw="sample", path=path, seed=0)
    samples, _, (_, (_, extra)) = synthesis(x, y, proxies)
    more_x = sample_vectors(samples)
    for gradient in torch.autograd.grad((more_x.sum() + extra.sum()), [x, proxies]):
        assert torch.isfinite(gradient).all()
    assert torch.isfinite(more_x).all()


def test_softmax_keeps_lengths(random_batch: Batch) -> None:
    """A host with inner products gets vectors of the lengths of the parents, not unit vectors."""
    x, y = random_batch
    proxies = torch.full((7, 5), 3.0, dtype=torch.float64)
    paths: tuple[SynthesisPath, SynthesisPath] = ("linear", "spherical")
    for path in paths:
        synthesis = ProxySynthesis(alpha=1.0, mu=1.0, path=path, on_sphere=False)
        _, _, (_, (_, extra)) = synthesis(x, y, proxies)
        torch.testing.assert_close(extra, proxies[:1].expand_as(extra))


def test_randomness_is_a_function_of_the_seed(make_loss: Make, random_batch: Batch) -> None:
    loss = make_loss("proxy_anchor+synthesis")

    def run_epoch(seed: int) -> list[float]:
        reseed_loss(loss, seed)
        return [loss(*random_batch).item() for _ in range(3)]

    torch.manual_seed(0)
    first = run_epoch(1)
    torch.manual_seed(1)
    assert run_epoch(1) == first
    assert run_epoch(2) != first
    assert len(set(first)) == 3
    assert not any("random" in key for key in loss.state_dict())


@pytest.mark.parametrize("host", HOSTS)
def test_many_samples_of_a_class_are_summed_before_they_are_rounded(
    host: str, make_loss: Make
) -> None:
    """The gradient of each of two proxies is a sum of 400 small parts."""
    name, many = f"{host}+synthesis", {"n_classes": 2, "synthesis_mu": 200.0}
    half, wide = (make_loss(name, dtype=d, **many) for d in (torch.bfloat16, torch.float32))
    wide.load_state_dict(half.state_dict())
    x = torch.randn(2, half.proxies.shape[-1], generator=torch.Generator().manual_seed(3))
    gradients = []
    for loss in (half, wide):
        reseed_loss(loss, 5)
        gradients.append(torch.autograd.grad(loss(x, torch.tensor([0, 1])), loss.proxies)[0])
    computed, expected = gradients
    assert computed.dtype == torch.bfloat16
    atol = 2**-8 * float(expected.abs().max())
    torch.testing.assert_close(computed.float(), expected, rtol=2**-8, atol=atol)

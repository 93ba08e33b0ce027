"""Contract of every loss of the registry, with and without the plug-in."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.loss_gradients import compute_loss_and_gradients, set_memory_budget
from trainables.losses import (
    LOSSES,
    build_loss,
    loss_info,
    loss_params,
    reseed_loss,
    set_progress,
)
from trainables.losses.kernels.blocks import MemoryBudget

pytestmark = pytest.mark.split

PROXY = [name for name, info in LOSSES.items() if info.family == "proxy"]
PAIR = [name for name, info in LOSSES.items() if info.family == "pair"]
WITH_PLUGIN = [f"{name}+synthesis" for name in PROXY]
ALL = [*LOSSES, *WITH_PLUGIN]

Batch = tuple[Tensor, Tensor]
Make = Callable[..., Any]

# Values at and beyond the ends of the searched ranges.
EXTREMES: dict[str, list[float]] = {
    "alpha": [1000.0],
    "beta": [1000.0],
    "gamma": [1024.0, 1e-3],
    "lambda_": [1024.0],
    "scale": [1000.0],
    "temperature": [1e-3],
}


@pytest.mark.parametrize("name", ALL)
def test_the_value_is_a_scalar_and_trains_all_parameters(
    name: str, make_loss: Make, random_batch: Batch
) -> None:
    loss = make_loss(name)
    value, of_x, *of_parameters = compute_loss_and_gradients(loss, *random_batch)
    assert value.shape == ()
    assert of_x.abs().sum() > 0
    assert all(g.abs().sum() > 0 for g in of_parameters)
    assert ("proxies" in dict(loss.named_parameters())) == (loss_info(name).family == "proxy")


@pytest.mark.parametrize("name", [n for n in ALL if "circle" not in n])
def test_gradcheck(name: str, make_loss: Make, random_batch: Batch) -> None:
    """Checks one random direction of each input; the oracles compare every coordinate.

    Circle's weights are constants in backward, so its gradients have tests of their own.
    """
    x, y = random_batch
    loss = make_loss(name)

    def value(x: Tensor, *_: Tensor) -> Tensor:
        reseed_loss(loss, 3)
        result: Tensor = loss(x, y)
        return result

    inputs = (x.requires_grad_(), *loss.parameters())
    assert torch.autograd.gradcheck(value, inputs, atol=1e-5, fast_mode=True)


WITH_TEMPERATURE = [n for n in ALL if "temperature_mode" in loss_params(n)]


@pytest.mark.parametrize("rest", ["label_smoothing", "proxies_per_class"])
@pytest.mark.parametrize("name", WITH_TEMPERATURE)
def test_gradient_of_a_learned_scale(
    name: str, rest: str, make_loss: Make, random_batch: Batch
) -> None:
    """Compares with a difference; Circle is included, as its weights do not depend on the scale."""
    changed = {"label_smoothing": 0.1, "proxies_per_class": 2}
    others = {rest: changed[rest]} if rest in loss_params(name) else {}
    loss = make_loss(name, temperature_mode="learned", **others)
    names = [key.rpartition(".")[2] for key, _ in loss.named_parameters()]
    scale = list(loss.parameters())[names.index("log_scale")]
    gradient = compute_loss_and_gradients(loss, *random_batch)[2 + names.index("log_scale")]
    values = []
    for step in (1e-5, -1e-5):
        scale.data += step
        values.append(compute_loss_and_gradients(loss, *random_batch)[0])
        scale.data -= step
    torch.testing.assert_close(gradient, (values[0] - values[1]) / 2e-5, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in ALL if loss_info(n).on_sphere])
def test_lengths_do_not_count(name: str, make_loss: Make, random_batch: Batch) -> None:
    x, y = random_batch
    loss = make_loss(name)
    value, of_x, *of_parameters = compute_loss_and_gradients(loss, x, y)
    factors = torch.logspace(-3, 3, len(x), dtype=x.dtype)[:, None]
    scaled, of_scaled, *of_same = compute_loss_and_gradients(loss, x * factors, y)
    torch.testing.assert_close(scaled, value, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(of_scaled * factors, of_x, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(of_same, of_parameters, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_order_of_the_batch_does_not_count(name: str, make_loss: Make, random_batch: Batch) -> None:
    x, y = random_batch
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    loss = make_loss(name)
    value, of_x, *of_parameters = compute_loss_and_gradients(loss, x, y)
    same, of_shuffled, *of_same = compute_loss_and_gradients(loss, x[order], y[order])
    torch.testing.assert_close(same, value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of_shuffled, of_x[order], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(of_same, of_parameters, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ALL)
def test_finite_at_extremes(name: str, make_loss: Make, batch: Batch) -> None:
    """In float32, with samples exactly on and opposite their proxies in the batch."""
    changes: list[dict[str, float]] = [{}]
    if not name.startswith("margin"):
        changes += [{k: v} for k in loss_params(name) for v in EXTREMES.get(k, [])]
    if "arcface" in name:
        changes.append({"gamma": 1024.0, "m": 1.5})
    for changed in changes:
        loss = make_loss(name, dtype=torch.float32, **changed)
        x, y = batch[0].float(), batch[1]
        if hasattr(loss, "proxies"):
            own = loss.proxies.detach()[y]
            own = own[:, 0] if own.dim() == 3 else own
            x = torch.cat([x, own, -own])
            y = torch.cat([y, y, y])
        for tensor in compute_loss_and_gradients(loss, x, y):
            assert torch.isfinite(tensor).all(), (name, changed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [n for n in PROXY if n not in ("proxy_nca", "proxy_anchor")])
def test_one_class_leaves_nothing_to_learn(
    name: str, dtype: torch.dtype, make_loss: Make, random_batch: Batch
) -> None:
    """The softmax over one class is 1 for any margin, so loss and gradients are zero."""
    loss = make_loss(
        name, n_classes=1, dtype=dtype, **({"tau": 0.0} if "tau" in loss_params(name) else {})
    )
    x = random_batch[0].to(dtype)
    for tensor in compute_loss_and_gradients(loss, x, torch.zeros(len(x), dtype=torch.int64)):
        assert (tensor == 0).all()


@pytest.mark.parametrize("name", ALL)
def test_a_zero_embedding_is_harmless(name: str, make_loss: Make, random_batch: Batch) -> None:
    x, y = random_batch
    x = x.clone()
    x[0] = 0.0
    for tensor in compute_loss_and_gradients(make_loss(name), x, y):
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ALL)
def test_half_precision_is_only_storage(
    name: str, dtype: torch.dtype, make_loss: Make, random_batch: Batch
) -> None:
    """Half-precision inputs give the results of their float32 values."""
    x, y = random_batch[0].to(dtype), random_batch[1]
    loss = make_loss(name, dtype=torch.float32)
    value, of_x, *of_parameters = compute_loss_and_gradients(loss, x, y)
    wide, of_wide, *of_wide_parameters = compute_loss_and_gradients(loss, x.float(), y)
    assert value.dtype == torch.float32
    assert of_x.dtype == dtype
    torch.testing.assert_close(value, wide)
    torch.testing.assert_close(of_x, of_wide.to(dtype))
    torch.testing.assert_close(of_parameters, of_wide_parameters)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, *_ = compute_loss_and_gradients(loss, x.float(), y)
    torch.testing.assert_close(inside, wide)


@pytest.mark.parametrize("name", [*PROXY, *WITH_PLUGIN])
def test_half_proxies(name: str, make_loss: Make, random_batch: Batch) -> None:
    loss = make_loss(name, dtype=torch.bfloat16)
    wide = copy.deepcopy(loss).float()
    x, y = random_batch[0].float(), random_batch[1]
    computed, expected = (
        compute_loss_and_gradients(loss, x, y),
        compute_loss_and_gradients(wide, x, y),
    )
    torch.testing.assert_close(computed[:2], expected[:2], rtol=1e-4, atol=1e-5)
    assert computed[2].dtype == torch.bfloat16
    # Rounded once, and once more when the plug-in adds its part.
    largest = float(expected[2].abs().max())
    rtol, atol = 2**-8, 2**-9 * largest if "+" in name else 1e-3
    torch.testing.assert_close(computed[2].float(), expected[2], rtol=rtol, atol=atol)


@pytest.mark.parametrize("block_bytes", [1, 2000, 0])
@pytest.mark.parametrize("name", [*PROXY, *WITH_PLUGIN])
def test_streaming_equals_direct(
    name: str, block_bytes: int, make_loss: Make, batch: Batch
) -> None:
    """One class per block, a few, or all; kept for backward or computed again."""
    loss = make_loss(name)
    set_memory_budget(loss, MemoryBudget(keep_bytes=2**30, block_bytes=2**30))
    direct = compute_loss_and_gradients(loss, *batch)
    for keep_bytes in (0, 2**30):
        set_memory_budget(loss, MemoryBudget(keep_bytes, block_bytes))
        streamed = compute_loss_and_gradients(loss, *batch)
        torch.testing.assert_close(streamed, direct, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_backward_twice(name: str, make_loss: Make, random_batch: Batch) -> None:
    """Backward overwrites kept similarities; a second backward must not depend on them."""
    x, y = random_batch[0].requires_grad_(), random_batch[1]
    loss = make_loss(name)
    inputs = [x, *loss.parameters()]
    value = loss(x, y)
    first = torch.autograd.grad(value, inputs, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(value, inputs), first, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", ALL)
def test_survives_pickling_and_loading(name: str, make_loss: Make, random_batch: Batch) -> None:
    loss = make_loss(name)
    restored = make_loss(name)
    for parameter in restored.parameters():
        nn.init.normal_(parameter)
    buffer = io.BytesIO()
    torch.save(loss.state_dict(), buffer)
    buffer.seek(0)
    restored.load_state_dict(torch.load(buffer, weights_only=True))
    expected = compute_loss_and_gradients(loss, *random_batch)
    torch.testing.assert_close(
        compute_loss_and_gradients(restored, *random_batch), expected, rtol=0.0, atol=0.0
    )
    torch.testing.assert_close(
        compute_loss_and_gradients(copy.deepcopy(loss), *random_batch), expected, rtol=0.0, atol=0.0
    )


@pytest.mark.parametrize("name", [*PROXY, *WITH_PLUGIN])
def test_the_seed_determines_the_initial_proxies(name: str) -> None:
    def start(seed: int) -> Tensor:
        params: dict[str, Any] = {
            k: {"float": 0.5, "int": 2}.get(i.type.__name__, i.default)
            for k, i in loss_params(name).items()
            if i.required
        }
        proxies = build_loss(name, n_classes=9, dim=400, seed=seed, **params).proxies
        assert isinstance(proxies, Tensor)
        return proxies.detach()

    torch.testing.assert_close(start(1), start(1), rtol=0.0, atol=0.0)
    assert not torch.equal(start(1), start(2))
    lengths = start(1).norm(dim=-1)
    assert ((lengths > 0.8) & (lengths < 1.2)).all()


@pytest.mark.parametrize("name", WITH_TEMPERATURE)
def test_annealed_and_learned_temperatures_start_and_end_as_documented(
    name: str, make_loss: Make, random_batch: Batch
) -> None:
    """Annealed: hotter at the start, as fixed at the end; learned: as fixed at the start."""
    fixed = compute_loss_and_gradients(make_loss(name), *random_batch)
    annealed = make_loss(name, temperature_mode="annealed", anneal_ratio=8.0)
    assert not torch.isclose(
        compute_loss_and_gradients(annealed, *random_batch)[0], fixed[0], rtol=1e-3
    )
    set_progress(annealed, 1.0)
    torch.testing.assert_close(compute_loss_and_gradients(annealed, *random_batch), fixed)
    learned = compute_loss_and_gradients(make_loss(name, temperature_mode="learned"), *random_batch)
    torch.testing.assert_close(learned[:3], fixed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_hyperparameters_are_described_and_checked(name: str) -> None:
    known = loss_params(name)
    required = [k for k, info in known.items() if info.required]
    with pytest.raises(ValueError, match="known:") as unknown:
        build_loss(name, n_classes=3, dim=4, no_such_param=1.0)
    assert all(param in str(unknown.value) for param in known)
    if required:
        with pytest.raises(ValueError, match=f"missing.*{required[0]}"):
            build_loss(name, n_classes=3, dim=4)
    numeric = next(k for k, info in known.items() if info.type is float)
    for wrong in ("1.0", True, float("nan"), float("inf"), None):
        params: dict[str, Any] = {**dict.fromkeys(required, 1.0), numeric: wrong}
        with pytest.raises(ValueError, match=numeric):
            build_loss(name, n_classes=3, dim=4, **params)


class IndexOnly:
    """An integer type that supports nothing but `__index__`."""

    def __init__(self, value: float) -> None:
        self.value = int(value)

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize("name", ALL)
def test_numbers_of_any_type_are_accepted(name: str, random_batch: Batch) -> None:
    known = loss_params(name)
    kinds: list[Callable[[float], Any]] = [int, float, np.int64, np.float32, IndexOnly]
    values = []
    for kind in kinds:
        given = {k: kind(1) for k, info in known.items() if info.type in (int, float)}
        given |= {k: value for k, value in (("label_smoothing", kind(0)),) if k in known}
        if "learn_beta" in known:
            given["learn_beta"] = np.bool_(True)
        size = int if kind in (float, np.float32) else kind
        loss = build_loss(name, n_classes=size(7), dim=size(5), **given).double()
        reseed_loss(loss, 3)
        values.append(float(loss(*random_batch).detach()))
    assert values == [values[0]] * len(kinds)


@pytest.mark.parametrize("name", [name for name in ALL if loss_info(name).on_sphere])
@pytest.mark.parametrize("factor", [1e-25, 1e-19, 1e19, 1e25])
def test_any_finite_length_in_float32(
    name: str, factor: float, make_loss: Make, random_batch: Batch
) -> None:
    loss = make_loss(name, dtype=torch.float32)
    x, y = random_batch[0].float(), random_batch[1]
    value, slope, *proxies = compute_loss_and_gradients(loss, x, y)
    far, far_slope, *far_proxies = compute_loss_and_gradients(loss, x * factor, y)
    torch.testing.assert_close(far, value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(far_slope.double() * factor, slope.double(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(far_proxies, proxies, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_wrong_batches_are_refused(name: str, make_loss: Make) -> None:
    loss = make_loss(name, n_classes=3, dim=4, dtype=torch.float32)
    x, y = torch.ones(2, 4), torch.tensor([0, 1])
    for wrong_x, wrong_y, words in (
        (x, torch.tensor([0, 3]), r"\[0, 3\)"),
        (x, torch.tensor([-1, 0]), r"\[0, 3\)"),
        (x, y[:1], "int64"),
        (x, y.float(), "int64"),
        (x[:, :3], y, "shape"),
        (x[:0], y[:0], "shape"),
    ):
        with pytest.raises(ValueError, match=words):
            loss(wrong_x, wrong_y)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("proxy_anchor", {"alpha": 0.0, "delta": 0.1}, "alpha > 0"),
        ("norm_softmax", {"temperature": 0.0}, "temperature > 0"),
        ("norm_softmax", {"temperature": 0.1, "temperature_mode": "warm"}, "one of"),
        ("norm_softmax", {"temperature": 0.1, "proxies_per_class": 0}, "proxies per class.*0"),
        (
            "norm_softmax",
            {"temperature": 0.1, "proxies_per_class": 1.5},
            r"proxies_per_class.*1\.5",
        ),
        ("norm_softmax", {"temperature": 0.1, "label_smoothing": 1.0}, "label_smoothing < 1"),
        ("norm_softmax", {"temperature": 0.1, "anneal_ratio": 0.5}, "anneal_ratio >= 1"),
        ("arcface", {"gamma": 64.0, "m": 28.6}, "radians"),
        ("arcface", {"gamma": -1.0, "m": 0.1}, "`gamma > 0`.*-1"),
        ("am_softmax", {"gamma": -1.0, "m": 0.1}, "`gamma > 0`.*-1"),
        ("unified", {"gamma": -1.0, "m": 0.1}, "`gamma > 0`.*-1"),
        ("circle", {"gamma": -1.0, "m": 0.1}, "`gamma > 0`.*-1"),
        ("proxy_nca", {"scale": -1.0}, "`scale > 0`.*-1"),
        ("circle_pair", {"gamma": 80.0, "m": 0.4, "reduction": "sum"}, "one of"),
        ("triplet", {"margin": 0.1, "mining": "soft"}, "one of"),
        ("margin", {"margin": 0.1, "learn_beta": 1}, "true or false"),
        (
            "proxy_anchor+synthesis",
            {"alpha": 32.0, "delta": 0.1, "synthesis_alpha": 0.0, "synthesis_mu": 1.0},
            "synthesis_alpha > 0",
        ),
        (
            "proxy_anchor+synthesis",
            {"alpha": 32.0, "delta": 0.1, "synthesis_alpha": 0.4, "synthesis_mu": -1.0},
            "synthesis_mu >= 0",
        ),
    ],
)
def test_impossible_values_are_refused(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_loss(name, n_classes=5, dim=4, **params)

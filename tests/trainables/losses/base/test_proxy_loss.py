"""Base of the proxy losses: sampled negatives, numbers of proxies and checked batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainables.losses import build_loss, reseed_loss
from trainables.losses.base.classes import sample_classes
from trainables.losses.base.proxy_loss import LossSetup, ProxyLoss, check_batch

pytestmark = pytest.mark.split


@pytest.mark.parametrize("name", ["proxy_nca", "proxy_anchor", "norm_softmax"])
def test_a_batch_of_one_class_is_compared_with_another_class(name: str) -> None:
    points: dict[str, dict[str, Any]] = {
        "proxy_nca": {"scale": 3.0},
        "proxy_anchor": {"alpha": 32.0, "delta": 0.1},
        "norm_softmax": {"temperature": 0.1},
    }
    loss = build_loss(name, n_classes=6, dim=4, negative_share=0.01, **points[name])
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    for step in range(20):
        reseed_loss(loss, step)
        assert bool(loss(x, torch.tensor([5, 5, 5])).isfinite()), step


def test_a_share_of_the_negatives_is_the_loss_over_the_drawn_classes() -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 0, 7, 7, 30, 30])
    few = build_loss("norm_softmax", n_classes=40, dim=4, temperature=0.1, negative_share=0.3)
    few.double()
    reseed_loss(few, 5)
    drawn = sample_classes(labels, 40, slice(0, 40), 0.3, seed=(5, 1))
    small = build_loss("norm_softmax", n_classes=len(drawn), dim=4, temperature=0.1).double()
    small.load_state_dict({"proxies": few.state_dict()["proxies"][drawn]})
    value = few(x, labels)
    expected = small(x, torch.searchsorted(drawn, labels))
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    value.backward()
    expected.backward()
    gradient, wanted = few.get_parameter("proxies").grad, small.get_parameter("proxies").grad
    assert gradient is not None
    assert wanted is not None
    assert torch.allclose(gradient[drawn], wanted, rtol=1e-12)
    assert int((gradient.abs().sum(dim=1) > 0).sum()) == len(drawn) < 40


def test_reseeding_repeats_the_drawn_classes() -> None:
    loss = build_loss("norm_softmax", n_classes=200, dim=4, temperature=0.1, negative_share=0.1)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

    def run_epoch(seed: int) -> list[float]:
        reseed_loss(loss, seed)
        return [float(loss(x, torch.tensor([0, 1, 2])).detach()) for _ in range(3)]

    first = run_epoch(1)
    assert len(set(first)) == 3
    assert run_epoch(1) == first
    assert run_epoch(2) != first


@pytest.mark.parametrize(("per_class", "shape"), [(1, (5, 4)), (3, (5, 3, 4)), (2.0, (5, 2, 4))])
def test_the_shape_of_the_proxies(per_class: int, shape: tuple[int, ...]) -> None:
    loss = ProxyLoss(LossSetup(5, 4), torch.nn.Identity(), proxies_per_class=per_class)
    assert loss.proxies.shape == shape


@pytest.mark.parametrize("per_class", [0, -1, 1.5, True])
def test_an_impossible_number_of_proxies_is_refused(per_class: Any) -> None:
    with pytest.raises(ValueError, match=f"proxies per class.*{per_class}"):
        ProxyLoss(LossSetup(5, 4), torch.nn.Identity(), proxies_per_class=per_class)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_classes": 0}, "`n_classes >= 1`.*0"),
        ({"dim": 2.5}, r"`dim >= 1`.*2\.5"),
        ({"seed": "a"}, "`seed` must be an integer"),
        ({"negative_share": 0.0}, "`0 < negative_share <= 1`"),
        ({"negative_share": 1.5}, "`0 < negative_share <= 1`"),
    ],
)
def test_an_impossible_setup_is_refused(changed: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"n_classes": 5, "dim": 4, **changed}
    with pytest.raises(ValueError, match=words):
        LossSetup(**arguments)


def test_a_batch_of_the_right_shape_passes() -> None:
    check_batch(torch.zeros(2, 4), torch.tensor([0, 2]), n_classes=3, dim=4)
    with pytest.raises(ValueError, match=r"\[0, 2\).*0 to 2"):
        check_batch(torch.zeros(2, 4), torch.tensor([0, 2]), n_classes=2, dim=4)

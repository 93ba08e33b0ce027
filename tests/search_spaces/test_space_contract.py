"""Every search space is sound, and every hyperparameter it searches changes its loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from optuna.distributions import CategoricalDistribution

from search_spaces import SPACES, TRAINING_PARAMS, find_optional_param, get_space
from search_spaces.claims import (
    BetterLoss,
    BetterValue,
    CostRatio,
    FasterLoss,
    GoodValue,
    HigherMetric,
    Sensitive,
    StableRange,
)
from search_spaces.space import ParamValue, SearchSpace, in_range
from search_spaces.unit_scale import from_unit
from tests.support.all_spaces import ALL_SPACES, SPACE_NAMES, compute_loss_value, make_space_id
from trainables.losses import LOSSES, build_loss, loss_params

pytestmark = pytest.mark.split

LOSS_PARAMS = [
    (space, param)
    for space in ALL_SPACES
    for param in space.searched_params
    if param in loss_params(space.loss)
]


@pytest.mark.parametrize("space", ALL_SPACES, ids=make_space_id)
def test_searched_params_belong_to_the_loss_or_to_the_training(space: SearchSpace) -> None:
    known = loss_params(space.loss)
    for param in (*space.searched_params, *space.fixed):
        assert (param in known) != (param in TRAINING_PARAMS)
    required = {k for k, info in known.items() if info.required}
    assert required <= set(space.searched_params) | set(space.fixed)
    assert ("proxy_lr" in space.searched_params) == (
        LOSSES[space.loss.split("+")[0]].family == "proxy"
    )
    # Optional hyperparameters that are not searched by default have a range of their own.
    for param in set(known) - set(space.searched_params):
        optional = find_optional_param(space.loss, param)
        assert optional is not None, param
        default = known[param].default
        assert default is not None
        assert in_range(optional.distribution, default)


@pytest.mark.parametrize(("space", "param"), LOSS_PARAMS, ids=make_space_id)
def test_moving_a_param_moves_the_loss(space: SearchSpace, param: str) -> None:
    """A hyperparameter that is searched but never applied would falsify every analysis."""
    point = dict(space.published[0].values)
    distribution = space.searched_params[param].distribution
    values = {
        compute_loss_value(space, {**point, param: from_unit(distribution, u)})
        for u in (0.0, 0.5, 1.0)
    }
    assert len(values) == 3


@pytest.mark.parametrize(
    ("loss", "param"),
    [
        (name, k)
        for name in SPACE_NAMES
        for k in loss_params(name)
        if k not in get_space(name).searched_params
    ],
)
def test_moving_an_optional_param_moves_the_loss(loss: str, param: str) -> None:
    space = get_space(loss)
    point = dict(space.published[0].values)
    # Some have an effect only together with another.
    required_settings: dict[str, dict[str, ParamValue]] = {
        "anneal_ratio": {"temperature_mode": "annealed"},
        "nu": {"learn_beta": True},
    }
    point |= required_settings.get(param, {})
    info, optional = loss_params(loss)[param], find_optional_param(loss, param)
    assert optional is not None
    if param == "learn_beta":
        learned = build_loss(loss, n_classes=3, dim=4, margin=0.2, learn_beta=True)
        assert len(list(learned.parameters())) == 1
        return
    distribution = optional.distribution
    if isinstance(distribution, CategoricalDistribution):
        candidates: list[ParamValue] = list(distribution.choices)  # type: ignore[arg-type]
        assert set(candidates) == set(info.choices or (False, True))
    else:
        candidates = [from_unit(distribution, 0.0), from_unit(distribution, 1.0)]
    values = [compute_loss_value(space, {**point, param: candidate}) for candidate in candidates]
    # A learned temperature starts at the fixed one.
    n_different = 2 if param == "temperature_mode" else len(values)
    assert len({round(v, 9) for v in values}) >= min(n_different, len(values))


@pytest.mark.parametrize("space", ALL_SPACES, ids=make_space_id)
def test_published_points_are_inside_and_build(space: SearchSpace) -> None:
    assert space.published
    for point in space.published:
        space.check_point(point.values)
        assert point.source
        assert torch.isfinite(torch.tensor(compute_loss_value(space, point.values)))


@pytest.mark.parametrize("space", ALL_SPACES, ids=make_space_id)
def test_corners_build_and_stay_finite(space: SearchSpace) -> None:
    for u in (0.0, 1.0):
        point = {k: from_unit(d, u) for k, d in space.distributions.items()}
        space.check_point(point)
        assert torch.isfinite(torch.tensor(compute_loss_value(space, point)))


@pytest.mark.parametrize("space", ALL_SPACES, ids=make_space_id)
def test_symbols_reasons_and_claim_names_are_complete(space: SearchSpace) -> None:
    for name, param in space.searched_params.items():
        assert param.symbol, name
        assert param.reason.endswith("."), name
        assert len(param.reason) > 20, name
    symbols = [param.symbol for param in space.searched_params.values()]
    assert len(set(symbols)) == len(symbols)
    assert len({claim.name for claim in space.claims}) == len(space.claims)


@pytest.mark.parametrize(
    ("loss", "symbols"),
    [
        ("norm_softmax", "σ"),
        ("am_softmax", "s m"),
        ("arcface", "s m"),
        ("proxy_nca", "s"),
        ("proxy_nca_pp", "T"),
        ("soft_triple", "λ γ τ δ K"),
        ("proxy_anchor", "α δ"),
        ("circle", "γ m"),
        ("circle_pair", "γ m"),
        ("unified", "γ m"),
        ("unified_pair", "γ m"),
        ("triplet", "m"),
        ("contrastive", "m m₊"),
        ("multi_similarity", "α β λ"),
        ("margin", "α β"),
    ],
)
def test_symbols_are_those_of_the_paper_of_the_loss(loss: str, symbols: str) -> None:
    """Proxy-NCA's factor and the margin of positive pairs are newer than their papers."""
    params = get_space(loss).scientific
    assert [params[name].symbol for name in params if name in loss_params(loss)] == symbols.split()


@pytest.mark.parametrize("space", ALL_SPACES, ids=make_space_id)
def test_a_space_survives_json(space: SearchSpace) -> None:
    text = json.dumps(space.to_dict())
    restored = SearchSpace.from_dict(json.loads(text))
    assert restored == space
    assert restored.version_hash == space.version_hash


@pytest.mark.parametrize("space", ALL_SPACES, ids=make_space_id)
def test_trials_can_decide_every_claim(space: SearchSpace) -> None:
    """The hyperparameters exist and can take the values; the other losses exist."""
    ranges = {
        k: param.distribution for k, param in {**TRAINING_PARAMS, **space.searched_params}.items()
    }
    for claim in space.claims:
        test = claim.test
        assert claim.statement.endswith(".")
        assert claim.source
        match test:
            case BetterLoss(other) | FasterLoss(other) | CostRatio(other, _):
                assert other in SPACES or (other == "HOST" and "+" in space.loss)
            case HigherMetric(metric, other):
                assert metric
                assert other in SPACES or (other == "HOST" and "+" in space.loss)
            case StableRange(param, low, high):
                assert all(in_range(ranges[param], v) for v in (low, high) if v is not None)
            case GoodValue(param, value):
                assert in_range(ranges[param], value)
            case BetterValue(param, better, worse):
                if space.loss == "proxy_nca_pp" and param in space.fixed:
                    continue
                for side in (better, worse):
                    ends = side if isinstance(side, tuple) else (side,)
                    assert all(_reachable(ranges[param], end) for end in ends), (claim.name, side)
            case Sensitive(param):
                assert param in ranges


def _reachable(distribution: Any, value: ParamValue) -> bool:
    # The rates of a variant may exclude the low end of a range; the claim can still be decided.
    return in_range(distribution, value) or (
        isinstance(value, float) and value <= distribution.high
    )

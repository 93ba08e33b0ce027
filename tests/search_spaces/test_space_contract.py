"""Is every space sound, and does every knob it searches reach the loss it is named after?"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from search_spaces import EXTRA, SPACES, TRAINING_KNOBS, VARIANTS, extra_knob, get_space
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
from search_spaces.scale import from_unit
from search_spaces.space import Space, Value, in_range
from trainables.losses import LOSSES, build_loss, loss_knobs, reseed

HOSTS = [name for name, info in LOSSES.items() if info.family == "proxy"]
NAMES = [*SPACES, *(f"{host}+synthesis" for host in HOSTS)]
ALL = [get_space(name) for name in NAMES] + list(VARIANTS.values())
KNOBS = [
    (space, knob) for space in ALL for knob in space.searched if knob in loss_knobs(space.loss)
]


def label(value: Any) -> str:
    return value.loss if isinstance(value, Space) else str(value)


def split(space: Space, point: dict[str, Value]) -> dict[str, Any]:
    known = loss_knobs(space.loss)
    return {k: v for k, v in {**space.fixed, **point}.items() if k in known}


def value_of(space: Space, point: dict[str, Value]) -> float:
    """The loss on one fixed batch, far from any optimum."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 6, dtype=torch.float64, generator=generator)
    y = torch.arange(24) // 3
    y[-1] = 8  # alone in its class: no anchor of a pair loss
    loss = build_loss(space.loss, n_classes=9, dim=6, **split(space, point)).double()
    reseed(loss, 1)
    return float(loss(x, y).item())


def test_every_loss_has_a_space_and_every_space_a_loss() -> None:
    assert list(SPACES) == list(LOSSES)
    assert all(space.loss == name for name, space in SPACES.items())


@pytest.mark.parametrize("space", ALL, ids=label)
def test_searched_knobs_are_the_loss_s_or_the_training_s(space: Space) -> None:
    known = loss_knobs(space.loss)
    for knob in (*space.searched, *space.fixed):
        assert (knob in known) != (knob in TRAINING_KNOBS)
    required = {k for k, info in known.items() if info.required}
    assert required <= set(space.searched) | set(space.fixed)
    assert ("proxy_lr" in space.searched) == (LOSSES[space.loss.split("+")[0]].family == "proxy")
    # Optional knobs that are not searched can still be asked for.
    for knob in set(known) - set(space.searched):
        extra = extra_knob(space.loss, knob)
        assert extra is not None, knob
        default = known[knob].default
        assert default is not None
        assert in_range(extra.distribution, default)


@pytest.mark.parametrize(("space", "knob"), KNOBS, ids=label)
def test_moving_a_knob_moves_the_loss(space: Space, knob: str) -> None:
    """A knob that is searched but never applied makes every analysis a lie."""
    point = dict(space.published[0].values)
    distribution = space.searched[knob].distribution
    values = {value_of(space, {**point, knob: from_unit(distribution, u)}) for u in (0.0, 0.5, 1.0)}
    assert len(values) == 3


@pytest.mark.parametrize(
    ("loss", "knob"),
    [(name, k) for name in NAMES for k in loss_knobs(name) if k not in get_space(name).searched],
)
def test_moving_an_optional_knob_moves_the_loss(loss: str, knob: str) -> None:
    space = get_space(loss)
    point = dict(space.published[0].values)
    # Some only count beside another.
    beside: dict[str, dict[str, Value]] = {
        "anneal_ratio": {"temperature_mode": "annealed"},
        "nu": {"learn_beta": True},
    }
    point |= beside.get(knob, {})
    info, extra = loss_knobs(loss)[knob], extra_knob(loss, knob)
    assert extra is not None
    if knob == "learn_beta":
        learned = build_loss(loss, n_classes=3, dim=4, margin=0.2, learn_beta=True)
        assert len(list(learned.parameters())) == 1
        return
    choices = extra.distribution
    if isinstance(choices, CategoricalDistribution):
        candidates: list[Value] = list(choices.choices)  # type: ignore[arg-type]
        assert set(candidates) == set(info.choices or (False, True))
    else:
        candidates = [from_unit(choices, 0.0), from_unit(choices, 1.0)]
    values = [value_of(space, {**point, knob: candidate}) for candidate in candidates]
    same = 2 if knob == "temperature_mode" else len(values)  # learned starts as fixed
    assert len({round(v, 9) for v in values}) >= min(same, len(values))


@pytest.mark.parametrize("space", ALL, ids=label)
def test_published_points_are_inside_and_build(space: Space) -> None:
    assert space.published
    for point in space.published:
        space.check_point(point.values)
        assert point.source
        assert torch.isfinite(torch.tensor(value_of(space, dict(point.values))))


@pytest.mark.parametrize("space", ALL, ids=label)
def test_corners_build_and_stay_finite(space: Space) -> None:
    for u in (0.0, 1.0):
        point = {k: from_unit(d, u) for k, d in space.distributions.items()}
        space.check_point(point)
        assert torch.isfinite(torch.tensor(value_of(space, point)))


@pytest.mark.parametrize("space", ALL, ids=label)
def test_words_for_people(space: Space) -> None:
    for name, knob in space.searched.items():
        assert knob.symbol, name
        assert knob.reason.endswith("."), name
        assert len(knob.reason) > 20, name
    symbols = [knob.symbol for knob in space.searched.values()]
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
def test_symbols_are_those_of_the_loss_s_own_paper(loss: str, symbols: str) -> None:
    """Proxy-NCA's factor and a margin on positive pairs are later than their papers."""
    knobs = get_space(loss).scientific
    assert [knobs[name].symbol for name in knobs if name in loss_knobs(loss)] == symbols.split()


@pytest.mark.parametrize("space", ALL, ids=label)
def test_goes_through_json_and_back(space: Space) -> None:
    text = json.dumps(space.to_dict())
    again = Space.from_dict(json.loads(text))
    assert again == space
    assert again.version == space.version


def test_version_follows_the_search_not_the_words() -> None:
    space = get_space("proxy_anchor")
    assert get_space("proxy_anchor").version == space.version
    assert dataclasses.replace(space, claims=()).version == space.version
    narrower = space.with_changes(search={"alpha": TRAINING_KNOBS["clip_grad"].distribution})
    assert narrower.version != space.version
    assert len({s.version for s in ALL}) == len(ALL)


@pytest.mark.parametrize("space", ALL, ids=label)
def test_claims_can_be_put_to_trials(space: Space) -> None:
    """Knobs exist and their values can be drawn; other losses exist."""
    ranges = {k: knob.distribution for k, knob in {**TRAINING_KNOBS, **space.searched}.items()}
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
            case StableRange(knob, low, high):
                assert all(in_range(ranges[knob], v) for v in (low, high) if v is not None)
            case GoodValue(knob, value):
                assert in_range(ranges[knob], value)
            case BetterValue(knob, better, worse):
                if space.loss == "proxy_nca_pp" and knob in space.fixed:
                    continue
                for side in (better, worse):
                    ends = side if isinstance(side, tuple) else (side,)
                    assert all(_reachable(ranges[knob], end) for end in ends), (claim.name, side)
            case Sensitive(knob):
                assert knob in ranges


def _reachable(distribution: Any, value: Value) -> bool:
    return in_range(distribution, value) or (
        # The variant's own rates make one end of a range unreachable, not the question.
        isinstance(value, float) and value <= distribution.high
    )


def test_the_claims_of_the_papers_are_there() -> None:
    def kinds(name: str) -> set[tuple[str, str]]:
        claims = get_space(name).claims
        return {
            (type(c.test).__name__, str(getattr(c.test, "knob", getattr(c.test, "other", ""))))
            for c in claims
        }

    assert {
        ("StableRange", "alpha"),
        ("StableRange", "delta"),
        ("BetterLoss", "proxy_nca"),
        ("FasterLoss", "proxy_nca"),
        ("Sensitive", "batch_size"),
    } <= kinds("proxy_anchor")
    assert {
        ("Sensitive", "temperature"),
        ("GoodValue", "temperature"),
        ("BetterValue", "pooling"),
        ("BetterValue", "proxy_lr"),
        ("BetterLoss", "proxy_nca"),
    } <= kinds("proxy_nca_pp")
    for host in HOSTS:
        assert {
            ("BetterLoss", "HOST"),
            ("Sensitive", "synthesis_alpha"),
            ("Sensitive", "synthesis_mu"),
            ("CostRatio", "HOST"),
        } <= kinds(f"{host}+synthesis")
    assert {
        ("StableRange", "gamma"),
        ("StableRange", "m"),
        ("BetterLoss", "am_softmax"),
        ("BetterLoss", "triplet"),
        ("HigherMetric", "am_softmax"),
    } <= kinds("circle")


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="did you mean 'proxy_anchor'"):
        get_space("proxy_ancor")
    with pytest.raises(ValueError, match="'triplet' has none"):
        get_space("triplet+synthesis")
    with pytest.raises(ValueError, match="takes no plug-in"):
        get_space("pml:ProxyAnchorLoss+synthesis")
    with pytest.raises(ValueError, match="known: official"):
        get_space("proxy_nca_pp", variant="oficial")
    assert get_space("proxy_nca_pp", variant="official").fixed["adam_eps"] == 1.0


def test_composition_keeps_host_and_plugin_apart() -> None:
    host, both = get_space("proxy_anchor"), get_space("proxy_anchor+synthesis")
    assert set(both.searched) == set(host.searched) | {"synthesis_alpha", "synthesis_mu"}
    assert both.published[0].values["synthesis_alpha"] == 0.4
    assert both.published[0].values["alpha"] == host.published[0].values["alpha"]
    assert not {claim.name for claim in both.claims} & {claim.name for claim in host.claims}


def test_other_ready_made_spaces_are_what_their_papers_ran() -> None:
    normface = get_space("norm_softmax", variant="normface")
    assert normface.fixed == {"temperature_mode": "learned"}
    assert normface.published[0].values["temperature"] == 0.1
    assert get_space("triplet", variant="semihard").fixed == {"mining": "semihard"}


def test_extra_knobs_have_reasons() -> None:
    for knob in (*EXTRA.values(), *TRAINING_KNOBS.values()):
        assert knob.reason.endswith(".")


def test_a_value_between_the_steps_of_a_range_cannot_be_drawn() -> None:
    assert in_range(FloatDistribution(8.0, 128.0, step=10.0), 38.0)
    assert not in_range(FloatDistribution(8.0, 128.0, step=10.0), 32.0)
    assert not in_range(IntDistribution(16, 240, step=32), 32)
    space = get_space("proxy_anchor").with_changes(
        search={"alpha": FloatDistribution(8.0, 128.0, step=10.0)}
    )
    assert not space.published
    assert "alpha=32 is outside [8, 128] in steps of 10" in space.left_out[0]


def test_a_whole_number_among_choices_is_a_number() -> None:
    choices = CategoricalDistribution((16, 32, 64))
    assert in_range(choices, 32.0)
    assert not in_range(choices, True)
    assert not in_range(CategoricalDistribution((True, False)), 1)

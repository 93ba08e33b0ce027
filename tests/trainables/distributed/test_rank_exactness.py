"""Any number of ranks gives the gradients and the weights of one, for every loss.

The table printed at the end of the run has the largest difference of an element from that of one
process, relative to the element itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from tests.trainables import rank_cases as cases
from tests.trainables.rank_pool import CPU, RankPool
from trainables.losses import LOSSES
from trainables.world import Alone

ALONE = Alone(CPU)


class Way(NamedTuple):
    """How a table's rows are trained."""

    title: str
    kind: str
    shard: bool
    size: int
    names: tuple[str, ...]


ALL = tuple(cases.NAMES)
PROXY = tuple(n for n in ALL if LOSSES[n.split("+")[0]].family == "proxy")
SOME = ("norm_softmax", "proxy_anchor", "soft_triple+synthesis", "triplet")
WAYS = [
    Way("linear, copied", "features", False, 2, ALL),
    Way("conv, copied", "images", False, 4, ALL),
    Way("linear, sharded", "features", True, 2, PROXY),
    Way("linear, sharded", "features", True, 4, PROXY),
    Way("conv4, sharded", "conv4", True, 4, SOME),
]
REFERENCES = {"images": ALL, "features": ALL, "conv4": SOME}


RTOL, ATOL = 1e-9, 1e-12
"""ATOL is for what is zero but for rounding: gradients of biases before a batch norm."""


def worst(ours: cases.State, reference: cases.State) -> float:
    """Largest difference of an element, relative to it: |a - b| = worst * (|b| + ATOL / RTOL).

    So it is below RTOL if every element is as near as `torch.testing.assert_close` asks; NaN if
    any of them is.
    """
    assert set(ours) == set(reference)
    errors = [
        ((ours[k] - value).abs() / (value.abs() + ATOL / RTOL)).max()
        for k, value in reference.items()
    ]
    return float(torch.stack(errors).max())


def test_an_element_that_is_not_a_number_is_never_near() -> None:
    one, nan = torch.ones(2), torch.tensor([1.0, torch.nan])
    assert worst({"a": one, "b": one}, {"a": one, "b": one}) == 0
    assert not worst({"a": one, "b": nan}, {"a": one, "b": one}) < RTOL
    assert not worst({"a": one, "b": one}, {"a": one, "b": nan}) < RTOL


@pytest.fixture(scope="module")
def rows() -> list[str]:
    """The table, row by row."""
    return [f"{'loss':24} {'encoder, proxies':16} ranks steps  gradients    weights"]


@pytest.fixture(scope="module")
def expected(rank_pool: RankPool) -> dict[str, dict[str, cases.Trained]]:
    """What one process makes of every trial, by kind of encoder and loss."""
    return {
        kind: rank_pool.alone(
            cases.table, {name: cases.spec(name, kind=kind) for name in names}, cases.STEPS
        )
        for kind, names in REFERENCES.items()
    }


@pytest.mark.parametrize("way", WAYS, ids=lambda w: f"{w.title}, {w.size} ranks")
def test_ranks_equal_one_process(
    way: Way,
    rank_pool: RankPool,
    expected: dict[str, dict[str, cases.Trained]],
    rows: list[str],
) -> None:
    trials = {name: cases.spec(name, kind=way.kind, shard=way.shard) for name in way.names}
    results = rank_pool.run(way.size, cases.table, trials, cases.STEPS)
    for name in way.names:
        value, gradients, weights = expected[way.kind][name]
        assert weights is not None
        errors = [worst(result[name][1], gradients) for result in results]
        after = worst(results[0][name][2], weights)
        rows.append(
            f"{name:24} {way.title:16} {way.size:5} {cases.STEPS:5} {max(errors):10.1e} "
            f"{after:10.1e}"
        )
        found = [result[name][0] for result in results]
        assert found == pytest.approx([value] * way.size, rel=1e-12), name
        assert all(error < RTOL for error in errors), name
        assert after < RTOL, name


def test_every_proxy_and_pair_loss_is_in_the_table() -> None:
    """With 2 and with 4 ranks, for as many steps; and every proxy loss sharded, too."""
    for size in (2, 4):
        copied = {n for w in WAYS if w.size == size and not w.shard for n in w.names}
        sharded = {n for w in WAYS if w.size == size and w.shard for n in w.names}
        assert copied == set(cases.NAMES)
        assert sharded >= set(PROXY)
    assert cases.STEPS == 20
    assert {n.removesuffix("+synthesis") for n in PROXY if "+" in n} == {
        n for n in PROXY if "+" not in n
    }
    assert set(LOSSES) <= set(cases.NAMES)


def test_the_table(rows: list[str], request: pytest.FixtureRequest) -> None:
    """The table of the run's end (see `pytest_terminal_summary`)."""
    folder = request.config.cache.mkdir("exactness")
    (folder / "table.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert len(rows) == 1 + sum(len(way.names) for way in WAYS)


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize(
    ("size", "batch"),
    [
        (4, [0, 1, 4, 5, 8]),  # one rank has two samples, the others one
        (4, [0, 1, 9]),  # a rank has none
        (2, [0, 1, 2, 3, 40, 41, 42, 43]),  # each class on one rank only
        (3, [4, 5, 6, 7]),  # one class in all
    ],
    ids=["uneven", "empty", "apart", "one class"],
)
def test_uneven_and_empty_shares(
    size: int, batch: list[int], shard: bool, rank_pool: RankPool
) -> None:
    for name in ("soft_triple+synthesis", "proxy_anchor", "multi_similarity"):
        value, gradients = cases.batch_of(ALONE, cases.spec(name), batch)
        results = rank_pool.run(size, cases.batch_of, cases.spec(name, shard=shard), batch)
        for ours, theirs in results:
            assert ours == pytest.approx(value, rel=1e-11), name
            assert worst(theirs, gradients) < RTOL, name


SETTINGS: dict[str, dict[str, Any]] = {
    "norm_softmax+synthesis": {"temperature_mode": "learned", "label_smoothing": 0.1},
    "circle+synthesis": {"proxies_per_class": 3, "synthesis_draw": "sample"},
    "softmax+synthesis": {"proxies_per_class": 2, "synthesis_path": "spherical"},
    "soft_triple": {"temperature_mode": "learned", "label_smoothing": 0.1},
    "proxy_nca": {"label_smoothing": 0.1, "temperature_mode": "annealed"},
    "margin": {"learn_beta": True, "nu": 0.1},
}


@pytest.mark.parametrize("shard", [False, True])
def test_settings_that_are_not_published_are_exact_too(shard: bool, rank_pool: RankPool) -> None:
    for name, knobs in SETTINGS.items():
        trial = cases.spec(name, kind="features", knobs=knobs)
        value, gradients, weights = cases.train(ALONE, trial, 2)
        assert weights is not None
        shared = cases.spec(name, kind="features", knobs=knobs, shard=shard)
        results = rank_pool.run(3, cases.train, shared, 2)
        for found, theirs, _ in results:
            assert found == pytest.approx(value, rel=1e-12), name
            assert worst(theirs, gradients) < RTOL, name
        assert worst(results[0][2], weights) < RTOL, name


def test_the_common_wrapper_is_wrong_where_ours_is_right(rank_pool: RankPool) -> None:
    """pytorch-metric-learning's wrapper makes proxy gradients world-size times too large."""
    pytest.importorskip("pytorch_metric_learning")
    reference = cases.gradients_of_ours(ALONE, 2)
    size = 4
    ratios = {"library": cases.State(), "ours": cases.State()}
    for library, ours in rank_pool.run(size, cases.gradients_of_wrapper, 2):
        for key, value in reference.items():
            ratios["library"][key] = (library[key] / value).flatten().median()
            ratios["ours"][key] = (ours[key] / value).flatten().median()
            assert ratios["ours"][key] == pytest.approx(1, rel=1e-12)
            assert worst({key: ours[key]}, {key: value}) < 1e-12
        assert ratios["library"]["encoder"] == pytest.approx(1, rel=1e-9)
        assert ratios["library"]["proxies"] == pytest.approx(size, rel=1e-9)
    print("\ngradient over that of one process, Proxy-Anchor, 4 ranks:")
    for who, found in ratios.items():
        print(f"{who:>8}: encoder {found['encoder']:.3f}, proxies {found['proxies']:.3f}")

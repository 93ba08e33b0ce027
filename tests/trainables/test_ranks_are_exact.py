"""Any number of ranks gives the gradients and the weights of one, for every loss.

The table printed at the end of the run has the largest difference from one process, relative to the
largest value of the same tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

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


def worst(ours: cases.State, reference: cases.State) -> float:
    """Largest difference of a tensor, relative to that tensor's largest value."""
    assert set(ours) == set(reference)
    return max(
        float((ours[k] - reference[k]).abs().max() / reference[k].abs().max().clamp(min=1e-9))
        for k in reference
    )


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
        assert max(errors) < 1e-9, name
        assert after < 1e-9, name


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
            assert worst(theirs, gradients) < 1e-9, name


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

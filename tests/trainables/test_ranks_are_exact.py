"""Any number of ranks gives the gradients and the weights of one, for every loss.

The table at the end (`pytest -s`, or the file the test names) has the largest difference from one
process, relative to the largest value of the same tensor.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainables import rank_cases as cases
from tests.trainables.rank_pool import CPU, RankPool
from trainables.losses import LOSSES
from trainables.world import Alone

ALONE = Alone(CPU)
Trained = tuple[float, cases.State, cases.State]
KINDS = {"replicated": ("images", False), "sharded": ("features", True)}


def worst(ours: cases.State, reference: cases.State) -> float:
    """Largest difference of a tensor, relative to that tensor's largest value."""
    assert set(ours) == set(reference)
    return max(
        float((ours[k] - reference[k]).abs().max() / reference[k].abs().max().clamp(min=1e-9))
        for k in reference
    )


def names(way: str) -> list[str]:
    hosts = {n: n.split("+")[0] for n in cases.NAMES}
    return [n for n in cases.NAMES if way == "replicated" or LOSSES[hosts[n]].family == "proxy"]


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Trained]]:
    """Every loss trained by one process."""
    return {
        way: cases.table(ALONE, {n: cases.spec(n, kind=kind) for n in names(way)}, cases.STEPS)
        for way, (kind, _) in KINDS.items()
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The table, row by row."""
    return [f"{'loss':24} {'proxies':>10} {'ranks':>5} {'gradients':>10} {'20 steps':>10}"]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("way", KINDS)
def test_ranks_equal_one_process(
    size: int,
    way: str,
    rank_pool: RankPool,
    alone: dict[str, dict[str, Trained]],
    rows: list[str],
) -> None:
    kind, shard = KINDS[way]
    trials = {name: cases.spec(name, kind=kind, shard=shard) for name in names(way)}
    results = rank_pool.run(size, cases.table, trials, cases.STEPS)
    for name in trials:
        value, gradients, weights = alone[way][name]
        errors = [worst(result[name][1], gradients) for result in results]
        after = worst(results[0][name][2], weights)
        rows.append(f"{name:24} {way:>10} {size:5} {max(errors):10.1e} {after:10.1e}")
        assert [r[name][0] for r in results] == pytest.approx([value] * size, rel=1e-12), name
        assert max(errors) < 1e-9, name
        assert after < 1e-9, name


def test_the_table(rows: list[str], tmp_path: Path) -> None:
    path = tmp_path / "exactness.txt"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"\n{path}", *rows, sep="\n")
    assert len(rows) == 1 + 2 * sum(len(names(way)) for way in KINDS)


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

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

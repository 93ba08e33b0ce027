"""Gradients and weights do not depend on the number of ranks, for every loss.

The table at the end of the test run shows the largest difference of an element between several
ranks and one process, relative to the element itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch

from tests.support import rank_cases as cases
from tests.support.native_batch_norm import register_native_batch_norm
from tests.support.rank_pool import CPU, RankPool
from trainables.config import TrialSpec
from trainables.distributed import batch_norm
from trainables.distributed.batch_norm_kernels import NATIVE_KERNELS
from trainables.distributed.world import SingleProcessWorld, World
from trainables.losses import LOSSES

pytestmark = [pytest.mark.xdist_group("ranks"), pytest.mark.slow]

SINGLE_PROCESS = SingleProcessWorld(CPU)


class TrainingWay(NamedTuple):
    """How the trials of some rows of the table are trained."""

    title: str
    kind: str
    shard: bool
    size: int
    names: tuple[str, ...]


ALL = tuple(cases.LOSS_NAMES)
PROXY = tuple(n for n in ALL if LOSSES[n.split("+")[0]].family == "proxy")
SOME = ("norm_softmax", "proxy_anchor", "soft_triple+synthesis", "triplet")
WAYS = [
    TrainingWay("linear, copied", "features", False, 2, ALL),
    TrainingWay("conv, copied", "images", False, 4, ALL),
    TrainingWay("linear, sharded", "features", True, 2, PROXY),
    TrainingWay("linear, sharded", "features", True, 4, PROXY),
    TrainingWay("conv4, sharded", "conv4", True, 4, SOME),
]
REFERENCES = {"images": ALL, "features": ALL, "conv4": SOME}


RTOL, ATOL = 1e-9, 1e-12
"""ATOL is for numbers that are zero but for rounding: gradients of biases before a batch norm."""


def largest_difference(state: cases.State, reference: cases.State) -> float:
    """Return the largest |a - b| / (|b| + ATOL / RTOL) over all elements.

    It is below RTOL if every element is as close as `torch.testing.assert_close` requires, and NaN
    if any element is.
    """
    assert set(state) == set(reference)
    errors = [
        ((state[k] - value).abs() / (value.abs() + ATOL / RTOL)).max()
        for k, value in reference.items()
    ]
    return float(torch.stack(errors).max())


def test_an_element_that_is_not_a_number_is_never_close() -> None:
    one, nan = torch.ones(2), torch.tensor([1.0, torch.nan])
    assert largest_difference({"a": one, "b": one}, {"a": one, "b": one}) == 0
    assert not largest_difference({"a": one, "b": nan}, {"a": one, "b": one}) < RTOL
    assert not largest_difference({"a": one, "b": one}, {"a": one, "b": nan}) < RTOL


@pytest.fixture(scope="module")
def rows() -> list[str]:
    """Rows of the table."""
    return [f"{'loss':24} {'encoder, proxies':16} ranks steps  gradients    weights"]


@pytest.fixture(scope="module")
def expected(rank_pool: RankPool) -> dict[str, dict[str, cases.TrainingResult]]:
    """Results of one process for every trial, by kind of encoder and loss."""
    return {
        kind: rank_pool.run_single(
            cases.train_trials,
            {name: cases.make_rank_spec(name, kind=kind) for name in names},
            cases.N_STEPS,
        )
        for kind, names in REFERENCES.items()
    }


@pytest.mark.parametrize("way", WAYS, ids=lambda w: f"{w.title}, {w.size} ranks")
def test_ranks_equal_one_process(
    way: TrainingWay,
    rank_pool: RankPool,
    expected: dict[str, dict[str, cases.TrainingResult]],
    rows: list[str],
) -> None:
    trials = {
        name: cases.make_rank_spec(name, kind=way.kind, shard=way.shard) for name in way.names
    }
    results = rank_pool.run(way.size, cases.train_trials, trials, cases.N_STEPS)
    for name in way.names:
        value, gradients, weights = expected[way.kind][name]
        assert weights is not None
        errors = [largest_difference(result[name][1], gradients) for result in results]
        after = largest_difference(results[0][name][2], weights)
        rows.append(
            f"{name:24} {way.title:16} {way.size:5} {cases.N_STEPS:5} {max(errors):10.1e} "
            f"{after:10.1e}"
        )
        values = [result[name][0] for result in results]
        assert values == pytest.approx([value] * way.size, rel=1e-12), name
        assert all(error < RTOL for error in errors), name
        assert after < RTOL, name


def train_with_native_batch_norm(
    world: World, trial: TrialSpec, steps: int
) -> cases.TrainingResult:
    """Train with the batch norm of GPUs, whose kernels have stand-ins on the CPU."""
    register_native_batch_norm()
    with mock.patch.object(batch_norm, "select_kernels", return_value=NATIVE_KERNELS) as select:
        result = cases.train_steps(world, trial, steps)
    assert select.called
    return result


@pytest.mark.parametrize("kind", ["images", "conv4"])
def test_the_batch_norm_of_gpus_is_exact_too(
    kind: str,
    rank_pool: RankPool,
    expected: dict[str, dict[str, cases.TrainingResult]],
) -> None:
    trial = cases.make_rank_spec("proxy_anchor", kind=kind)
    value, gradients, weights = expected[kind]["proxy_anchor"]
    assert weights is not None
    for result in rank_pool.run(4, train_with_native_batch_norm, trial, cases.N_STEPS):
        assert result[0] == pytest.approx(value, rel=1e-12)
        assert largest_difference(result[1], gradients) < RTOL
        assert largest_difference(result[2], weights) < RTOL


def test_every_proxy_and_pair_loss_is_in_the_table() -> None:
    """With 2 and with 4 ranks, for equally many steps; every proxy loss is also sharded."""
    for size in (2, 4):
        copied = {n for w in WAYS if w.size == size and not w.shard for n in w.names}
        sharded = {n for w in WAYS if w.size == size and w.shard for n in w.names}
        assert copied == set(cases.LOSS_NAMES)
        assert sharded >= set(PROXY)
    assert cases.N_STEPS == 20
    assert {n.removesuffix("+synthesis") for n in PROXY if "+" in n} == {
        n for n in PROXY if "+" not in n
    }
    assert set(LOSSES) <= set(cases.LOSS_NAMES)


def test_the_table(rows: list[str], request: pytest.FixtureRequest) -> None:
    """Store the table that `pytest_terminal_summary` prints."""
    folder = request.config.cache.mkdir("exactness")
    (folder / "table.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert len(rows) == 1 + sum(len(way.names) for way in WAYS)


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize(
    ("size", "batch"),
    [
        (4, [0, 1, 4, 5, 8]),  # one rank has two samples, the others one
        (4, [0, 1, 9]),  # one rank has no sample
        (2, [0, 1, 2, 3, 40, 41, 42, 43]),  # each class on one rank only
        (3, [4, 5, 6, 7]),  # a single class
    ],
    ids=["uneven", "empty", "apart", "one class"],
)
def test_uneven_and_empty_shares(
    size: int, batch: list[int], shard: bool, rank_pool: RankPool
) -> None:
    for name in ("soft_triple+synthesis", "proxy_anchor", "multi_similarity"):
        value, gradients = cases.compute_batch_gradients(
            SINGLE_PROCESS, cases.make_rank_spec(name), batch
        )
        results = rank_pool.run(
            size, cases.compute_batch_gradients, cases.make_rank_spec(name, shard=shard), batch
        )
        for rank_value, rank_gradients in results:
            assert rank_value == pytest.approx(value, rel=1e-11), name
            assert largest_difference(rank_gradients, gradients) < RTOL, name


SETTINGS: dict[str, dict[str, Any]] = {
    "norm_softmax+synthesis": {"temperature_mode": "learned", "label_smoothing": 0.1},
    "circle+synthesis": {"proxies_per_class": 3, "synthesis_draw": "sample"},
    "softmax+synthesis": {"proxies_per_class": 2, "synthesis_path": "spherical"},
    "soft_triple": {"temperature_mode": "learned", "label_smoothing": 0.1},
    "proxy_nca": {"label_smoothing": 0.1, "temperature_mode": "annealed"},
    "margin": {"learn_beta": True, "nu": 0.1},
}


@pytest.mark.parametrize("shard", [False, True])
def test_unpublished_settings_are_exact_too(shard: bool, rank_pool: RankPool) -> None:
    for name, params in SETTINGS.items():
        trial = cases.make_rank_spec(name, kind="features", params=params)
        value, gradients, weights = cases.train_steps(SINGLE_PROCESS, trial, 2)
        assert weights is not None
        shared = cases.make_rank_spec(name, kind="features", params=params, shard=shard)
        results = rank_pool.run(3, cases.train_steps, shared, 2)
        for rank_value, rank_gradients, _ in results:
            assert rank_value == pytest.approx(value, rel=1e-12), name
            assert largest_difference(rank_gradients, gradients) < RTOL, name
        assert largest_difference(results[0][2], weights) < RTOL, name


def test_the_library_wrapper_scales_proxy_gradients_and_ours_does_not(rank_pool: RankPool) -> None:
    """pytorch-metric-learning's wrapper makes proxy gradients world-size times too large."""
    pytest.importorskip("pytorch_metric_learning")
    reference = cases.compute_own_gradients(SINGLE_PROCESS, 2)
    size = 4
    ratios = {"library": cases.State(), "ours": cases.State()}
    for library, ours in rank_pool.run(size, cases.compute_wrapper_gradients, 2):
        for key, value in reference.items():
            ratios["library"][key] = (library[key] / value).flatten().median()
            ratios["ours"][key] = (ours[key] / value).flatten().median()
            assert ratios["ours"][key] == pytest.approx(1, rel=1e-12)
            assert largest_difference({key: ours[key]}, {key: value}) < 1e-12
        assert ratios["library"]["encoder"] == pytest.approx(1, rel=1e-9)
        assert ratios["library"]["proxies"] == pytest.approx(size, rel=1e-9)
    print("\ngradient over that of one process, Proxy-Anchor, 4 ranks:")
    for source, ratio in ratios.items():
        print(f"{source:>8}: encoder {ratio['encoder']:.3f}, proxies {ratio['proxies']:.3f}")

"""Posterior of a sweep's means: error rates and edge cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from study.analyses import sweeps
from study.analyses.range_cost import assess_range_cost
from study.analyses.sweep_posterior import draw_sweep_means
from tests.support.synthetic_tables import Array

pytestmark = pytest.mark.split


def _make_sweep(truth: Array, seeds: int, rng: np.random.Generator) -> sweeps.ParamSweep:
    """Make a sweep with noise of variance 1 between seeds, half of it shared by all values."""
    shared = rng.standard_normal(seeds)
    scores = truth[:, None] + np.sqrt(0.5) * (shared + rng.standard_normal((len(truth), seeds)))
    units = np.linspace(0.0, 1.0, len(truth))
    by_seed = tuple(dict(enumerate(map(float, row))) for row in scores)
    return sweeps.ParamSweep("x", "incumbent", {}, tuple(units), units, by_seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cost", "seeds", "flat_at_most", "flat_at_least", "steep_at_most", "steep_at_least"),
    [
        (0.0, 8, 1.0, 0.5, 0.05, 0.0),
        (1.05, 8, 0.1, 0.0, 0.15, 0.0),
        (3.0, 8, 0.0, 0.0, 1.0, 0.9),
    ],
)
def test_sweeps_are_right_at_the_stated_rate(
    cost: float,
    seeds: int,
    flat_at_most: float,
    flat_at_least: float,
    steep_at_most: float,
    steep_at_least: float,
) -> None:
    """One of six values has this cost in tolerances; a tolerance is one seed's deviation."""
    truth = np.zeros(6)
    truth[2] = -cost
    flat, steep, runs = 0, 0, 40
    for seed in range(runs):
        sweep = _make_sweep(truth, seeds, np.random.default_rng(seed))
        draws = draw_sweep_means(sweep, np.ones(6, dtype=bool), worst=-10.0, seed=seed)
        assert draws is not None
        within, beyond, _ = assess_range_cost(draws, draws, 1.0, "")
        flat, steep = flat + (within >= 0.95), steep + (beyond >= 0.95)
    assert flat_at_least * runs <= flat <= flat_at_most * runs
    assert steep_at_least * runs <= steep <= steep_at_most * runs


def test_a_single_seed_per_value_has_no_posterior() -> None:
    sweep = _make_sweep(np.zeros(4), 1, np.random.default_rng(0))
    assert draw_sweep_means(sweep, np.zeros(4, dtype=bool), worst=-10.0) is None


def test_independent_values_are_centred_on_their_means() -> None:
    sweep = _make_sweep(np.array([0.0, 3.0, -2.0]), 20, np.random.default_rng(1))
    draws = draw_sweep_means(sweep, np.zeros(3, dtype=bool), worst=-10.0)
    assert draws is not None
    means = [np.mean(list(by_seed.values())) for by_seed in sweep.scores]
    assert draws.mean(axis=0) == pytest.approx(means, abs=0.03)


def test_equivalent_values_are_shrunk_towards_each_other() -> None:
    sweep = _make_sweep(np.zeros(6), 4, np.random.default_rng(2))
    apart, alike = (
        draw_sweep_means(sweep, np.full(6, mask), worst=-10.0) for mask in (False, True)
    )
    assert apart is not None
    assert alike is not None
    assert np.ptp(alike.mean(axis=0)) < 0.8 * np.ptp(apart.mean(axis=0))


def test_diverged_seeds_pull_the_mean_towards_the_worst_score() -> None:
    sweep = _make_sweep(np.zeros(3), 4, np.random.default_rng(3))
    half = {0: 0.0, 1: float("nan"), 2: float("nan"), 3: 0.0}
    sweep = replace(sweep, scores=(*sweep.scores[:2], half))
    draws = draw_sweep_means(sweep, np.zeros(3, dtype=bool), worst=-10.0)
    assert draws is not None
    assert draws[:, 2].mean() == pytest.approx(-5.0, abs=0.5)

"""Seed noise: known spreads, and what counts as a repeat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2

from study.analyses.surrogate.seed_noise import SeedNoise, estimate_seed_noise
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.split


def test_seed_noise_is_the_spread_of_repeats_and_covers_the_truth() -> None:
    covered = 0
    for seed in range(20):
        problem = SyntheticLoss(
            make_unit_space("a", ["x"]), make_additive_response([0.2]), noise=0.01
        )
        plan = SyntheticPlan(trials=8, repeats=4, repeated_points=3)
        noise = estimate_seed_noise(make_table([problem], plan, seed=seed))
        covered += noise.low <= 0.01 <= noise.high
        assert noise.source == "repeats"
    assert covered >= 15
    single = make_table([problem], SyntheticPlan(trials=8, repeats=1))
    assert not estimate_seed_noise(single).is_measured


def test_seeds_inside_trials_give_the_noise_of_their_mean() -> None:
    """Scores are means over the seeds of a trial, so the noise of a score is that of a mean."""
    rng, sigma, seeds = np.random.default_rng(0), 0.01, 4
    problem = SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.2]), noise=0.0)
    table = make_table([problem], SyntheticPlan(trials=40, repeats=1, stop=False))
    inside = [float(np.std(sigma * rng.standard_normal(seeds), ddof=1)) for _ in range(40)]
    trials = table.trials[table.trials["origin"] != "published"].assign(score_std=inside)
    several = replace(table, trials=trials, protocol={**table.protocol, "seeds_per_point": seeds})
    noise = estimate_seed_noise(several)
    assert (noise.source, noise.degrees_of_freedom) == ("seeds inside trials", 120)
    assert noise.low < sigma / 2 < noise.high < sigma


def test_the_same_seed_again_is_not_a_repeat() -> None:
    problem = SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.2]), noise=0.01)
    table = make_table([problem], SyntheticPlan(trials=8, repeats=3))
    again = table.trials.assign(trial=table.trials["trial"] + "-again")
    twice = replace(table, trials=pd.concat([table.trials, again], ignore_index=True))
    assert estimate_seed_noise(twice) == estimate_seed_noise(table)
    once = table.trials["seed"] == 0
    single = replace(table, trials=pd.concat([table.trials[once], again[once]]))
    assert not estimate_seed_noise(single).is_measured


def test_the_interval_follows_from_chi_square() -> None:
    problem = SyntheticLoss(make_unit_space("a", ["x"]), make_additive_response([0.2]), noise=0.01)
    noise = estimate_seed_noise(make_table([problem], SyntheticPlan(trials=8, repeats=3)), "a")
    freedom = noise.degrees_of_freedom
    squares = noise.sigma**2 * freedom
    assert chi2.cdf(squares / noise.low**2, freedom) == pytest.approx(0.95)
    assert chi2.cdf(squares / noise.high**2, freedom) == pytest.approx(0.05)


@pytest.mark.parametrize(("freedom", "is_reliable"), [(3, False), (4, True)])
def test_noise_is_reliable_from_four_degrees_of_freedom(freedom: int, is_reliable: bool) -> None:
    assert SeedNoise(0.01, 0.005, 0.02, freedom, "repeats").is_reliable == is_reliable
    assert not SeedNoise(float("nan"), 0.0, 0.0, freedom, "none").is_reliable

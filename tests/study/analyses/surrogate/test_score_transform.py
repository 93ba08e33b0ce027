"""Score transforms: inverse, slope and moments, and the choice of a ceiling."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import skew

from study.analyses.surrogate.score_transform import ScoreTransform, estimate_ceiling

pytestmark = pytest.mark.split

SCORES = np.array([0.1, 0.3, 0.5, 0.55, 0.58])


@pytest.mark.parametrize("ceiling", [None, 0.6])
def test_scores_are_standardised_and_come_back(ceiling: float | None) -> None:
    transform = ScoreTransform.from_scores(SCORES, ceiling=ceiling)
    latent = transform.to_latent(SCORES)
    assert latent.mean() == pytest.approx(0.0)
    assert latent.std() == pytest.approx(1.0)
    assert transform.to_score(latent) == pytest.approx(SCORES)


@pytest.mark.parametrize("ceiling", [None, 0.6])
def test_the_slope_is_the_derivative(ceiling: float | None) -> None:
    transform = ScoreTransform.from_scores(SCORES, ceiling=ceiling)
    step = 1e-7
    difference = transform.to_latent(SCORES + step) - transform.to_latent(SCORES - step)
    assert transform.latent_slope(SCORES) == pytest.approx(difference / (2 * step), rel=1e-4)


@pytest.mark.parametrize("ceiling", [None, 0.6])
def test_moments_match_those_of_transformed_normal_draws(ceiling: float | None) -> None:
    transform = ScoreTransform.from_scores(SCORES, ceiling=ceiling)
    draws = transform.to_score(0.2 + 0.3 * np.random.default_rng(0).standard_normal(200_000))
    mean, deviation = transform.score_moments(np.array([0.2]), np.array([0.3]))
    assert mean[0] == pytest.approx(draws.mean(), abs=0.001)
    assert deviation[0] == pytest.approx(draws.std(), rel=0.02)


def test_constant_scores_have_scale_one() -> None:
    transform = ScoreTransform.from_scores(np.full(4, 0.5))
    assert transform.scale == 1.0
    assert transform.to_latent(np.array([0.5])).tolist() == [0.0]


def test_only_a_long_lower_tail_gets_a_ceiling_and_loses_its_skew() -> None:
    rng = np.random.default_rng(0)
    assert estimate_ceiling(rng.normal(0.5, 0.1, 200)) is None
    scores = 0.6 - rng.exponential(0.05, 200)
    ceiling = estimate_ceiling(scores)
    assert ceiling is not None
    assert ceiling > scores.max()
    latent = ScoreTransform.from_scores(scores, ceiling=ceiling).to_latent(scores)
    assert abs(skew(latent)) < 0.5 < abs(skew(scores))

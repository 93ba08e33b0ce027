"""Does the process know how smooth a response is, and where it jumps?"""

from __future__ import annotations

import numpy as np
import pytest

from study.analyses import cliff, gp
from study.analyses.encoding import Cliff
from study.analyses.evidence import Evidence, Fitted, plausible
from study.analyses.kernel import SMOOTHNESSES, Smoothness, Waves, correlation
from study.analyses.quality import lacking
from study.analyses.samples import Samples, gather
from study.analyses.warp import Standard
from tests.study.synthetic import Array, Plan, Problem, Response, make_table, unit_space


def _samples(response: Response, *, trials: int = 60, noise: float = 0.002) -> Samples:
    plan = Plan(trials=trials, sobol_share=1.0, bayes=False, stop=False)
    problem = Problem(unit_space("a", ["x", "y"]), response, noise=noise)
    return gather(make_table([problem], plan), "a")


def _bowl(u: Array) -> Array:
    return np.asarray(0.5 - (u[:, 0] - 0.6) ** 2 - 0.5 * (u[:, 1] - 0.4) ** 2)


def _kinks(u: Array) -> Array:
    return np.asarray(0.5 - np.abs(u[:, 0] - 0.6) - 0.5 * np.abs(u[:, 1] - 0.4))


def _step(u: Array) -> Array:
    return np.where(u[:, 0] > 0.7, 0.1, _bowl(u))


def _learn(samples: Samples) -> tuple[Fitted, Standard]:
    standard = Standard.of(samples.scores)
    return gp.learn(samples, standard, seed=0), standard


@pytest.mark.parametrize("smoothness", SMOOTHNESSES)
@pytest.mark.parametrize("at", [None, Cliff(0, 0.7)])
def test_gradients_are_slopes(smoothness: Smoothness, at: Cliff | None) -> None:
    samples = _samples(_step, trials=20)
    evidence = Evidence(samples, Standard.of(samples.scores), smoothness=smoothness, cliff=at)
    theta = evidence.prior_mean + 0.1
    step = 1e-5 * np.eye(len(theta))
    slopes = [(evidence(theta + s)[0] - evidence(theta - s)[0]) / 2e-5 for s in step]
    free = np.arange(len(theta)) != len(theta) - 2 if not evidence.paired else slice(None)
    assert evidence(theta)[1][free] == pytest.approx(np.array(slopes)[free], abs=1e-5)


@pytest.mark.parametrize("smoothness", SMOOTHNESSES)
def test_waves_have_the_covariance_of_the_kernel(smoothness: Smoothness) -> None:
    rng = np.random.default_rng(0)
    places = np.array([[0.0], [0.5], [1.5]])
    waves = Waves.draw(rng, smoothness, width=1, features=2000, count=4000, variance=2.0)
    found = np.cov(waves(places))
    wanted = 2.0 * correlation((places - places.T) ** 2, smoothness)
    assert found == pytest.approx(wanted, abs=0.15)


def test_the_evidence_tells_kinks_from_bowls() -> None:
    assert _learn(_samples(_bowl))[0].smoothness == "analytic"
    assert _learn(_samples(_kinks))[0].smoothness == "rough"


def test_a_cliff_is_found_where_it_is_and_nowhere_else() -> None:
    samples = _samples(_step)
    fitted, standard = _learn(samples)
    assert fitted.cliff is not None
    assert fitted.cliff.knob == 0
    seen = np.sort(samples.units[:, 0])
    below, above = seen[seen <= 0.7].max(), seen[seen > 0.7].min()
    for drawn in cliff.locate(samples, standard, fitted, count=20, seed=0):
        assert drawn.cliff is not None
        assert below - 1e-9 <= drawn.cliff.place <= above + 1e-9
    for smooth in (_bowl, _kinks):
        assert _learn(_samples(smooth))[0].cliff is None


def test_hyperparameters_vary_as_far_as_the_trials_leave_them_open() -> None:
    few, many = (_samples(_kinks, trials=n, noise=0.02) for n in (16, 120))
    spreads = []
    for samples in (few, many):
        fitted, standard = _learn(samples)
        drawn = [f.theta for f in plausible(samples, standard, fitted, count=40, seed=0)]
        spreads.append(np.std(drawn, axis=0)[:2].mean())
    assert spreads[0] > 1.2 * spreads[1] > 0.0


@pytest.mark.parametrize("noise", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("wrong", [1.0, 2.0])
def test_seed_noise_does_not_hide_how_sure_draws_are(wrong: float, noise: float) -> None:
    """The response is off by `wrong` times what its draws say, and every score has noise on top."""
    rng = np.random.default_rng(0)
    errors = np.abs(wrong * rng.standard_normal(4000) + noise * rng.standard_normal(4000))
    expected = np.sqrt(1.0 + noise**2)
    factor = lacking(errors / expected, np.full(4000, 1.0 / expected**2))
    assert factor == pytest.approx(wrong, rel=0.1)

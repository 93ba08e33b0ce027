"""Kernels and their random features."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.gaussian_process.kernels import RBF, Kernel, Matern

from study.analyses.surrogate.kernel import (
    KERNEL_SMOOTHNESSES,
    FourierFeatures,
    KernelSmoothness,
    compute_squared_distances,
    evaluate_kernel,
    evaluate_kernel_and_slope,
)

pytestmark = pytest.mark.split


@pytest.mark.parametrize("smoothness", KERNEL_SMOOTHNESSES)
def test_random_features_have_the_covariance_of_the_kernel(smoothness: KernelSmoothness) -> None:
    rng = np.random.default_rng(0)
    inputs = np.array([[0.0], [0.5], [1.5]])
    features = FourierFeatures.draw_prior_functions(
        rng, smoothness, width=1, features=2000, count=4000, variance=2.0
    )
    expected = 2.0 * evaluate_kernel((inputs - inputs.T) ** 2, smoothness)
    assert np.cov(features(inputs)) == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize(
    ("smoothness", "reference"),
    [("rough", Matern(nu=1.5)), ("smooth", Matern(nu=2.5)), ("analytic", RBF())],
)
def test_kernels_are_those_of_scikit_learn(smoothness: KernelSmoothness, reference: Kernel) -> None:
    r = np.linspace(0.0, 3.0, 7)
    expected = reference(r[:, None], np.zeros((1, 1)))[:, 0]
    assert evaluate_kernel(r**2, smoothness) == pytest.approx(expected)
    single = evaluate_kernel((r**2).astype(np.float32), smoothness)
    assert single.dtype == np.float32


@pytest.mark.parametrize("smoothness", KERNEL_SMOOTHNESSES)
def test_the_slope_is_minus_two_times_the_derivative(smoothness: KernelSmoothness) -> None:
    r2 = np.linspace(0.1, 4.0, 9)
    value, slope = evaluate_kernel_and_slope(r2, smoothness)
    assert value == pytest.approx(evaluate_kernel(r2, smoothness))
    step = 1e-6
    derivative = evaluate_kernel(r2 + step, smoothness) - evaluate_kernel(r2 - step, smoothness)
    assert slope == pytest.approx(-2 * derivative / (2 * step), rel=1e-5)


def test_squared_distances_match_scipy() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((5, 3)), rng.random((4, 3))
    assert compute_squared_distances(a, b) == pytest.approx(cdist(a, b, "sqeuclidean"))

"""Input encoding: columns, length-scale groups and the side of a jump."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from study.analyses.surrogate.encoding import InputEncoding, ResponseDiscontinuity

pytestmark = pytest.mark.split

DISTRIBUTIONS = (
    FloatDistribution(0.0, 1.0),
    CategoricalDistribution(["a", "b", "c"]),
    CategoricalDistribution([True, False]),
)


def test_choices_of_three_or_more_are_one_hot_and_the_rest_single_columns() -> None:
    encoding = InputEncoding.from_distributions(DISTRIBUTIONS)
    units = np.array([[0.3, 1 / 6, 0.25], [0.8, 5 / 6, 0.75]])
    inputs = encoding(units, np.array([27.0, 27.0]), 27.0)
    assert inputs.shape == (2, 6)
    assert inputs[:, 0].tolist() == [0.3, 0.8]
    assert inputs[:, 1:4] == pytest.approx(np.sqrt(0.5) * np.array([[1, 0, 0], [0, 0, 1]]))
    assert inputs[:, 4].tolist() == [0.25, 0.75]
    # Two different choices are at distance one.
    assert np.linalg.norm(inputs[0, 1:4] - inputs[1, 1:4]) == pytest.approx(1.0)


def test_the_last_epoch_is_zero_and_earlier_ones_are_logarithmic() -> None:
    encoding = InputEncoding.from_distributions(DISTRIBUTIONS[:1])
    epochs = np.array([27.0, 27.0 * np.exp(-2.5), 0.0])
    inputs = encoding(np.full((3, 1), 0.5), epochs, 27.0)
    assert inputs[:2, 1] == pytest.approx([0.0, -1.0])
    assert np.isfinite(inputs[2, 1]), "an epoch before the first is bounded"


def test_columns_share_a_length_scale_per_param_epoch_and_side() -> None:
    encoding = InputEncoding.from_distributions(DISTRIBUTIONS)
    assert encoding.n_groups == 4
    assert encoding.column_groups.tolist() == [0, 1, 1, 1, 2, 3]
    assert encoding.columns_in_group(1).tolist() == [1, 2, 3]
    with_jump = InputEncoding.from_distributions(DISTRIBUTIONS, ResponseDiscontinuity(0, 0.5))
    assert with_jump.n_groups == 5
    assert with_jump.column_groups.tolist() == [0, 1, 1, 1, 2, 3, 4]


def test_the_side_of_a_jump_is_the_last_column() -> None:
    encoding = InputEncoding.from_distributions(DISTRIBUTIONS[:1], ResponseDiscontinuity(0, 0.5))
    inputs = encoding(np.array([[0.4], [0.5], [0.6]]), np.full(3, 27.0), 27.0)
    assert inputs[:, -1].tolist() == [0.0, 0.0, 1.0]

"""Hyperparameters of a loss, read from its builder and checked."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from trainables.losses.base.hyperparameters import (
    ParamInfo,
    as_integer,
    builder_params,
    check_params,
    is_number,
)

pytestmark = pytest.mark.split


def build(
    setup: object,
    *,
    alpha: float,
    centers: int = 2,
    mining: Literal["hard", "soft"] = "hard",
    learn: bool = False,
) -> None:
    """Builder whose keyword-only arguments are the hyperparameters."""


KNOWN = builder_params(build)


def test_keyword_only_arguments_are_hyperparameters() -> None:
    expected = {
        "alpha": ParamInfo(float, required=True),
        "centers": ParamInfo(int, required=False, default=2),
        "mining": ParamInfo(str, required=False, default="hard", choices=("hard", "soft")),
        "learn": ParamInfo(bool, required=False, default=False),
    }
    assert builder_params(build) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"alpha": 1},
        {"alpha": np.float32(0.5), "centers": 3.0, "mining": "soft", "learn": np.bool_(True)},
    ],
)
def test_valid_values_pass(given: dict[str, Any]) -> None:
    check_params("loss", KNOWN, given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "loss: missing alpha"),
        ({"alpha": 1.0, "centrs": 2}, "'centrs'.*'centers'"),
        ({"alpha": "1"}, "`alpha`.*finite number.*'1'"),
        ({"alpha": float("nan")}, "`alpha`.*nan"),
        ({"alpha": True}, "`alpha`.*True"),
        ({"alpha": 1.0, "centers": 2.5}, r"`centers`.*2\.5"),
        ({"alpha": 1.0, "mining": "medium"}, "`mining`.*hard, soft.*'medium'"),
        ({"alpha": 1.0, "learn": 1}, "`learn`.*true or false.*1"),
    ],
)
def test_wrong_values_are_refused_by_name_and_value(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_params("loss", KNOWN, given)


def test_integers_of_any_type() -> None:
    assert as_integer(np.int32(4)) == 4
    assert as_integer(True) is None
    assert as_integer(np.bool_(True)) is None
    assert as_integer(4.0) is None
    assert as_integer("4") is None


def test_finite_numbers_of_any_type() -> None:
    assert is_number(np.float64(0.5))
    assert is_number(np.int8(2))
    for value in (True, np.bool_(False), float("inf"), "1", None, 1j):
        assert not is_number(value)

"""Ranges and values of hyperparameters in a study file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import ValidationError

from study.config.loader import load_config
from study.config.ranges import ParamRange
from study.errors import StudyError
from tests.support.study_files import MINIMAL_FILE, write_study_file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {head_lr: [1, 2, cubic]}", "`training.head_lr`: the third entry of a range"),
        ("training: {head_lr: [2, 1]}", "`training.head_lr`: `low <= high` must hold"),
        ("training: {head_lr: {low: 1, hihg: 2}}", "`training.head_lr.hihg`; did you mean 'high'"),
        ("training: {head_lr: {low: 0, high: 1, step: 0}}", "greater than 0"),
        ("training: {head_lr: {low: 0, high: 1, step: -1}}", "greater than 0"),
        ("training: {head_lr: [0, .inf]}", "`training.head_lr.high`: input should be a finite"),
        ("training: {head_lr: [.nan, 1]}", "`training.head_lr.low`: input should be a finite"),
        ("training: {head_lr: {choices: [0.1, .inf]}}", "`choices` must be finite"),
        ("training: {head_lr: {choices: [1, 1.0]}}", "`choices` must differ"),
        ("training: {head_lr: {choices: [1, 2], low: 1}}", "either choices or low and high"),
        (
            "training: {head_lr: {choices: [1, 2], log: true}}",
            "`choices` cannot be combined with log",
        ),
        ("training: {layer_norm: {choices: [[a]]}}", "a number, a string, true or false"),
        ("training: {head_lr: }", "a number, a string, true or false"),
        ("training: {head_lr: 2024-01-01}", "a number, a string, true or false"),
    ],
)
def test_invalid_ranges_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StudyError) as error:
        load_config(write_study_file(tmp_path, MINIMAL_FILE + text + "\n"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert "boolean" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "distribution"),
    [
        ([8, 128], FloatDistribution(8, 128)),
        ([8, 128, "log"], FloatDistribution(8, 128, log=True)),
        ([8, 128, "linear"], FloatDistribution(8, 128)),
        ({"low": 0, "high": 1, "step": 0.25}, FloatDistribution(0, 1, step=0.25)),
        ({"low": 1, "high": 9, "integer": True}, IntDistribution(1, 9)),
        ({"low": 2, "high": 8, "integer": True, "step": 2}, IntDistribution(2, 8, step=2)),
        ({"choices": ["avg", "max", True]}, CategoricalDistribution(["avg", "max", True])),
    ],
)
def test_ranges_become_distributions(given: Any, distribution: Any) -> None:
    assert ParamRange.model_validate(given).to_distribution("x") == distribution


def test_an_integer_hyperparameter_needs_integer_bounds() -> None:
    param_range = ParamRange.model_validate([1, 4])
    assert param_range.to_distribution("centers", is_integer=True) == IntDistribution(1, 4)
    with pytest.raises(StudyError, match=r"`centers` must be an integer.*1.5..4"):
        ParamRange.model_validate([1.5, 4]).to_distribution("centers", is_integer=True)


def test_a_range_is_frozen_and_has_no_other_keys() -> None:
    with pytest.raises(ValidationError):
        ParamRange.model_validate({"low": 0, "high": 1, "other": 2})
    param_range = ParamRange.model_validate([0, 1])
    with pytest.raises(ValidationError):
        param_range.low = 0.5

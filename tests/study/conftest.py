"""Fixtures of the study package's tests: studies whose answers are known."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from study.analyses.findings import StudyFindings, analyse_study
from study.trials.table import TrialTable
from tests.support.demo_study import make_demo_table


@pytest.fixture(autouse=True)
def _quiet_sobol() -> Iterator[None]:
    """Made-up studies ask Sobol points in numbers that are no power of two, on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The balance properties")
        yield


@pytest.fixture(scope="session")
def demo() -> TrialTable:
    """Three losses with every kind of hyperparameter, confirmations, sweeps and divergence."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The balance properties")
        return make_demo_table()


@pytest.fixture(scope="session")
def demo_findings(demo: TrialTable) -> StudyFindings:
    """Everything the demo study says; computed once."""
    return analyse_study(demo)

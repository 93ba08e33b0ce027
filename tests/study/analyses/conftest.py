"""Fixtures of the analysis contracts (see `tests.support.analysis_contract`)."""

from __future__ import annotations

import warnings

import pytest

from study.analyses.surrogate.observations import collect_observations
from study.analyses.surrogate.surrogate import SurrogateModel, fit_surrogate
from study.trials.table import TrialTable
from tests.support.analysis_contract import make_contract_table


@pytest.fixture(scope="session")
def contract_table() -> TrialTable:
    """A study with every origin and state of a trial."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The balance properties")
        return make_contract_table()


@pytest.fixture(scope="session")
def contract_surrogate(contract_table: TrialTable) -> SurrogateModel:
    """The surrogate of loss `a` of the contract study, with few draws."""
    observations = collect_observations(contract_table, "a")
    model = fit_surrogate(observations, n_draws=32, n_bootstrap=2)
    assert isinstance(model, SurrogateModel)
    return model

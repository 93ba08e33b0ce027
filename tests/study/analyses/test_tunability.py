"""Tunability: gains and verdicts on responses with known optima."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from study.analyses import tunability
from study.analyses.surrogate.observations import collect_observations
from study.analyses.surrogate.surrogate import SurrogateModel, fit_surrogate
from study.trials.table import TrialTable
from tests.support.analysis_contract import SurrogateAnalysisContract
from tests.support.analysis_inputs import fit_model
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)


@pytest.fixture(scope="module")
def tuned() -> tuple[TrialTable, SurrogateModel]:
    """Published at 0.5 everywhere, best at 0.7, where a costs 0.0245, b 0.0008 and c nothing."""
    space = make_unit_space("a", list("abc"))
    table = make_table(
        [SyntheticLoss(space, make_additive_response([0.3, 0.01, 0.0]), noise=0.004)],
        SyntheticPlan(trials=70),
    )
    return table, fit_model(table)


def test_gain_verdicts_and_path_of_a_known_response(
    tuned: tuple[TrialTable, SurrogateModel],
) -> None:
    table, model = tuned
    endpoints = tunability.find_tuning_endpoints(table, model)
    assert endpoints is not None
    gain, low, high = tunability.estimate_tuning_gain(model, endpoints)
    assert low <= 0.0253 <= high
    assert gain == pytest.approx(0.025, abs=0.006)
    alone = tunability.analyse_tunability(model, endpoints)
    assert alone["knob"].iloc[0] == "a"
    assert float(alone["to"].iloc[0]) == pytest.approx(0.7, abs=0.06)
    rows = tunability.assess_keeping_published(model, endpoints, tolerance=0.006)
    assert rows.set_index("knob")["verdict"].to_dict() == {
        "a": "set it",
        "b": "may stay",
        "c": "may stay",
    }
    path = tunability.compute_ablation_path(model, endpoints)
    assert path["knob"].iloc[1] == "a"
    assert path["gain"].sum() == pytest.approx(gain, abs=1e-6)


def test_without_a_tolerance_no_param_gets_a_verdict(
    tuned: tuple[TrialTable, SurrogateModel],
) -> None:
    table, model = tuned
    endpoints = tunability.find_tuning_endpoints(table, model)
    assert endpoints is not None
    rows = tunability.assess_keeping_published(model, endpoints, tolerance=float("nan"))
    assert set(rows["verdict"]) == {"cannot tell"}
    assert rows["risk"].isna().all()


def test_a_space_without_a_published_point_has_no_endpoints(
    tuned: tuple[TrialTable, SurrogateModel],
) -> None:
    table, model = tuned
    space = replace(table.spaces["a"], published=())
    assert tunability.find_tuning_endpoints(replace(table, spaces={"a": space}), model) is None


def test_the_path_skips_params_that_tuning_does_not_change(
    tuned: tuple[TrialTable, SurrogateModel],
) -> None:
    _, model = tuned
    endpoints = tunability.TuningEndpoints(np.array([0.5, 0.5, 0.5]), np.array([0.7, 0.5, 0.6]))
    path = tunability.compute_ablation_path(model, endpoints)
    assert path["knob"].tolist() == ["published", "a", "c"]
    assert path["step"].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_params_that_must_be_tuned_do_not_get_may_stay() -> None:
    """Few noisy trials; every published value truly costs 0.0098, more than the tolerance."""
    space = make_unit_space("a", list("xyz"), published=0.5)
    problem = SyntheticLoss(space, make_additive_response((0.12, 0.12, 0.12)), noise=0.012)
    n_may_stay = 0
    for seed in range(14):
        table = make_table([problem], SyntheticPlan(trials=18), seed=seed)
        model = fit_surrogate(collect_observations(table, "a"), n_draws=64, n_bootstrap=4)
        assert isinstance(model, SurrogateModel)
        endpoints = tunability.find_tuning_endpoints(table, model)
        assert endpoints is not None
        rows = tunability.assess_keeping_published(model, endpoints, tolerance=0.006)
        # Band and verdict agree, and no cost is known to be exactly zero.
        assert ((rows["high"] <= 0.006) == (rows["verdict"] == "may stay")).all()
        assert ((rows["low"] > 0.006) == (rows["verdict"] == "set it")).all()
        assert (rows["high"] > 0).all()
        n_may_stay += int((rows["verdict"] == "may stay").sum())
    assert n_may_stay <= 2, n_may_stay


class _TuningContract(SurrogateAnalysisContract):
    def find_endpoints(self, table: TrialTable) -> tunability.TuningEndpoints:
        endpoints = tunability.find_tuning_endpoints(table, self.surrogate)
        assert endpoints is not None
        return endpoints


class TestTunabilityContract(_TuningContract):
    columns = ("knob", "published", "to", "gain", "low", "high")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return tunability.analyse_tunability(self.surrogate, self.find_endpoints(table))


class TestKeepingPublishedContract(_TuningContract):
    columns = ("knob", "risk", "low", "high", "probability", "verdict")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        endpoints = self.find_endpoints(table)
        return tunability.assess_keeping_published(self.surrogate, endpoints, tolerance=0.02)


class TestAblationPathContract(_TuningContract):
    columns = ("step", "knob", "to", "score", "gain", "low", "high")

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return tunability.compute_ablation_path(self.surrogate, self.find_endpoints(table))

"""Divergence map: counts, probabilities and collapsed trials."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from scipy.stats import beta

from study.analyses import divergence
from study.analyses.findings import StudyFindings, analyse_study
from study.analyses.surrogate.divergence_model import fit_divergence_model
from study.analyses.surrogate.observations import collect_observations
from study.analyses.surrogate.surrogate import SurrogateModel
from study.report.charts.spec import HeatmapMark
from study.report.figures import divergence as figures
from study.trials.table import TrialTable
from tests.support.analysis_contract import SurrogateAnalysisContract, TableAnalysisContract
from tests.support.analysis_inputs import make_space
from tests.support.synthetic_tables import (
    Array,
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)


@pytest.mark.xdist_group("demo")
def test_diverged_trials_shape_the_map_and_the_safe_range(demo_findings: StudyFindings) -> None:
    model = demo_findings.losses["circle"].surrogate
    assert isinstance(model, SurrogateModel)
    assert model.divergence_model is not None
    bad, good = np.array([[0.9, 0.5, 0.9]]), np.array([[0.3, 0.5, 0.5]])
    assert model.divergence_model(bad).mean() > 5 * model.divergence_model(good).mean()
    assert divergence.find_riskiest_pair(model.observations, model.divergence_model) in [
        ("gamma", "backbone_lr"),
        ("backbone_lr", "gamma"),
    ]
    counts = demo_findings.losses["circle"].divergence
    total = int((demo_findings.table.trials_of("circle")["state"] == "diverged").sum())
    assert counts.groupby("knob")["diverged"].sum().eq(total).all()


def test_trials_below_the_untrained_backbone_are_called_collapsed(demo: TrialTable) -> None:
    low = divergence.find_collapsed_trials(demo, "proxy_anchor")
    assert (low["score"] < 0.21).all()
    assert divergence.find_collapsed_trials(replace(demo, baseline={}), "proxy_anchor").empty


@pytest.mark.xdist_group("demo")
def test_a_collapse_is_on_the_map_even_if_nothing_diverged(demo_findings: StudyFindings) -> None:
    found = demo_findings.losses["proxy_anchor"]
    assert len(found.collapsed_trials)
    assert not (demo_findings.table.trials_of("proxy_anchor")["state"] == "diverged").any()
    assert found.divergence.groupby("knob")["collapsed"].sum().eq(len(found.collapsed_trials)).all()
    chart = figures.build_divergence_chart(demo_findings, "proxy_anchor")
    assert chart is not None
    names = {getattr(mark, "name", "") for panel in chart.panels for mark in panel.marks}
    assert names == {"collapsed"}


@pytest.mark.slow
def test_the_probability_of_a_choice_is_read_at_the_choice() -> None:
    params = make_space(
        kind=CategoricalDistribution(["a", "b", "c"]), x=FloatDistribution(0.0, 1.0)
    )

    def diverges(u: Array) -> Array:
        return np.where(u[:, 0] > 2 / 3, 0.9, 0.0)

    problem = SyntheticLoss(params, make_additive_response([0.05, 0.1]), diverges=diverges)
    table = make_table([problem], SyntheticPlan(trials=90, bayes=False, sobol_share=1.0))
    observations = collect_observations(table, "a")
    rows = divergence.analyse_divergence(
        observations, fit_divergence_model(observations), table.trials.iloc[:0]
    )
    chance = rows[rows["knob"] == "kind"].set_index("low")["chance"]
    assert chance["c"] > 0.7
    assert chance["a"] < 0.1
    assert chance["b"] < 0.1
    chart = figures.build_divergence_chart(analyse_study(table, n_suggestions=1), "a")
    assert chart is not None
    heatmap = next(mark for mark in chart.panels[0].marks if isinstance(mark, HeatmapMark))
    shown = np.array(heatmap.z, dtype=float)
    assert np.nanmax(shown) > 0.7
    assert np.nanmin(shown) < 0.1


def test_every_choice_is_counted_under_its_own_name() -> None:
    names = [f"c{i}" for i in range(7)]
    params = make_space(kind=CategoricalDistribution(names), x=FloatDistribution(0.0, 1.0))

    def diverges(u: Array) -> Array:
        return np.where(np.floor(u[:, 0] * 7) == 1, 1.0, 0.0)

    problem = SyntheticLoss(params, make_additive_response([0.0, 0.1]), diverges=diverges)
    table = make_table([problem], SyntheticPlan(trials=40, bayes=False, sobol_share=1.0))
    observations = collect_observations(table, "a")
    rows = divergence.analyse_divergence(observations, None, table.trials.iloc[:0])
    rows = rows[rows["knob"] == "kind"].set_index("low")
    assert list(rows.index) == names
    assert (rows["high"] == rows.index).all()
    assert rows.loc["c1", "rate"] == 1.0
    assert rows["diverged"].sum() == rows.loc["c1", "trials"]
    assert rows["chance"].isna().all(), "there is no model"


def test_the_interval_of_a_rate_is_jeffreys(contract_table: TrialTable) -> None:
    observations = collect_observations(contract_table, "a")
    rows = divergence.analyse_divergence(observations, None, contract_table.trials.iloc[:0])
    assert rows["diverged"].sum() > 0
    for row in rows.to_dict("records"):
        posterior = beta(row["diverged"] + 0.5, row["trials"] - row["diverged"] + 0.5)
        assert row["rate"] == row["diverged"] / row["trials"]
        assert posterior.cdf([row["rate_low"], row["rate_high"]]) == pytest.approx([0.05, 0.95])


def test_a_single_param_has_no_riskiest_pair() -> None:
    problem = SyntheticLoss(
        make_unit_space("a", ["x"]),
        make_additive_response([0.1]),
        diverges=lambda u: (u[:, 0] > 0.6).astype(float),
    )
    table = make_table([problem], SyntheticPlan(trials=24, bayes=False, sobol_share=1.0))
    observations = collect_observations(table, "a")
    model = fit_divergence_model(observations)
    assert model is not None
    assert divergence.find_riskiest_pair(observations, model) is None


class TestDivergenceContract(SurrogateAnalysisContract):
    columns = divergence.DIVERGENCE_COLUMNS

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        model = self.surrogate.divergence_model
        observations = collect_observations(table, "a")
        return divergence.analyse_divergence(observations, model, table.trials.iloc[:0])


class TestCollapsedTrialsContract(TableAnalysisContract):
    columns = ("trial", "score", "knob.x", "knob.y")

    @pytest.fixture
    def table(self, contract_table: TrialTable) -> TrialTable:
        return replace(contract_table, baseline={"validation": {"map_at_r": 0.55}})

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return divergence.find_collapsed_trials(table, "a")

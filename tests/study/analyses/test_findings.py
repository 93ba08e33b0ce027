"""Findings: the tolerance, refusals, and how the analyses are put together."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest

from study.analyses import ANALYSES
from study.analyses.findings import (
    LossFindings,
    StudyFindings,
    analyse_loss,
    analyse_study,
    choose_tolerance,
)
from study.analyses.surrogate.seed_noise import estimate_seed_noise
from study.analyses.surrogate.surrogate import Refusal, SurrogateModel
from study.trials.table import TrialTable
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

REFUSAL = Refusal("There are too few trials.")


def _make_table(*, repeats: int, repeated_points: int = 3) -> TrialTable:
    problems = [
        SyntheticLoss(make_unit_space(name, ["x"]), make_additive_response([0.2]), noise=0.01)
        for name in "ab"
    ]
    return make_table(
        problems, SyntheticPlan(trials=6, repeats=repeats, repeated_points=repeated_points)
    )


def test_the_tolerance_of_the_study_file_comes_first() -> None:
    table = _make_table(repeats=4)
    table = replace(table, protocol={**table.protocol, "tolerance": 0.123})
    assert choose_tolerance(table, "a", REFUSAL).value == 0.123


def test_the_tolerance_is_the_noise_of_the_loss_or_of_all_losses() -> None:
    reliable = _make_table(repeats=4)
    tolerance = choose_tolerance(reliable, "a", REFUSAL)
    assert tolerance.value == estimate_seed_noise(reliable, "a").sigma
    few = _make_table(repeats=2, repeated_points=2)
    assert not estimate_seed_noise(few, "a").is_reliable
    pooled = choose_tolerance(few, "a", REFUSAL)
    assert pooled.value == estimate_seed_noise(few).sigma
    assert pooled.source != tolerance.source


@pytest.mark.xdist_group("analysis_contract")
def test_without_repeats_the_tolerance_is_the_noise_of_the_model(
    contract_surrogate: SurrogateModel,
) -> None:
    single = _make_table(repeats=1)
    assert choose_tolerance(single, "a", contract_surrogate).value == contract_surrogate.noise_sd
    assert np.isnan(choose_tolerance(single, "a", REFUSAL).value)


def test_a_loss_with_too_few_trials_gets_refusals_and_what_can_be_counted() -> None:
    findings = analyse_loss(_make_table(repeats=3), "a")
    for name in ("surrogate", "importance", "interactions", "response_curves", "stable_ranges"):
        assert isinstance(getattr(findings, name), Refusal), name
    assert isinstance(findings.tuning, Refusal)
    assert findings.surfaces == ()
    assert findings.candidate_pool is None
    assert findings.seed_noise.is_measured
    assert findings.divergence.empty
    model = findings.loss_model
    assert model.surrogate is findings.surrogate
    assert model.curve_refusal is findings.response_curves


def test_a_study_without_trials_can_be_analysed() -> None:
    table = _make_table(repeats=3)
    empty = replace(table, trials=table.trials.iloc[:0], curves=table.curves.iloc[:0])
    findings = analyse_study(empty, n_suggestions=4)
    assert set(findings.losses) == {"a", "b"}
    assert findings.pairwise_tests.empty
    assert len(findings.suggested_trials) == 4


def test_the_same_seed_gives_the_same_findings() -> None:
    table = _make_table(repeats=3)
    first, second = (analyse_study(table, n_suggestions=3, seed=1) for _ in range(2))
    for name in ("leaderboard", "claims", "suggested_trials", "diagnostics"):
        pd.testing.assert_frame_equal(getattr(first, name), getattr(second, name))


def test_every_finding_is_in_the_registry_of_analyses() -> None:
    inputs = {"table", "loss", "losses", "tolerance", "best_split", "candidate_pool"}
    by_products = {"good_importance": "importance", "interactions": "importance"}
    by_products |= {"sweep_predictions": "sweeps"}
    for kind in (StudyFindings, LossFindings):
        names = {field.name for field in fields(kind)} - inputs
        missing = {by_products.get(name, name) for name in names} - set(ANALYSES)
        assert not missing, missing

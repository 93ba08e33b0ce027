"""Claims: which test each kind of claim gets, and verdicts on the demo study."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from search_spaces.claims import (
    BetterLoss,
    BetterValue,
    ClaimTest,
    CostRatio,
    FasterLoss,
    GoodValue,
    HigherMetric,
    PaperClaim,
    Sensitive,
    StableRange,
)
from study.analyses.claims import judge
from study.analyses.claims.verdict import ClaimVerdict
from study.analyses.findings import StudyFindings
from study.analyses.loss_model import LossModel
from study.analyses.surrogate.surrogate import Refusal
from study.trials.table import TrialTable
from tests.support.analysis_contract import TableAnalysisContract, make_models_without_surrogates


@pytest.mark.xdist_group("demo")
@pytest.mark.parametrize(
    ("test", "verdict"),
    [
        (BetterLoss("circle"), "supported"),
        (FasterLoss("circle"), "supported"),
        (CostRatio("circle", 1.05), "supported"),
        (CostRatio("circle", 0.9), "contradicted"),
        (HigherMetric("recall_at_1", "circle"), "supported"),
        (HigherMetric("nonsense", "circle"), "cannot tell"),
        (BetterLoss("multi_similarity"), "cannot tell"),
    ],
)
def test_claims_about_losses(demo_findings: StudyFindings, test: ClaimTest, verdict: str) -> None:
    claim = PaperClaim("c", "", "", test)
    found = judge.judge_claim(demo_findings.table, demo_findings.loss_models, "proxy_anchor", claim)
    assert found.verdict == verdict
    assert found.evidence
    assert (found.settle == "") == (verdict != "cannot tell")


@pytest.mark.xdist_group("demo")
def test_the_reverse_claim_is_contradicted(demo_findings: StudyFindings) -> None:
    claim = PaperClaim("c", "", "", BetterLoss("proxy_anchor"))
    found = judge.judge_claim(demo_findings.table, demo_findings.loss_models, "triplet", claim)
    assert found.verdict == "contradicted"


def _judge(table: TrialTable, test: ClaimTest, *, tolerance: float = 0.02) -> ClaimVerdict:
    refusal = Refusal("There are too few trials.")
    models = {loss: LossModel(refusal, refusal, tolerance) for loss in table.spaces}
    return judge.judge_claim(table, models, "a", PaperClaim("c", "", "", test))


def test_what_was_not_searched_cannot_be_judged(contract_table: TrialTable) -> None:
    found = _judge(contract_table, GoodValue("margin", 0.5))
    assert found.verdict == "cannot tell"
    assert "margin" in found.evidence
    assert "margin" in found.settle
    fixed = replace(contract_table.spaces["a"], fixed={"margin": 0.25})
    table = replace(contract_table, spaces={**contract_table.spaces, "a": fixed})
    assert "fixed at 0.25" in _judge(table, GoodValue("margin", 0.5)).evidence
    assert "missing" in _judge(contract_table, BetterLoss("missing")).settle


def test_without_a_tolerance_claims_about_params_stay_open(contract_table: TrialTable) -> None:
    found = _judge(contract_table, Sensitive("x"), tolerance=float("nan"))
    assert found.verdict == "cannot tell"
    assert "Repeat" in found.settle
    # Claims about losses need no tolerance.
    assert _judge(contract_table, CostRatio("b", 2.0), tolerance=float("nan")).basis == "trials"


def test_the_reason_of_a_refused_model_is_the_evidence(contract_table: TrialTable) -> None:
    found = _judge(contract_table, Sensitive("y"))
    assert found.verdict == "cannot tell"
    assert found.evidence == "There are too few trials."
    assert "y" in found.settle


@pytest.mark.parametrize(
    ("test", "text"),
    [
        (StableRange("x", 0.1, None), "x from 0.1 to the high end"),
        (StableRange("x", None, 4.0), "x from the low end to 4"),
        (GoodValue("x", 0.123456), "x = 0.123"),
        (GoodValue("pooling", "max"), "pooling = max"),
        (BetterValue("x", (0.1, 0.2), 3.0), "x: 0.1–0.2 beats 3.0"),
        (Sensitive("x"), "x costs more than the tolerance"),
        (BetterLoss("b"), "above that of b"),
        (BetterLoss("HOST"), "above that of proxy_anchor"),
        (FasterLoss("b"), "fewer epochs than b"),
        (CostRatio("b", 1.5), "at most 1.5 times those of b"),
        (HigherMetric("recall_at_1", "b"), "recall_at_1 above that of b"),
    ],
)
def test_the_description_names_hyperparameter_values_and_other_loss(
    test: ClaimTest, text: str
) -> None:
    claim = PaperClaim("c", "", "", test)
    assert text in judge.describe_test(claim, "proxy_anchor+synthesis")


def test_the_host_of_a_plug_in_is_the_part_before_the_plus() -> None:
    assert judge.host_loss_name("proxy_anchor+synthesis") == "proxy_anchor"
    assert judge.host_loss_name("triplet") == "triplet"


class TestContract(TableAnalysisContract):
    columns = judge.CLAIM_COLUMNS

    def analyse(self, table: TrialTable) -> pd.DataFrame:
        return judge.analyse_claims(table, make_models_without_surrogates(table))

"""Summary of the report: headline and confidence agree with the tests behind them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from study.analyses.findings import StudyFindings, analyse_study
from study.analyses.surrogate.surrogate import Refusal
from study.report.summary import leading_loss, summarise_findings
from tests.support.synthetic_tables import (
    SyntheticLoss,
    SyntheticPlan,
    make_additive_response,
    make_table,
    make_unit_space,
)

pytestmark = pytest.mark.split


def test_headline_and_confidence_agree() -> None:
    """Only the loss that is behind has repeated seeds."""
    problems = [
        SyntheticLoss(make_unit_space(n, ["x", "y"]), make_additive_response([0.2, 0.2], top=top))
        for n, top in (("a", 0.5), ("b", 0.6))
    ]
    table = make_table(problems, SyntheticPlan(trials=3))
    is_kept = (table.trials["loss"] == "a") | (table.trials["origin"] != "repeat")
    findings = analyse_study(replace(table, trials=table.trials[is_kept]), n_suggestions=1)
    assert list(findings.best_probabilities["loss"]) == ["a"]
    summary = summarise_findings(findings)
    assert summary.headline.startswith("b leads, but a may be as good: MAP@R 0.5")
    confidence = dict(summary.points)["How sure"]
    assert confidence.startswith("Unknown: a is 0.")
    assert "no seed of b was repeated" in confidence


@pytest.mark.slow
def test_the_headline_is_as_certain_as_the_paired_tests() -> None:
    n_certain = 0
    for seed, top in enumerate((0.603, 0.606, 0.609, 0.65)):
        tops = {"left": top, "middle": 0.6, "right": 0.6}
        problems = [
            SyntheticLoss(make_unit_space(n, ["x"]), make_additive_response([0.1], top=t))
            for n, t in tops.items()
        ]
        table = make_table(problems, SyntheticPlan(trials=6, confirm=3), seed=seed)
        findings = analyse_study(table, n_suggestions=1)
        best = str(findings.best_probabilities["loss"].iloc[0])
        summary = summarise_findings(findings)
        rows = findings.pairwise_tests
        rows = rows[(rows["loss"] == best) | (rows["other"] == best)]
        beats_all = not (rows["verdict"] == "cannot tell").any()
        is_certain = beats_all and findings.best_probabilities["probability"].iloc[0] >= 0.95
        start = f"Use {best}" if is_certain else f"{best} leads, but "
        assert summary.headline.startswith(start), summary
        assert re.search(r"0\.\d+ \(90 %: 0\.\d+ to 0\.\d+\) on test classes", summary.headline)
        assert re.search(r"behind \(95 %: \S+ to \S+\)", dict(summary.points)["How sure"])
        n_certain += is_certain
    assert 1 <= n_certain <= 3


@pytest.mark.xdist_group("demo")
def test_the_summary_of_the_demo_names_loss_confidence_and_hyperparameters(
    demo_findings: StudyFindings,
) -> None:
    summary = summarise_findings(demo_findings)
    assert summary.headline.startswith("Use proxy_anchor: MAP@R 0.6")
    titles = [title for title, _ in summary.points]
    assert titles[0] == "How sure"
    assert {"Set", "Leave"} & set(titles)
    assert "> 99%" in dict(summary.points)["How sure"]
    assert leading_loss(demo_findings) == "proxy_anchor"


@pytest.mark.xdist_group("demo")
def test_every_hyperparameter_of_the_best_loss_has_one_advice(
    demo_findings: StudyFindings,
) -> None:
    points = dict(summarise_findings(demo_findings).points)
    advice = " ".join(points.get(title, "") for title in ("Set", "Leave", "Cannot tell"))
    for label in ("α (alpha)", "δ (delta)", "η (backbone_lr)", "B (batch_size)", "pooling"):
        assert advice.count(label) == 1


@pytest.mark.xdist_group("demo")
def test_without_a_model_the_reason_replaces_the_advice(demo_findings: StudyFindings) -> None:
    found = replace(demo_findings.losses["proxy_anchor"], stable_ranges=Refusal("Too few trials."))
    losses = {**demo_findings.losses, "proxy_anchor": found}
    points = dict(summarise_findings(replace(demo_findings, losses=losses)).points)
    assert points["Hyperparameters"].endswith("Too few trials.")
    assert not {"Set", "Leave", "Cannot tell"} & set(points)

"""Tests of the page's sections: their order, their tables and texts."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from study.analyses.findings import StudyFindings, analyse_study
from study.analyses.surrogate.surrogate import SurrogateModel
from study.report.html_page import PageSection
from study.report.sections import build_sections, format_suggested_points
from tests.support.demo_study import make_demo_problems
from tests.support.synthetic_tables import SyntheticPlan, make_table

pytestmark = pytest.mark.xdist_group("demo")


def _tables(section: PageSection) -> list[pd.DataFrame]:
    return [b.table for b in section.blocks if b.table is not None]


def _texts(findings: StudyFindings) -> str:
    return " ".join(b.text for s in build_sections(findings) for b in s.blocks if b.text)


def test_sections_are_in_order_with_the_best_loss_first(demo_findings: StudyFindings) -> None:
    assert [s.key for s in build_sections(demo_findings)] == [
        "compare",
        "claims",
        "loss-proxy_anchor",
        "loss-circle",
        "loss-triplet",
        "search",
        "checks",
        "next",
    ]


def test_the_page_says_hyperparameter(demo_findings: StudyFindings) -> None:
    sections = build_sections(demo_findings)
    texts = [s.title + s.lead for s in sections]
    for block in (b for s in sections for b in s.blocks):
        texts += [block.text, block.caption]
        if block.chart:
            panels = block.chart.panels
            texts += [block.chart.title, block.chart.caption, *(p.title + p.note for p in panels)]
        if block.table is not None:
            texts += [str(column) for column in block.table.columns]
    assert [text for text in texts if "knob" in text.lower()] == []
    assert "hyperparameter" in " ".join(texts)


def test_stable_ranges_are_shown_with_their_verdicts(demo_findings: StudyFindings) -> None:
    section = next(s for s in build_sections(demo_findings) if s.key == "loss-triplet")
    (ranges,) = _tables(section)
    assert list(ranges["hyperparameter"]) == ["m (margin)", "η (backbone_lr)"]
    assert set(ranges["at its published value"]) <= {"may stay", "set it", "cannot tell", "–"}
    assert ranges["share of the range"].str.endswith("%").all()


def test_the_number_of_trials_that_the_model_excludes_is_stated(
    demo_findings: StudyFindings,
) -> None:
    loss, found = next(iter(demo_findings.losses.items()))
    assert isinstance(found.surrogate, SurrogateModel)
    texts = []
    for n_excluded in (0, 496):
        observations = replace(found.surrogate.observations, n_excluded_trials=n_excluded)
        thinned = replace(found, surrogate=replace(found.surrogate, observations=observations))
        losses = {**demo_findings.losses, loss: thinned}
        texts.append(_texts(replace(demo_findings, losses=losses)))
    words = f"{observations.n_trials} of {observations.n_trials + 496} trials"
    assert words not in texts[0]
    assert words in texts[1]


def test_too_few_trials_refuse_importances_with_a_reason() -> None:
    findings = analyse_study(
        make_table(make_demo_problems()[2:], SyntheticPlan(trials=3, repeats=1))
    )
    assert "No importances: " in _texts(findings)


def test_suggested_points_have_their_hyperparameters_in_one_column(
    demo_findings: StudyFindings,
) -> None:
    frame = demo_findings.suggested_trials
    table = format_suggested_points(frame, demo_findings.table)
    assert list(table.columns) == ["loss", "origin", "seed", "why", "point", "narrows"]
    assert len(table) == len(frame)
    for loss, point in zip(table["loss"], table["point"], strict=True):
        names = [part.split()[0] for part in point.split(", ")]
        assert names == list(demo_findings.table.searched_param_names(loss))

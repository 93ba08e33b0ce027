"""Tests of the page: user strings stay text, and only its own scripts may run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from study.report.charts.spec import Chart, ChartAxis, ChartPanel, ScatterMark
from study.report.html_page import PageBlock, PageSection, panel_id, render_page
from study.report.summary import ReportSummary
from study.report.writer import write_report
from tests.support.demo_study import make_demo_problems
from tests.support.synthetic_tables import SyntheticPlan, make_table

pytestmark = pytest.mark.split

HOSTILE_NAMES = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>']


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_user_strings_of_a_study_stay_text(tmp_path: Path, name: str) -> None:
    table = make_table(make_demo_problems()[2:], SyntheticPlan(trials=5), study=name)
    trials = table.trials.assign(trial=[f"{name}-{i}" for i in range(len(table.trials))])
    protocol = {**table.protocol, "dataset": name, "backbone": name}
    hostile = replace(table, trials=trials, protocol=protocol)
    html = write_report(hostile, tmp_path, formats=("png",)).index_path.read_text("utf-8")
    assert name not in html


def _chart(name: str) -> Chart:
    points = ScatterMark([1.0], [2.0], name, texts=[name])
    panel = ChartPanel(name, ChartAxis(name), ChartAxis(name), (points,))
    empty = ChartPanel(name, ChartAxis(name), ChartAxis(name), note=name)
    return Chart(f"chart-{name}", name, name, (panel, empty))


def _page(name: str) -> str:
    blocks = [
        PageBlock(text=name, warn=True),
        PageBlock(chart=_chart(name)),
        PageBlock(table=pd.DataFrame({name: [name]}), caption=name),
    ]
    return render_page(
        study=name,
        facts=[(name, name)],
        summary=ReportSummary(name, ((name, name),)),
        sections=[PageSection("key", name, blocks, name)],
    )


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_user_strings_stay_text_wherever_they_are_shown(name: str) -> None:
    assert name not in _page(name)


def test_the_page_has_a_figure_for_every_panel_without_a_note() -> None:
    html = _page("name")
    data = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html)
    assert data is not None
    first, second = (panel_id(_chart("name"), i) for i in (0, 1))
    assert set(json.loads(data.group(1))) == {first}
    assert f'<div class="plot" id="{first}">' in html
    assert second not in html


def test_the_policy_allows_only_the_scripts_of_the_page() -> None:
    html = _page("name")
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', html)
    assert policy is not None
    allowed = set(re.findall(r"'sha256-(.+?)'", policy.group(1)))
    scripts = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert allowed == hashes
    assert len(hashes) == 2
    assert "default-src 'none'" in policy.group(1)


def test_equal_arguments_give_equal_bytes() -> None:
    assert _page("name") == _page("name")

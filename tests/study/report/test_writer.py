"""Is there a report whatever the state of the study?"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from study.analyses.findings import Findings
from study.analyses.surrogate import Surrogate
from study.report.build import write_report
from study.report.sections import sections
from study.table import TrialTable
from tests.study.demo import anchor_response, anchor_space, circle_space, demo_problems
from tests.study.synthetic import Plan, Problem, make_table


def _page(table: TrialTable, out: Path) -> str:
    return write_report(table, out, formats=("png",)).index.read_text("utf-8")


def _hashes(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_same_table_same_bytes(tmp_path: Path) -> None:
    table = make_table(demo_problems()[2:], Plan(trials=20))
    write_report(table, tmp_path / "a")
    write_report(table, tmp_path / "b")
    first, second = _hashes(tmp_path / "a"), _hashes(tmp_path / "b")
    assert first == second
    kinds = {Path(name).suffix for name in first}
    assert {".html", ".png", ".svg", ".pdf", ".csv", ".tex"} <= kinds


def test_what_an_earlier_report_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    both = make_table(demo_problems()[1:], Plan(trials=3, repeats=1))
    _page(both, tmp_path)
    kept = [tmp_path / name for name in ("notes.txt", "figures/mine.png", "tables/mine.csv")]
    for path in kept:
        path.write_text("mine", "utf-8")
    assert list(tmp_path.rglob("*circle*"))
    manifest = tmp_path / "manifest.json"
    names = [*json.loads(manifest.read_text("utf-8"))["files"], "../out.txt", "notes.txt"]
    manifest.write_text(json.dumps({"files": [*names, "figures/../notes.txt"]}), "utf-8")
    _page(make_table(demo_problems()[2:], Plan(trials=3, repeats=1)), tmp_path)
    assert not list(tmp_path.rglob("*circle*"))
    assert list(tmp_path.rglob("response-triplet.png"))
    assert all(path.exists() for path in kept)


def test_a_report_that_breaks_off_leaves_the_one_before_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _page(make_table(demo_problems()[1:], Plan(trials=3, repeats=1)), tmp_path)
    before = _hashes(tmp_path)
    monkeypatch.setattr("study.report.tables.save", _full_disk)
    with pytest.raises(OSError, match="full"):
        _page(make_table(demo_problems()[2:], Plan(trials=3, repeats=1)), tmp_path)
    assert _hashes(tmp_path) == before


def _full_disk(*_: object, **__: object) -> list[Path]:
    raise OSError("the disk is full")


def test_what_the_data_and_weights_lack_is_on_the_page(tmp_path: Path) -> None:
    table = make_table(demo_problems()[2:], Plan(trials=3, repeats=1))
    notes = ["weights: w.pth: 23 weights loaded; 1 missing (<b>)"]
    html = _page(replace(table, protocol={**table.protocol, "notes": notes}), tmp_path)
    assert "1 missing (&lt;b&gt;)" in html


def test_three_trials_refuse_importances_in_words(tmp_path: Path) -> None:
    table = make_table(demo_problems(), Plan(trials=3, repeats=1))
    html = _page(table, tmp_path)
    assert "No importances:" in html
    assert "are needed to model" in html


def test_a_loss_that_always_diverged_is_shown_and_does_not_win(tmp_path: Path) -> None:
    broken = Problem(
        circle_space(), lambda u: np.full(len(u), 9.0), diverges=lambda u: np.ones(len(u))
    )
    table = make_table([broken, demo_problems()[2]], Plan(trials=14))
    html = _page(table, tmp_path)
    assert "Every trial diverged." in html
    assert "Use triplet" in html


def test_only_diverged_trials(tmp_path: Path) -> None:
    broken = Problem(circle_space(), lambda u: np.zeros(len(u)), diverges=lambda u: np.ones(len(u)))
    html = _page(make_table([broken], Plan(trials=4)), tmp_path)
    assert "No loss has a score yet." in html


def test_an_unfinished_study_says_so(tmp_path: Path) -> None:
    table = make_table(demo_problems()[2:], Plan(trials=6, running=2))
    assert "2 still running, so this page is not final" in _page(table, tmp_path)


def test_no_trials_at_all(tmp_path: Path) -> None:
    table = make_table(demo_problems()[2:], Plan(trials=6))
    empty = replace(table, trials=table.trials.iloc[:0], curves=table.curves.iloc[:0])
    assert "No loss has a score yet." in _page(empty, tmp_path)


def test_no_published_point_and_no_baseline(tmp_path: Path) -> None:
    space = replace(anchor_space(claims=False), published=())
    table = make_table([Problem(space, anchor_response)], Plan(trials=20))
    assert "Use proxy_anchor" in _page(replace(table, baseline={}), tmp_path)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'])
def test_user_strings_stay_text(tmp_path: Path, name: str) -> None:
    table = make_table(demo_problems()[2:], Plan(trials=5), study=name)
    trials = table.trials.assign(trial=[f"{name}-{i}" for i in range(len(table.trials))])
    protocol = {**table.protocol, "dataset": name, "backbone": name}
    html = _page(replace(table, trials=trials, protocol=protocol), tmp_path)
    assert name not in html


def test_trials_that_no_model_saw_are_counted_on_the_page(demo_findings: Findings) -> None:
    loss, found = next(iter(demo_findings.losses.items()))
    assert isinstance(found.surrogate, Surrogate)
    said = []
    for left_out in (0, 496):
        samples = replace(found.surrogate.samples, left_out=left_out)
        thinned = replace(found, surrogate=replace(found.surrogate, samples=samples))
        page = sections(replace(demo_findings, losses={**demo_findings.losses, loss: thinned}))
        said.append(" ".join(b.text for s in page for b in s.blocks if b.text))
    words = f"It learned from {samples.trials} of {samples.trials + 496} trials"
    assert words not in said[0]
    assert words in said[1]


def test_plots_are_valid_plotly(demo: TrialTable) -> None:
    from study.analyses.findings import find
    from study.report.draw_plotly import figure
    from study.report.sections import sections

    small = make_table(demo_problems()[1:], Plan(trials=16))
    panels = [p for s in sections(find(small)) for b in s.blocks if b.chart for p in b.chart.panels]
    assert len(panels) >= 7
    for panel in panels:
        go.Figure(figure(panel))  # raises on any property plotly does not know


def test_a_band_ends_where_no_trials_lie() -> None:
    """A fill of plotly's runs across gaps, so every stretch is drawn for itself."""
    from study.report.chart import Axis, Band, Panel
    from study.report.draw_plotly import figure

    nan = float("nan")
    x = [float(i) for i in range(7)]
    band = Band(x, [nan, 1.0, 1.1, nan, nan, 1.2, 1.3], [nan, 2.0, 2.1, nan, nan, 2.2, 2.3], "band")
    low, high, other_low, other_high = figure(Panel("", Axis("x"), Axis("y"), (band,)))["data"]
    assert low["x"] == high["x"] == [1.0, 2.0]
    assert other_low["x"] == other_high["x"] == [5.0, 6.0]
    assert (low["y"], high["y"]) == ([1.0, 1.1], [2.0, 2.1])
    assert (other_low["y"], other_high["y"]) == ([1.2, 1.3], [2.2, 2.3])
    assert [t.get("fill") for t in (low, high, other_low, other_high)] == [None, "tonexty"] * 2

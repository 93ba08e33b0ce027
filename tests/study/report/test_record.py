"""Is every number in report.json, as its schema says, and every table readable?"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution

from search_spaces.space import Knob, Space
from study.analyses.findings import Findings
from study.errors import StudyError
from study.report import tables
from study.report.answer import Answer, answer
from study.report.build import write_findings
from study.report.compare import compare_reports
from study.report.record import record, schema
from study.table import TrialTable
from tests.study.demo import demo_problems
from tests.study.synthetic import Plan, make_table


@pytest.fixture(scope="module")
def written(demo_findings: Findings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_findings(demo_findings, folder)
    return folder


def test_report_json_follows_its_schema(written: Path) -> None:
    content = json.loads((written / "report.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.Draft202012Validator(schema()).validate(content)
    assert set(content["losses"]) == {"proxy_anchor", "circle", "triplet"}
    assert content["losses"]["proxy_anchor"]["tuning"]["gain"]["mean"] > 0


def test_refusals_follow_the_schema_too() -> None:
    from study.analyses.findings import find

    small = find(make_table(demo_problems(), Plan(trials=3, repeats=1)))
    content = json.loads(json.dumps(record(small, Answer("h", (("a", "b"),))), allow_nan=False))
    jsonschema.Draft202012Validator(schema()).validate(content)
    assert "refused" in content["losses"]["circle"]["importance"]


def test_the_schema_would_notice(written: Path) -> None:
    content = json.loads((written / "report.json").read_text("utf-8"))
    content["claims"][0]["verdict"] = "maybe"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema()).validate(content)


def test_every_chart_is_drawn_in_every_format(written: Path) -> None:
    names = {p.stem for p in (written / "figures").iterdir()}
    for name in names:
        for kind in ("png", "svg", "pdf"):
            assert (written / "figures" / f"{name}.{kind}").stat().st_size > 1000
    for start in ("confirmed", "leaderboard", "history", "expected-best", "response-", "sweeps-",
                  "importance-", "pairs-", "divergence-", "tuning-"):  # fmt: skip
        assert any(n.startswith(start) for n in names), start
    pdf = (written / "figures" / "leaderboard.pdf").read_bytes()
    assert b"/FontFile2" in pdf, "fonts are not embedded"
    svg = (written / "figures" / "leaderboard.svg").read_text("utf-8")
    assert "<text" not in svg, "text depends on fonts of the reader's machine"


def test_every_table_is_csv_and_latex(written: Path) -> None:
    sheets = sorted((written / "tables").glob("*.csv"))
    assert len(sheets) > 25
    for sheet in sheets:
        with sheet.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.reader(lines))
        assert len({len(r) for r in rows}) == 1
        tex = sheet.with_suffix(".tex").read_text("utf-8")
        assert tex.count(r" \\") == len(rows)


def test_latex_escapes() -> None:
    assert tables.escape_tex("a_b & 5 % of α <x>") == (
        r"a\_b \& 5 \% of $\alpha$ \textless{}x\textgreater{}"
    )


def test_latex_writes_knobs_as_the_papers_do(written: Path) -> None:
    tex = (written / "tables" / "stable-proxy_anchor.tex").read_text("utf-8")
    assert r"$\alpha$ & " in tex
    assert r"$\delta$ & " in tex
    assert r"batch\_size & " in tex, "a knob without a symbol keeps its name"
    heads = (written / "tables" / "next-trials.tex").read_text("utf-8")
    assert r"$\alpha$ & " in heads
    assert "knob.alpha" not in heads


def test_a_symbol_of_two_knobs_keeps_their_names() -> None:
    twice = Space(
        loss="a",
        paper="",
        scientific={n: Knob(FloatDistribution(0, 1), "α", "", r"\alpha") for n in ("p", "q_r")},
    )
    assert tables.symbols([twice]) == {"p": r"$\alpha$ (p)", "q_r": r"$\alpha$ (q\_r)"}


def test_a_loss_with_a_comment_in_its_name_has_a_latex_label(tmp_path: Path) -> None:
    frame = pd.DataFrame({"loss": ["50%_{x}"]})
    tex = tables.save(frame, tmp_path, "stable-50%_{x}", caption="of 50%_{x}")[1]
    assert not re.search(r"(?<!\\)%", tex.read_text("utf-8"))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", ".hidden", "x" * 300 + "é"])
def test_user_names_stay_inside_the_folder(name: str, tmp_path: Path) -> None:
    safe = tables.safe_name(f"curves-{name}")
    assert "/" not in safe
    assert len(safe) < 150
    assert not tables.safe_name(name).startswith(".")


def test_the_answer_comes_first_and_in_words(demo_findings: Findings) -> None:
    said = answer(demo_findings)
    assert said.headline.startswith("Use proxy_anchor: MAP@R 0.6")
    titles = [t for t, _ in said.points]
    assert titles[0] == "How sure"
    assert {"Set", "Leave"} & set(titles)
    assert "> 99%" in dict(said.points)["How sure"]


def test_two_studies_compared(tmp_path: Path, demo: TrialTable) -> None:
    small = [
        make_table(demo_problems()[2:], Plan(trials=24), seed=s, study=f"s{s}") for s in (0, 1)
    ]
    paths = compare_reports(small, tmp_path, formats=("png",))
    html = paths.index.read_text("utf-8")
    assert "Stable ranges in all studies" in html
    content = json.loads(paths.record.read_text("utf-8"))
    jsonschema.Draft202012Validator(schema("comparison")).validate(content)
    assert content["studies"] == ["s0", "s1"]
    assert {r["knob"] for r in content["common"]} == {"margin", "backbone_lr"}
    with pytest.raises(StudyError, match="at least two"):
        compare_reports([demo], tmp_path)

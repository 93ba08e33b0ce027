"""Tests of exported tables: CSV, LaTeX, escapes and the symbols of hyperparameters."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from optuna.distributions import FloatDistribution

from search_spaces.space import Hyperparameter, SearchSpace
from study.report import table_export

pytestmark = pytest.mark.xdist_group("demo")


def _space(loss: str, **latex: str) -> SearchSpace:
    distribution = FloatDistribution(0, 1)
    params = {n: Hyperparameter(distribution, "s", "", tex) for n, tex in latex.items()}
    return SearchSpace(loss=loss, paper="", scientific=params)


def test_every_table_is_csv_and_latex(demo_report: Path) -> None:
    sheets = sorted((demo_report / "tables").glob("*.csv"))
    assert len(sheets) > 25
    for sheet in sheets:
        with sheet.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.reader(lines))
        assert len({len(r) for r in rows}) == 1
        tex = sheet.with_suffix(".tex").read_text("utf-8")
        assert tex.count(r" \\") == len(rows)


def test_special_characters_are_escaped() -> None:
    assert table_export.escape_tex("a_b & 5 % of α <x>") == (
        r"a\_b \& 5 \% of $\alpha$ \textless{}x\textgreater{}"
    )
    assert table_export.escape_tex("\\{}$#~^") == (
        r"\textbackslash{}\{\}\$\#\textasciitilde{}\textasciicircum{}"
    )


def test_hyperparameters_are_written_with_the_symbols_of_the_papers(demo_report: Path) -> None:
    tex = (demo_report / "tables" / "stable-proxy_anchor.tex").read_text("utf-8")
    assert r"$\alpha$ & " in tex
    assert r"$\delta$ & " in tex
    assert r"batch\_size & " in tex, "a hyperparameter without a symbol keeps its name"
    header = (demo_report / "tables" / "next-trials.tex").read_text("utf-8")
    assert r"$\alpha$ & " in header
    assert "knob.alpha" not in header


def test_a_symbol_of_two_hyperparameters_is_followed_by_the_name() -> None:
    space = _space("a", p=r"\alpha", q_r=r"\alpha")
    assert table_export.collect_latex_symbols([space]) == {
        "p": r"$\alpha$ (p)",
        "q_r": r"$\alpha$ (q\_r)",
    }


def test_symbols_that_differ_between_spaces_are_left_out() -> None:
    spaces = [_space("a", m=r"\delta", s="s"), _space("b", m=r"\mu", s="s", t="")]
    assert table_export.collect_latex_symbols(spaces) == {"s": "$s$"}


def test_the_latex_of_a_table() -> None:
    frame = pd.DataFrame(
        {
            "knob": ["alpha", "beta_1"],
            "other": ["beta_1", "alpha"],
            "share": [0.123456, math.nan],
            "n": [1, 20],
            "supported": pd.Series([True, False], dtype=object),
        }
    )
    tex = table_export.to_latex(
        frame, caption="100 %", label="pairs", symbols={"alpha": r"$\alpha$"}
    )
    assert tex.splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{100 \%}",
        r"\label{tab:pairs}",
        r"\begin{tabular}{llrrl}",
        r"\toprule",
        r"knob & other & share & n & supported \\",
        r"\midrule",
        r"$\alpha$ & beta\_1 & 0.1235 & 1 & yes \\",
        r"beta\_1 & $\alpha$ & -- & 20 & no \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_another_loss_is_not_taken_for_a_hyperparameter() -> None:
    frame = pd.DataFrame({"loss": ["margin"], "other": ["margin"]})
    tex = table_export.to_latex(frame, caption="", label="x", symbols={"margin": "$m$"})
    assert "$m$" not in tex


def test_the_latex_is_that_of_pandas() -> None:
    frame = pd.DataFrame({"loss": ["a", "b"], "best": [0.25, 0.5]})
    expected = (
        frame.style.hide(axis="index")
        .format({"best": "{:.4g}"})
        .to_latex(
            column_format="lr",
            hrules=True,
            caption="Best",
            label="tab:best",
            position_float="centering",
        )
    )
    assert table_export.to_latex(frame, caption="Best", label="best") == expected


def test_a_comment_sign_in_the_name_of_a_loss_is_harmless(tmp_path: Path) -> None:
    frame = pd.DataFrame({"loss": ["50%_{x}"]})
    tex = table_export.save_table(frame, tmp_path, "stable-50%_{x}", caption="of 50%_{x}")[1]
    assert not re.search(r"(?<!\\)%", tex.read_text("utf-8"))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", ".hidden", "x" * 300 + "é"])
def test_tables_with_names_of_users_stay_inside_the_folder(name: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"loss": [name]})
    paths = table_export.save_table(frame, tmp_path, f"curves-{name}", caption="")
    assert sorted(paths) == sorted(tmp_path.iterdir())
    assert all(path.resolve().parent == tmp_path.resolve() for path in paths)

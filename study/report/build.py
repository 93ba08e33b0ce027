"""How does a trial table become a folder with a report?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from study.analyses.findings import Findings, find
from study.analyses.surrogate import NAMES, Refusal
from study.report import draw_matplotlib, page, tables
from study.report.answer import answer
from study.report.figures import history, importance, leaderboard, response
from study.report.page import Block, Section
from study.report.words import knob_label, metric_label, number, percent
from study.table import TrialTable


@dataclass(frozen=True)
class ReportPaths:
    """What was written: the page, and the folders of figures and tables."""

    index: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]


def write_report(
    table: TrialTable,
    out: Path,
    *,
    seed: int = 0,
    formats: Sequence[str] = draw_matplotlib.FORMATS,
) -> ReportPaths:
    """Write index.html, figures/ and tables/ into `out`; the same table gives the same bytes."""
    findings = find(table, seed=seed)
    sections = _sections(findings)
    for folder in ("figures", "tables"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    index = out / "index.html"
    html = page.render(
        study=table.study, facts=_facts(table), answer=answer(findings), sections=sections
    )
    index.write_text(html, "utf-8")
    charts = [b.chart for s in sections for b in s.blocks if b.chart]
    drawn = [p for c in charts for p in draw_matplotlib.save(c, out / "figures", formats)]
    saved = [
        p
        for key, frame, caption in _frames(findings)
        for p in tables.save(frame, out / "tables", key, caption=caption)
    ]
    return ReportPaths(index, tuple(drawn), tuple(saved))


def _facts(table: TrialTable) -> list[tuple[str, str]]:
    names = ("dataset", "backbone", "objective", "epochs", "folds")
    facts = [(n, str(table.protocol[n])) for n in names if table.protocol.get(n) is not None]
    return [(n, metric_label(v) if n == "objective" else v) for n, v in facts]


def _sections(findings: Findings) -> list[Section]:
    first = [
        Section(
            "leaderboard",
            "Leaderboard",
            [
                Block(chart=leaderboard.chart(findings)),
                Block(table=_board(findings)),
                Block(chart=history.chart(findings)),
            ],
        )
    ]
    order = [n for n in findings.leaderboard["loss"] if n in findings.losses]
    return first + [_loss_section(findings, loss) for loss in order]


def _board(findings: Findings) -> pd.DataFrame:
    board = findings.leaderboard
    shown = [
        c
        for c in (
            "loss",
            "best",
            "repeated",
            "published",
            "seed_sigma",
            "trials",
            "stopped",
            "diverged",
            "running",
            "epochs",
        )
        if c in board
    ]
    names = {"seed_sigma": "seed σ", "repeated": "best, repeated"}
    return board[shown].rename(columns=names)


def _loss_section(findings: Findings, loss: str) -> Section:
    found = findings.losses[loss]
    blocks: list[Block] = [Block(text=_model_line(findings, loss))]
    if not isinstance(found.stable, Refusal):
        blocks.append(Block(table=_ranges(findings, loss), caption="Stable ranges"))
    blocks.append(Block(chart=response.chart(findings, loss)))
    if isinstance(found.importance, Refusal):
        blocks.append(Block(text=f"No importances: {found.importance.reason}", warn=True))
    else:
        blocks.append(Block(chart=importance.chart(findings, loss)))
    return Section(f"loss-{loss}", loss, blocks)


def _model_line(findings: Findings, loss: str) -> str:
    model = findings.losses[loss].surrogate
    if isinstance(model, Refusal):
        return f"No model of this loss: {model.reason}"
    first, second = model.quality
    return (
        f"Model: {NAMES[first.kind]}, explains {percent(first.r2)} of unseen settings' scores, "
        f"90 % intervals hold {percent(first.coverage)} of them "
        f"({NAMES[second.kind]}: {percent(second.r2)})."
    )


def _ranges(findings: Findings, loss: str) -> pd.DataFrame:
    ranges, space = findings.losses[loss].stable, findings.table.spaces[loss]
    assert isinstance(ranges, pd.DataFrame)
    rows = []
    for row in ranges.to_dict("records"):
        if row["status"] != "stable":
            safe = str(row["status"])
        elif row["values"]:
            safe = str(row["values"])
        else:
            safe = f"{number(row['low'])} – {number(row['high'])}"
        rows.append(
            {
                "knob": knob_label(space, str(row["knob"])),
                "safe values": safe,
                "share of the range": percent(float(row["share"])),
                "best": number(row["best"]),
                "cost at worst": f"{row['cost']:.3f}",
            }
        )
    return pd.DataFrame(rows)


def _frames(findings: Findings) -> list[tuple[str, pd.DataFrame, str]]:
    out = [
        ("trials", findings.table.trials, "All trials"),
        ("leaderboard", findings.leaderboard, "Best validation score per loss"),
        ("history", findings.history, "Best score so far"),
    ]
    for loss, found in findings.losses.items():
        for name, frame in (
            ("importance", found.importance),
            ("importance-good", found.good_importance),
            ("pairs", found.pairs),
            ("curves", found.curves),
            ("stable", found.stable),
        ):
            if isinstance(frame, pd.DataFrame):
                out.append((f"{name}-{loss}", frame, f"{name} of {loss}"))
    return out

"""How does a trial table become a folder with a report?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from study.analyses.findings import Findings, find
from study.report import draw_matplotlib, folder, page, record, tables
from study.report.answer import answer
from study.report.sections import sections
from study.report.words import metric_label
from study.table import TrialTable

PAGE, NUMBERS = "index.html", "report.json"


@dataclass(frozen=True)
class ReportPaths:
    """What was written: the page, all numbers, and the files of figures and tables."""

    index: Path
    record: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]

    @classmethod
    def of(cls, out: Path, figures: Iterable[Path], tables: Iterable[Path]) -> ReportPaths:
        """Those of the report in `out`, whose figures and tables were built elsewhere."""
        drawn = tuple(out / "figures" / path.name for path in figures)
        saved = tuple(out / "tables" / path.name for path in tables)
        return cls(out / PAGE, out / NUMBERS, drawn, saved)


def write_report(
    table: TrialTable,
    out: Path,
    *,
    seed: int = 0,
    formats: Sequence[str] = draw_matplotlib.FORMATS,
) -> ReportPaths:
    """Write index.html, report.json, figures/ and tables/ into `out`.

    The same table and seed give the same bytes. The report takes the place of an earlier one all
    at once; see `folder`.
    """
    return write_findings(find(table, seed=seed), out, formats=formats)


def write_findings(
    findings: Findings, out: Path, *, formats: Sequence[str] = draw_matplotlib.FORMATS
) -> ReportPaths:
    """The report of findings already made."""
    table = findings.table
    said, told = answer(findings), sections(findings)
    html = page.render(study=table.study, facts=facts(table), answer=said, sections=told)
    content = record.record(findings, said)
    charts = [b.chart for s in told for b in s.blocks if b.chart]
    known = tables.symbols(table.spaces.values())
    with folder.replaced(out) as new:
        save_page(new, html, content)
        drawn = draw_matplotlib.save_all(charts, new / "figures", formats)
        saved = [
            p
            for key, frame, caption, loss in frames(findings)
            for p in tables.save(
                frame,
                new / "tables",
                key,
                caption=caption,
                symbols=tables.symbols([table.spaces[loss]]) if loss else known,
            )
        ]
    return ReportPaths.of(out, drawn, saved)


def save_page(out: Path, html: str, content: Mapping[str, Any]) -> None:
    """Write the page and all numbers."""
    (out / PAGE).write_text(html, "utf-8")
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (out / NUMBERS).write_text(text, "utf-8")


def facts(table: TrialTable) -> list[tuple[str, str]]:
    """The protocol, as the page's header prints it."""
    names = ("dataset", "backbone", "objective", "epochs", "folds")
    known = [(n, str(table.protocol[n])) for n in names if table.protocol.get(n) is not None]
    told = [(n, metric_label(v) if n == "objective" else v) for n, v in known]
    return [*told, *(("note", str(note)) for note in table.protocol.get("notes") or ())]


def frames(findings: Findings) -> list[tuple[str, pd.DataFrame, str, str]]:
    """Every table of the report: key, frame, caption, and the loss it is about (if one)."""
    study = [
        ("trials", findings.table.trials, "All trials"),
        ("leaderboard", findings.leaderboard, "Best validation score per loss"),
        ("history", findings.history, "Best score so far against epochs spent"),
        ("confirmed", findings.confirmed, "Confirmed test scores, 95 % intervals over seeds"),
        ("inflation", findings.inflation, "Best-test-epoch selection minus last epoch"),
        ("paired", findings.paired, "Tuned losses in pairs, Holm-corrected"),
        ("best", findings.best, f"Probability of being the best loss ({findings.best_split})"),
        ("noise-floor", findings.noise_floor, "Differences between names of one function"),
        ("cost", findings.cost, "Seconds per epoch"),
        ("claims", findings.claims, "Claims of the papers"),
        ("next-trials", findings.advice, "Trials that would narrow the answer most"),
        ("lint", findings.lint, "Warnings"),
    ]
    out = [(*row, "") for row in study]
    for loss, found in findings.losses.items():
        many: list[tuple[str, object, str]] = [
            ("importance", found.importance, "Sobol shares with 90 % bands"),
            ("importance-good", found.good_importance, "Sobol shares above the median"),
            ("pairs", found.pairs, "Interaction shares of pairs"),
            ("curves", found.curves, "Response curves"),
            ("stable", found.stable, "Stable ranges"),
            ("sweeps", found.sweeps, "One-at-a-time sweeps, 95 % intervals"),
            ("divergence", found.divergence, "Diverged trials along each knob"),
            ("expected-best", found.expected, "Best of n trials"),
            ("stopping", found.stopping, "Rank correlation of early with final scores"),
        ]
        tuned = found.tuned
        many += [
            (name, getattr(tuned, name, None), caption)
            for name, caption in (
                ("tunability", "Gain of tuning one knob alone"),
                ("leave", "Cost of leaving a knob at its published value"),
                ("path", "From the published to the best point"),
            )
        ]
        many += [
            (f"surface-{s['knob'].iloc[0]}-{s['other'].iloc[0]}", s, "Surface over two knobs")
            for s in found.surfaces
        ]
        out += [
            (f"{name}-{loss}", frame, f"{caption}: {loss}", loss)
            for name, frame, caption in many
            if isinstance(frame, pd.DataFrame)
        ]
    return [row for row in out if len(row[1].columns) and len(row[1])]

"""Report writer: page, JSON, figures and tables of a study in one folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from study.analyses.findings import StudyFindings, analyse_study
from study.report import html_page, json_export, table_export
from study.report.charts import matplotlib_renderer
from study.report.formatting import metric_label
from study.report.sections import build_sections
from study.report.summary import summarise_findings
from study.trials.table import TrialTable
from study.utils import atomic_folder

PAGE_FILE_NAME, JSON_FILE_NAME = "index.html", "report.json"


@dataclass(frozen=True)
class ReportPaths:
    """Files of a written report: the page, the JSON file, the figures and the tables."""

    index_path: Path
    json_path: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]

    @classmethod
    def from_folder(cls, out: Path, figures: Iterable[Path], tables: Iterable[Path]) -> ReportPaths:
        """Return the paths in `out`, given the files as they were named in the staging folder."""
        return cls(
            out / PAGE_FILE_NAME,
            out / JSON_FILE_NAME,
            tuple(out / "figures" / path.name for path in figures),
            tuple(out / "tables" / path.name for path in tables),
        )


def write_report(
    table: TrialTable,
    out: Path,
    *,
    seed: int = 0,
    formats: Sequence[str] = matplotlib_renderer.FIGURE_FORMATS,
) -> ReportPaths:
    """Analyse a study and write index.html, report.json, figures/ and tables/ into `out`.

    The same table and seed give the same bytes. An earlier report in `out` is replaced only once
    the new one is complete (see `study.utils.atomic_folder`).

    Args:
        table: Trials of the study.
        out: Folder of the report.
        seed: Seed of the analyses.
        formats: File formats of the figures.
    """
    return write_findings(analyse_study(table, seed=seed), out, formats=formats)


def write_findings(
    findings: StudyFindings,
    out: Path | str,
    *,
    formats: Sequence[str] = matplotlib_renderer.FIGURE_FORMATS,
) -> ReportPaths:
    """Write the report of a study that is already analysed (see `write_report`)."""
    table, out = findings.table, Path(out)
    summary, sections = summarise_findings(findings), build_sections(findings)
    html = html_page.render_page(
        study=table.study, facts=protocol_facts(table), summary=summary, sections=sections
    )
    content = json_export.findings_to_json(findings, summary)
    charts = [b.chart for s in sections for b in s.blocks if b.chart]
    all_symbols = table_export.collect_latex_symbols(table.spaces.values())
    tables: list[Path] = []
    with atomic_folder.replacing_folder(out) as folder:
        write_page(folder, html, content)
        figures = matplotlib_renderer.save_charts(charts, folder / "figures", formats)
        for key, frame, caption, loss in report_tables(findings):
            symbols = (
                table_export.collect_latex_symbols([table.spaces[loss]]) if loss else all_symbols
            )
            tables += table_export.save_table(
                frame, folder / "tables", key, caption=caption, symbols=symbols
            )
    return ReportPaths.from_folder(out, figures, tables)


def write_page(out: Path, html: str, content: Mapping[str, Any]) -> None:
    """Write index.html and report.json into the folder `out`."""
    (out / PAGE_FILE_NAME).write_text(html, "utf-8")
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (out / JSON_FILE_NAME).write_text(text, "utf-8")


def protocol_facts(table: TrialTable) -> list[tuple[str, str]]:
    """Return the names and values of the protocol that the page shows below the summary."""
    names = ("dataset", "backbone", "objective", "epochs", "folds")
    values = [(n, str(table.protocol[n])) for n in names if table.protocol.get(n) is not None]
    facts = [(n, metric_label(v) if n == "objective" else v) for n, v in values]
    return [*facts, *(("note", str(note)) for note in table.protocol.get("notes") or ())]


def report_tables(findings: StudyFindings) -> list[tuple[str, pd.DataFrame, str, str]]:
    """Return every table of the report: key, frame, caption, and its loss (empty if several)."""
    study_tables = [
        ("trials", findings.table.trials, "All trials"),
        ("leaderboard", findings.leaderboard, "Best validation score per loss"),
        ("history", findings.optimization_history, "Best score so far against epochs spent"),
        (
            "confirmed",
            findings.confirmed_scores,
            "Confirmed test scores, 95 % intervals over seeds",
        ),
        ("inflation", findings.epoch_selection_bias, "Best-test-epoch selection minus last epoch"),
        (
            "paired",
            findings.pairwise_tests,
            "Tuned losses in pairs, p values corrected by Holm's method",
        ),
        (
            "best",
            findings.best_probabilities,
            f"Probability of being the best loss ({findings.best_split})",
        ),
        (
            "noise-floor",
            findings.noise_floor,
            "Differences between losses that are the same function",
        ),
        ("cost", findings.epoch_cost, "Seconds per epoch"),
        ("claims", findings.claims, "Claims of the papers"),
        ("next-trials", findings.suggested_trials, "Trials that would narrow the answer most"),
        ("lint", findings.diagnostics, "Warnings"),
    ]
    out = [(*row, "") for row in study_tables]
    for loss, found in findings.losses.items():
        loss_tables: list[tuple[str, object, str]] = [
            ("importance", found.importance, "Sobol shares with 90 % bands"),
            ("importance-good", found.good_importance, "Sobol shares above the median"),
            ("pairs", found.interactions, "Interaction shares of pairs"),
            ("curves", found.response_curves, "Response curves"),
            ("stable", found.stable_ranges, "Stable ranges"),
            ("sweeps", found.sweeps, "One-at-a-time sweeps, 95 % intervals"),
            ("divergence", found.divergence, "Diverged trials along each hyperparameter"),
            ("expected-best", found.expected_best, "Best of n trials"),
            ("stopping", found.early_stopping, "Rank correlation of early with final scores"),
        ]
        tuned = found.tuning
        loss_tables += [
            (name, getattr(tuned, name, None), caption)
            for name, caption in (
                ("tunability", "Gain of tuning one hyperparameter alone"),
                ("leave", "Cost of leaving a hyperparameter at its published value"),
                ("path", "From the published to the best point"),
            )
        ]
        loss_tables += [
            (
                f"surface-{s['knob'].iloc[0]}-{s['other'].iloc[0]}",
                s,
                "Surface over two hyperparameters",
            )
            for s in found.surfaces
        ]
        out += [
            (f"{name}-{loss}", frame, f"{caption}: {loss}", loss)
            for name, frame, caption in loss_tables
            if isinstance(frame, pd.DataFrame)
        ]
    return [row for row in out if len(row[1].columns) and len(row[1])]

"""Report text: leaderboard and test scores as plain text, and the commands that write reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from study.results import ResultStore
from study.utils.format import format_score

if TYPE_CHECKING:
    import pandas as pd

    from study.analyses.findings import StudyFindings
    from study.trials.table import TrialTable


def write_comparison(stores: Sequence[ResultStore], out: Path) -> None:
    """Write a comparison of studies: which stable ranges hold in all of them."""
    from study.report.comparison import compare_reports
    from study.tracking.reader import read_table

    paths = compare_reports([read_table(s.uri, s.name) for s in stores], out)
    click.echo(f"comparison: {paths.index_path}")


def write_and_print_report(uri: str, name: str, out: Path) -> None:
    """Write the report of a study, then print its summary."""
    from study.analyses.findings import analyse_study
    from study.report.writer import write_findings
    from study.tracking.reader import read_table

    findings = analyse_study(read_table(uri, name))
    write_findings(findings, out)
    print_findings(findings, uri, out)


def print_findings(findings: StudyFindings, uri: str, out: Path) -> None:
    """Print the leaderboard, the test scores and the locations of report and store.

    Args:
        findings: What the report shows.
        uri: Tracking URI of the study.
        out: The report's directory.
    """
    _print_tables(
        findings.table,
        findings.leaderboard,
        findings.confirmed_scores,
        findings.epoch_selection_bias,
    )
    _print_locations(findings.table.study, uri, out)


def print_results(uri: str, name: str, out: Path) -> None:
    """Print the same for a study whose report is left for later."""
    from study.analyses.epoch_selection_bias import analyse_epoch_selection_bias
    from study.analyses.leaderboard import analyse_leaderboard
    from study.analyses.loss_comparison import summarise_confirmed_scores
    from study.tracking.reader import read_table

    table = read_table(uri, name)
    _print_tables(
        table,
        analyse_leaderboard(table),
        summarise_confirmed_scores(table),
        analyse_epoch_selection_bias(table),
    )
    _print_locations(name, uri, out)


def _print_tables(
    table: TrialTable, leaderboard: pd.DataFrame, confirmed: pd.DataFrame, bias: pd.DataFrame
) -> None:
    click.echo(format_leaderboard(table, leaderboard))
    if text := format_confirmed_scores(table, confirmed, bias):
        click.echo(text)


def _print_locations(study: str, uri: str, out: Path) -> None:
    from study.utils.redaction import redact

    page = out / "index.html"
    click.echo(f"report:       {page if page.exists() else f'study report {study}'}")
    click.echo(f"MLflow store: {redact(uri)}  (study ui {study})")


def format_leaderboard(table: TrialTable, leaderboard: pd.DataFrame) -> str:
    """Format the leaderboard as plain text."""
    from study.analyses.leaderboard import UNTRAINED_BACKBONE_LABEL

    width = max(len(str(loss)) for loss in leaderboard["loss"])
    lines = [
        "",
        f"{table.study}: {_objective(table)} on validation classes",
        f"  {'':<{width}}  {'best':>7}  {'repeated':>8}  {'published':>9}  {'trials':>6}",
    ]
    for row in leaderboard.to_dict("records"):
        cells = [f"  {row['loss']:<{width}}", f"{format_score(row['best']):>7}"]
        if row["loss"] != UNTRAINED_BACKBONE_LABEL:
            cells.append(f"{format_score(row['repeated']):>8}")
            cells.append(f"{format_score(row['published']):>9}")
            cells.append(f"{int(row['trials']):>6}")
        lines.append("  ".join(cells))
    return "\n".join([*lines, ""])


def format_confirmed_scores(table: TrialTable, confirmed: pd.DataFrame, bias: pd.DataFrame) -> str:
    """Format the test scores of confirmed points, and what selecting test epochs would add.

    The text is empty before any point is confirmed.
    """
    if confirmed.empty:
        return ""
    width = max(len(str(loss)) for loss in confirmed["loss"])
    lines = [
        f"{table.study}: {_objective(table)} on test classes after the last epoch, mean over "
        "fresh seeds",
        f"  {'':<{width}}  {'point':<9}  {'mean':>7}  {'95 % interval':>16}  {'seeds':>5}",
    ]
    for row in confirmed.to_dict("records"):
        seeds = int(row["seeds"])
        interval = f"{format_score(row['low'])}..{format_score(row['high'])}" if seeds > 1 else ""
        cells = [f"{row['point']:<9}", f"{format_score(row['mean']):>7}", f"{interval:>16}"]
        cells.append(f"{seeds:>5}" if seeds else "")
        lines.append("  ".join([f"  {row['loss']:<{width}}", *cells]).rstrip())
    added = [f"{r['loss']} +{format_score(r['inflation'])}" for r in bias.to_dict("records")]
    lines.append(f"selecting the best test epoch would have added: {', '.join(added)}")
    return "\n".join([*lines, ""])


def _objective(table: TrialTable) -> str:
    return str(table.protocol.get("objective", "score"))

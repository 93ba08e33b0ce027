"""From a study's tracking store to its report, for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from study.display import number

if TYPE_CHECKING:
    from study.table import TrialTable


@dataclass(frozen=True)
class Store:
    """Where a study's trials are kept, and where its report goes unless told otherwise.

    `spool` is where records of it may wait on this machine.
    """

    name: str
    uri: str
    report: Path
    spool: Path | None = None


def find_store(name: str, tracking_uri: str | None, root: Path | None) -> Store:
    """The store of a study: as named, as its plan says, or the one in its directory.

    A directory without a plan but with a store is a study that was imported.
    """
    from study.home import StudyHome, find_study, studies_root
    from study.plan import PLAN_FILE, load_plan
    from study.tracking.local import default_uri

    if tracking_uri:
        return Store(name, tracking_uri, Path(f"{name}-report"))
    imported = StudyHome(studies_root(root) / name)
    if (imported.directory / "mlflow.db").exists() and not (
        imported.directory / PLAN_FILE
    ).exists():
        return Store(name, default_uri(imported.directory), imported.report)
    home = find_study(name, root)
    plan = load_plan(home.directory)
    return Store(plan.name, home.tracking_uri(plan), home.report, home.spool)


def partial_text(store: Store) -> str:
    """Why a report made now lacks something; empty when it lacks nothing that is known here."""
    from study.tracking.spool import is_waiting, read_status

    if store.spool is None or not is_waiting(store.spool):
        return ""
    error = read_status(store.spool).error
    return (
        f"the store of {store.name} lacks records that wait in {store.spool}"
        + (f" ({error})" if error else "")
        + f": this is not all; `study resume {store.name}` sends them"
    )


def compare(stores: Sequence[Store], out: Path) -> None:
    """Write a comparison of studies: which stable ranges hold in all."""
    from study.report.compare import compare_reports
    from study.tracking.reader import read_table

    paths = compare_reports([read_table(s.uri, s.name) for s in stores], out)
    click.echo(f"comparison: {paths.index}")


def make_report(uri: str, name: str, out: Path) -> None:
    """Write the report and print the leaderboard and where everything is."""
    from study.report.build import write_report
    from study.tracking.reader import read_table

    table = read_table(uri, name)
    write_report(table, out)
    _print(table, uri, out)


def show_results(uri: str, name: str, out: Path) -> None:
    """The same for a report that was just written, or is left for later."""
    from study.tracking.reader import read_table

    _print(read_table(uri, name), uri, out)


def _print(table: TrialTable, uri: str, out: Path) -> None:
    from study.tracking.redaction import redact

    page = out / "index.html"
    click.echo(leaderboard_text(table))
    if tested := confirmed_text(table):
        click.echo(tested)
    click.echo(f"report:       {page if page.exists() else f'study report {table.study}'}")
    click.echo(f"MLflow store: {redact(uri)}  (study ui {table.study})")


def leaderboard_text(table: TrialTable) -> str:
    """The leaderboard as plain text, for terminals and logs."""
    from study.analyses.leaderboard import UNTRAINED, analyse

    frame = analyse(table)
    width = max(len(str(loss)) for loss in frame["loss"])
    objective = table.protocol.get("objective", "score")
    lines = [
        "",
        f"{table.study}: {objective} on validation classes",
        f"  {'':<{width}}  {'best':>7}  {'repeated':>8}  {'published':>9}  {'trials':>6}",
    ]
    for row in frame.to_dict("records"):
        untrained = row["loss"] == UNTRAINED
        rest = (
            []
            if untrained
            else [
                f"{number(row['repeated']):>8}",
                f"{number(row['published']):>9}",
                f"{int(row['trials']):>6}",
            ]
        )
        lines.append("  ".join([f"  {row['loss']:<{width}}", f"{number(row['best']):>7}", *rest]))
    return "\n".join([*lines, ""])


def confirmed_text(table: TrialTable) -> str:
    """Test scores of confirmed points, and what picking the best test epoch would have added."""
    from study.analyses.comparison import confirmed
    from study.analyses.inflation import analyse

    frame = confirmed(table)
    if frame.empty:
        return ""
    width = max(len(str(loss)) for loss in frame["loss"])
    objective = table.protocol.get("objective", "score")
    lines = [
        f"{table.study}: {objective} on test classes after the last epoch, mean over fresh seeds",
        f"  {'':<{width}}  {'point':<9}  {'mean':>7}  {'95 % interval':>16}  {'seeds':>5}",
    ]
    for row in frame.to_dict("records"):
        seeds = int(row["seeds"])
        interval = f"{number(row['low'])}..{number(row['high'])}" if seeds > 1 else ""
        cells = [f"{row['point']:<9}", f"{number(row['mean']):>7}", f"{interval:>16}"]
        cells.append(f"{seeds:>5}" if seeds else "")
        lines.append("  ".join([f"  {row['loss']:<{width}}", *cells]).rstrip())
    added = [f"{r['loss']} +{number(r['inflation'])}" for r in analyse(table).to_dict("records")]
    lines.append(f"picking the best test epoch would have added: {', '.join(added)}")
    return "\n".join([*lines, ""])

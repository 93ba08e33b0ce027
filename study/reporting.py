"""From a study's tracking store to its report, for a person."""

from __future__ import annotations

from pathlib import Path

import click

from study.home import StudyHome
from study.plan import Plan


def make_report(home: StudyHome, plan: Plan, out: Path | None = None) -> Path:
    """Write the report and print the leaderboard and where everything is."""
    from study.report.build import write_report
    from study.tracking.reader import read_table
    from study.tracking.redaction import redact

    uri = home.tracking_uri(plan)
    table = read_table(uri, plan.name)
    paths = write_report(table, out or home.report)
    click.echo(paths.leaderboard_text)
    click.echo(f"report:       {paths.html}")
    click.echo(f"MLflow store: {redact(uri)}  (study ui {home.name})")
    return paths.html

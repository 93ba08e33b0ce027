"""From a study's tracking store to its report, for a person."""

from __future__ import annotations

from pathlib import Path

import click


def make_report(uri: str, name: str, out: Path) -> None:
    """Write the report and print the leaderboard and where everything is."""
    from study.report.build import write_report
    from study.tracking.reader import read_table
    from study.tracking.redaction import redact

    paths = write_report(read_table(uri, name), out)
    click.echo(paths.leaderboard_text)
    click.echo(f"report:       {paths.html}")
    click.echo(f"MLflow store: {redact(uri)}  (study ui {name})")

"""`study report`: from the tracking store to the answer."""

from __future__ import annotations

from pathlib import Path

import click

from study.commands.options import root_option


@click.command(
    help="Make the report of a study from its tracking store alone; with --tracking-uri from "
    "anywhere, without the study's directory."
)
@click.argument("name")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write to.")
@click.option("--tracking-uri", help="MLflow server or database that holds the study.")
@root_option
def command(name: str, out: Path | None, tracking_uri: str | None, root: Path | None) -> None:
    """Read the trial table, write the report."""
    from study.home import find_study
    from study.plan import load_plan
    from study.reporting import make_report

    if tracking_uri:
        make_report(tracking_uri, name, out or Path(f"{name}-report"))
        return
    home = find_study(name, root)
    plan = load_plan(home.directory)
    make_report(home.tracking_uri(plan), plan.name, out or home.report)

"""`study claims`: does what the papers say hold here?"""

from __future__ import annotations

from pathlib import Path

import click

from study.commands.options import address_option, json_option, print_json, root_option


@click.command(
    help="What the papers say of the study's losses and whether it holds here; --settle runs the "
    "trials that open claims need.",
)
@click.argument("name")
@click.option("--settle", "go", is_flag=True, help="Run the trials that would settle open claims.")
@json_option
@root_option
@address_option
def command(name: str, go: bool, as_json: bool, root: Path | None, address: str | None) -> int:
    """Judge every claim; with --settle run what is missing and judge again in the report."""
    from study.analyses.findings import find
    from study.analyses.settle import settle
    from study.reporting import find_store
    from study.running import run_points
    from study.tracking.reader import read_table

    store = find_store(name, None, root)
    table = read_table(store.uri, store.name)
    findings = find(table, advised=1)
    if as_json:
        print_json(findings.claims.to_dict("records"))
    else:
        for row in findings.claims.to_dict("records"):
            click.echo(f"{row['verdict']:<13} {row['loss']}: {row['statement']}")
            click.echo(f"{'':<13} {row['evidence']}")
            if row["settle"]:
                click.echo(f"{'':<13} to settle it: {row['settle']}")
        if findings.claims.empty:
            click.echo("the papers of these losses make no claim that trials could check")
    if not go:
        return 0
    points = settle(table, findings.models)
    if points.empty:
        click.echo("no open claim can be settled by trials of this study", err=as_json)
        return 0
    return run_points(name, root, points, reason="claim", address=address)

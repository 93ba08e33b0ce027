"""`study claims`: test the claims of the papers on the trials of a study."""

from __future__ import annotations

from pathlib import Path

import click

from study.cli.options import address_option, json_option, print_json, root_option


@click.command(
    help="Print the papers' claims about the study's losses and whether they hold here; --settle "
    "runs the trials that undecided claims need.",
)
@click.argument("name")
@click.option("--settle", is_flag=True, help="Run the trials that would settle undecided claims.")
@json_option
@root_option
@address_option
def claims_command(
    name: str, settle: bool, as_json: bool, root: Path | None, address: str | None
) -> int:
    """Judge every claim; with --settle run the missing trials, whose verdicts the report shows."""
    from study.analyses.claims.settling_trials import suggest_settling_trials
    from study.analyses.findings import analyse_study
    from study.cli.execute import run_suggested_trials
    from study.results import find_store
    from study.tracking.reader import read_table

    store = find_store(name, None, root)
    table = read_table(store.uri, store.name)
    findings = analyse_study(table, n_suggestions=1)
    if as_json:
        print_json(findings.claims.to_dict("records"))
    else:
        for row in findings.claims.to_dict("records"):
            click.echo(f"{row['verdict']:<13} {row['loss']}: {row['statement']}")
            click.echo(f"{'':<13} {row['evidence']}")
            if row["settle"]:
                click.echo(f"{'':<13} to settle it: {row['settle']}")
        if findings.claims.empty:
            click.echo("the papers of these losses make no claims that trials can test")
    if not settle:
        return 0
    points = suggest_settling_trials(table, findings.loss_models)
    if points.empty:
        click.echo("no undecided claim can be settled by trials of this study", err=as_json)
        return 0
    return run_suggested_trials(name, root, points, reason="claim", address=address)

"""`study refine`: suggest the trials that would narrow the answers most, and run them."""

from __future__ import annotations

from pathlib import Path

import click

from study.cli.options import address_option, json_option, print_json, root_option


@click.command(
    help="Print the trials that would narrow the answers most; --run runs them.",
)
@click.argument("name")
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Number of trials to suggest.",
)
@click.option("--run", "run_them", is_flag=True, help="Run the suggested trials.")
@json_option
@root_option
@address_option
def refine_command(
    name: str, trials: int, run_them: bool, as_json: bool, root: Path | None, address: str | None
) -> int:
    """Print the points that the analyses suggest; with --run, run them."""
    from study.analyses.findings import analyse_study
    from study.analyses.next_trials import suggest_trials
    from study.cli.execute import run_suggested_trials
    from study.results import find_store
    from study.tracking.reader import read_table
    from study.trials.table import PARAM_PREFIX

    store = find_store(name, None, root)
    table = read_table(store.uri, store.name)
    points = suggest_trials(table, analyse_study(table, n_suggestions=1).loss_models, n=trials)
    if as_json:
        print_json(points.to_dict("records"))
    else:
        for row in points.to_dict("records"):
            params = table.searched_param_names(str(row["loss"]))
            values = " ".join(f"{k}={_format_param_value(row[PARAM_PREFIX + k])}" for k in params)
            click.echo(f"{row['loss']}  {values}  ({row['why']})")
    if not run_them:
        if not as_json:
            click.echo(f"run them with: study refine {name} --trials {trials} --run")
        return 0
    return run_suggested_trials(name, root, points, reason="refine", address=address)


def _format_param_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

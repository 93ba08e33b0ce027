"""`study refine`: which trials would narrow the answer most?"""

from __future__ import annotations

from pathlib import Path

import click

from study.commands.options import address_option, json_option, print_json, root_option


@click.command(
    help="Say which trials would narrow the answer most, and run them with --run.",
)
@click.argument("name")
@click.option("--trials", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--run", "go", is_flag=True, help="Run them.")
@json_option
@root_option
@address_option
def command(
    name: str, trials: int, go: bool, as_json: bool, root: Path | None, address: str | None
) -> int:
    """Ask the analyses for points; print or run them."""
    from study.analyses.advice import advise
    from study.analyses.findings import find
    from study.reporting import find_store
    from study.running import run_points
    from study.tracking.reader import read_table

    store = find_store(name, None, root)
    table = read_table(store.uri, store.name)
    points = advise(table, find(table, advised=1).models, n=trials)
    if as_json:
        print_json(points.to_dict("records"))
    else:
        for row in points.to_dict("records"):
            knobs = table.knobs(str(row["loss"]))
            words = " ".join(f"{k}={_show(row['knob.' + k])}" for k in knobs)
            click.echo(f"{row['loss']}  {words}  ({row['why']})")
    if not go:
        if not as_json:
            click.echo(f"run them with: study refine {name} --trials {trials} --run")
        return 0
    return run_points(name, root, points, reason="refine", address=address)


def _show(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

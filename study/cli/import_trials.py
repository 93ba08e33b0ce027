"""`study import`: make a study of trials run elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from study.commands.options import root_option


def _columns(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the columns of a CSV of trials and a space file, and end."""
    if not asked:
        return
    from study.importing import CSV_COLUMNS, EXAMPLE

    width = max(map(len, CSV_COLUMNS))
    for name, meaning in CSV_COLUMNS.items():
        click.echo(f"{name:<{width}}  {meaning}")
    click.echo(f"\nA space file, for example:\n\n{EXAMPLE}", nl=False)
    context.exit()


@click.command(
    name="import",
    help="Make a study of trials run elsewhere: a CSV file, an Optuna storage or a Tune folder. "
    "Report, refine and claims work on it as on any other.",
)
@click.argument("name")
@click.option("--csv", "csv", type=click.Path(path_type=Path), help="Table of trials.")
@click.option(
    "--columns",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_columns,
    help="Print the columns of such a table and an example of a space file, and end.",
)
@click.option(
    "--space",
    type=click.Path(path_type=Path),
    help="YAML: what was searched; --columns prints an example.",
)
@click.option("--optuna", "optuna_", nargs=2, metavar="URL STUDY", help="Optuna storage and study.")
@click.option("--tune", type=click.Path(path_type=Path), help="Folder of a Ray Tune run.")
@click.option("--loss", help="With --optuna or --tune: the loss it is, of those in the space file.")
@click.option("--metric", help="With --tune: the metric that was searched.")
@click.option("--mode", type=click.Choice(["max", "min"]), default="max", show_default=True)
@root_option
def command(
    name: str,
    csv: Path | None,
    space: Path | None,
    optuna_: tuple[str, str] | None,
    tune: Path | None,
    loss: str | None,
    metric: str | None,
    mode: str,
    root: Path | None,
) -> None:
    """Read the trials, write them to a store of the study's own."""
    from study.errors import StudyError
    from study.home import new_study
    from study.importing import pick_space, read_csv_trials, read_optuna, read_tune
    from study.importing.store import store_study

    if sum(source is not None for source in (csv, optuna_, tune)) != 1:
        raise StudyError("`study import` needs one of --csv, --optuna or --tune")
    home = new_study(name, root)
    if csv is not None:
        if space is None:
            raise StudyError("--csv needs --space: a YAML file that says what was searched")
        if loss is not None:
            raise StudyError("--loss is for --optuna and --tune: a CSV has a column `loss`")
        table = read_csv_trials(csv, space, study=name)
    elif optuna_ is not None:
        described = pick_space(space, loss) if space else None
        table = read_optuna(*optuna_, loss=loss, space=described.space if described else None)
        table = described.told(table) if described else table
    else:
        assert tune is not None
        if space is None or metric is None:
            raise StudyError("--tune needs --space and --metric")
        described = pick_space(space, loss)
        table = described.told(read_tune(tune, described.space, metric=metric, mode=mode))
    store_study(table, home)
    click.echo(f"{name}: {len(table.trials)} trials of {', '.join(table.spaces)}")
    click.echo(f"now: study report {name}")

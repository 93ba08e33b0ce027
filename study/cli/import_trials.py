"""`study import`: make a study from trials that ran elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from study.cli.options import root_option


def _print_columns(context: click.Context, _: click.Parameter, requested: bool) -> None:
    """Print the columns of a CSV file of trials and an example of a space file, and exit."""
    if not requested:
        return
    from study.importers import CSV_COLUMNS, SPACE_FILE_EXAMPLE

    width = max(map(len, CSV_COLUMNS))
    for name, meaning in CSV_COLUMNS.items():
        click.echo(f"{name:<{width}}  {meaning}")
    click.echo(f"\nExample of a space file:\n\n{SPACE_FILE_EXAMPLE}", nl=False)
    context.exit()


@click.command(
    name="import",
    help="Make a study from trials that ran elsewhere: a CSV file, an Optuna storage or a Ray Tune "
    "folder. `study report`, `refine` and `claims` work on it as on any other study.",
)
@click.argument("name")
@click.option(
    "--csv",
    "csv",
    type=click.Path(path_type=Path),
    help="CSV file of trials; --columns prints its columns.",
)
@click.option(
    "--columns",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_columns,
    help="Print the columns of the CSV file and an example of a space file, and exit.",
)
@click.option(
    "--space",
    type=click.Path(path_type=Path),
    help="YAML file that describes what was searched; --columns prints an example.",
)
@click.option("--optuna", "optuna_", nargs=2, metavar="URL STUDY", help="Optuna storage and study.")
@click.option("--tune", type=click.Path(path_type=Path), help="Folder of a Ray Tune run.")
@click.option("--loss", help="With --optuna or --tune: which loss of the space file was trained.")
@click.option("--metric", help="With --tune: the metric that was optimised.")
@click.option(
    "--mode",
    type=click.Choice(["max", "min"]),
    default="max",
    show_default=True,
    help="With --tune: whether a higher or a lower metric is better.",
)
@root_option
def import_command(
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
    """Read the trials and write them to a tracking store in the study's directory."""
    from study.directory import new_study_directory
    from study.errors import StudyError
    from study.importers import pick_space, read_csv_trials, read_optuna, read_tune
    from study.importers.store import store_study

    if sum(source is not None for source in (csv, optuna_, tune)) != 1:
        raise StudyError("`study import` needs exactly one of --csv, --optuna and --tune")
    study_dir = new_study_directory(name, root)
    if csv is not None:
        if space is None:
            raise StudyError("--csv needs --space, a YAML file that describes what was searched")
        if loss is not None:
            raise StudyError("--loss is for --optuna and --tune; a CSV file has a column `loss`")
        table = read_csv_trials(csv, space, study=name)
    elif optuna_ is not None:
        table = read_optuna(*optuna_, pick_space(space, loss) if space else None, loss=loss)
    else:
        assert tune is not None
        if space is None or metric is None:
            raise StudyError("--tune needs --space and --metric")
        table = read_tune(tune, pick_space(space, loss), metric=metric, mode=mode)
    store_study(table, study_dir)
    click.echo(f"{name}: {len(table.trials)} trials of {', '.join(table.spaces)}")
    click.echo(f"next: study report {name}")

"""`study check`: validate a study file and print its plan and cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.cli.options import json_option, print_json, set_option

if TYPE_CHECKING:
    from study.config.plan import Plan


@click.command(help="Validate a study file and its data; print the plan and its cost.")
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@click.option("--gpu-price", type=float, help="Price of one GPU hour, to print the total price.")
@json_option
def check_command(
    file: Path, overrides: tuple[str, ...], gpu_price: float | None, as_json: bool
) -> None:
    """Check what `study run` checks; only the data cache is written.

    A server is not asked whether it has an experiment of the same name: the plan gets a new study
    id each time, so only `study run` can tell whose experiment it is.
    """
    from contextlib import nullcontext

    from study.cli.display import open_display
    from study.config.loader import load_config
    from study.config.planner import build_plan
    from study.errors import StudyError
    from study.runner.cost import estimate_cost, estimate_gpu_memory
    from study.runner.preflight import check_storage, describe_data, open_data
    from study.tracking.health import check_store
    from study.utils.paths import cache_dir

    plan = build_plan(load_config(file, overrides))
    if plan.file.tracking.uri is not None and (problem := check_store(plan.file.tracking.uri)):
        click.echo(f"warning: {problem}", err=True)
    check_storage(plan)
    with open_display(plan.name) if not as_json else nullcontext() as display:
        progress = display.show_build_progress if display else None
        context = open_data(plan, cache_dir=cache_dir(), progress=progress)
        try:
            cost = estimate_cost(plan, context, gpu_price=gpu_price)
            memory = estimate_gpu_memory(plan, context)
        except ValueError as error:  # a setting that the backbone does not support
            raise StudyError(str(error)) from None
    content = {
        "study": plan.name,
        "data": describe_data(plan, context),
        "losses": [_describe_loss_plan(plan, loss) for loss in plan.losses],
        "cost": cost,
        "gpu_memory": memory,
        "advice": _collect_advice(plan),
    }
    if as_json:
        print_json(content)
    else:
        _print_plan(content)


def _describe_loss_plan(plan: Plan, loss: str) -> dict[str, Any]:
    from search_spaces.space import describe_distribution

    space = plan.spaces[loss]
    return {
        "loss": loss,
        "space": plan.file.losses[loss].space,
        "searched": {k: describe_distribution(d) for k, d in space.distributions.items()},
        "fixed": dict(space.fixed),
        "published": dict(space.published[0].values) if space.published else None,
        "points": plan.n_points,
        "trials": plan.max_trials(loss),
        "epochs": plan.epochs_per_trial(loss),
    }


def _collect_advice(plan: Plan) -> list[str]:
    from study.analyses.diagnostics import check_planned_spaces
    from study.search.optuna_samplers import unmodelled_params

    sampler = plan.file.search.sampler
    lines = check_planned_spaces(
        plan.spaces, trials=plan.n_points, sobol=plan.n_sobol_points(plan.losses[0], 0)
    )
    for loss, space in plan.spaces.items():
        if params := unmodelled_params(sampler, space):
            lines.append(
                f"{loss}: CMA-ES does not model {', '.join(params)}; values are sampled at random."
            )
    return lines


def _print_plan(content: dict[str, Any]) -> None:
    from study.runner.cost import format_cost, format_gpu_memory

    data = content["data"]
    click.echo(f"{content['study']}: {data['name']} ({data['kind']})")
    for part in ("train", "validation", "test"):
        click.echo(
            f"  {part:<11}{data[f'{part}_classes']:>6} classes {data[f'{part}_items']:>7} items"
        )
    for note in data["notes"]:
        click.echo(f"  note: {note}")
    for loss in content["losses"]:
        trials = f"up to {loss['trials']} trials x {loss['epochs']} epochs"
        space = f" (space {loss['space']})" if loss["space"] else ""
        click.echo(f"{loss['loss']}{space}: {loss['points']} points, {trials}")
        for param, text in loss["searched"].items():
            published = (
                ""
                if loss["published"] is None
                else _format_published_value(loss["published"][param])
            )
            click.echo(f"  {param:<18} {text:<24}  {published}".rstrip())
    for line in content["advice"]:
        click.echo(f"advice: {line}")
    click.echo(format_cost(content["cost"]))
    if content["gpu_memory"] is not None:
        click.echo(format_gpu_memory(content["gpu_memory"]))


def _format_published_value(value: Any) -> str:
    return f"published {value:g}" if isinstance(value, float) else f"published {value}"

"""`study check`: validate a study file; print its plan and cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from study.commands.options import json_option, print_json, set_option


@click.command(help="Validate a study file and its data; print the plan and what it costs.")
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@click.option("--gpu-price", type=float, help="Of one GPU for one hour: print what it costs.")
@json_option
def command(file: Path, overrides: tuple[str, ...], gpu_price: float | None, as_json: bool) -> None:
    """Everything `study run` would check, and nothing is written but the data cache."""
    from contextlib import nullcontext

    from study.checks import check_storage, describe_data, open_data
    from study.cost import estimate
    from study.display import open_display
    from study.home import cache_dir
    from study.planning import build_plan
    from study.read_file import read_study_file
    from study.tracking.probe import check_store

    plan = build_plan(read_study_file(file, overrides))
    if plan.file.tracking.uri is not None and (problem := check_store(plan.file.tracking.uri)):
        click.echo(f"warning: {problem}", err=True)
    check_storage(plan)
    with open_display(plan.name) if not as_json else nullcontext() as display:
        progress = display.building if display else None
        bench = open_data(plan, cache_dir=cache_dir(), progress=progress)
        cost = estimate(plan, bench, gpu_price=gpu_price)
    content = {
        "study": plan.name,
        "data": describe_data(plan, bench),
        "losses": [_loss(plan, loss) for loss in plan.losses],
        "cost": cost,
        "advice": _advice(plan),
    }
    if as_json:
        print_json(content)
    else:
        _print(content)


def _loss(plan: Any, loss: str) -> dict[str, Any]:
    from search_spaces.space import describe

    space = plan.spaces[loss]
    return {
        "loss": loss,
        "space": plan.file.losses[loss].space,
        "searched": {k: describe(d) for k, d in space.distributions.items()},
        "fixed": dict(space.fixed),
        "published": dict(space.published[0].values) if space.published else None,
        "points": plan.points(loss),
        "trials": plan.trials(loss),
        "epochs": plan.epochs(loss),
    }


def _advice(plan: Any) -> list[str]:
    from study.analyses.lint import lint_plan
    from study.tuning.sampling import drawn_at_random

    first, sampler = plan.losses[0], plan.file.search.sampler
    lines = lint_plan(plan.spaces, trials=plan.points(first), sobol=plan.sobol(first, 0))
    for loss, space in plan.spaces.items():
        if knobs := drawn_at_random(sampler, space):
            lines.append(f"{loss}: CMA-ES has no model of {', '.join(knobs)}: drawn at random.")
    return lines


def _print(content: dict[str, Any]) -> None:
    from study.cost import in_words

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
        for knob, text in loss["searched"].items():
            published = "" if loss["published"] is None else _show(loss["published"][knob])
            click.echo(f"  {knob:<18} {text:<24}  {published}".rstrip())
    for line in content["advice"]:
        click.echo(f"advice: {line}")
    click.echo(in_words(content["cost"]))


def _show(value: Any) -> str:
    return f"published {value:g}" if isinstance(value, float) else f"published {value}"

"""`study sweep`: measure the score along one hyperparameter, as papers plot it."""

from __future__ import annotations

from pathlib import Path

import click

from study.cli.options import address_option, cluster_option, root_option


@click.command(
    help="Vary one hyperparameter at a time around the published point and the best point, with "
    "several seeds."
)
@click.argument("name")
@click.option(
    "--knob", "knobs", multiple=True, required=True, help="Hyperparameter to vary; repeatable."
)
@click.option("--loss", "losses", multiple=True, help="Loss to sweep (default: all); repeatable.")
@click.option(
    "--values", type=click.IntRange(min=2), default=7, show_default=True, help="Values per sweep."
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Seeds per value."
)
@root_option
@address_option
@cluster_option
def sweep_command(
    name: str,
    knobs: tuple[str, ...],
    losses: tuple[str, ...],
    values: int,
    seeds: int,
    root: Path | None,
    address: str | None,
    cluster: Path | None,
) -> int:
    """Request the trials of the sweep and run those that are missing."""
    if cluster is not None:
        from study.cluster.client import reject_local_options, submit_command

        reject_local_options(root=root, address=address)
        options = [part for param in knobs for part in ("--knob", param)]
        options += [part for loss in losses for part in ("--loss", loss)]
        options += ["--values", str(values), "--seeds", str(seeds)]
        return submit_command(cluster, name, ["sweep", name, *options])

    from study.cli.execute import run_and_print
    from study.config.plan import load_plan
    from study.directory import find_study
    from study.errors import StudyError, suggest_nearest_name
    from study.runner.points import find_incumbents
    from study.search.requests import make_sweep_jobs

    study_dir = find_study(name, root)
    plan = load_plan(study_dir.path)
    for loss in losses:
        if loss not in plan.losses:
            raise StudyError(
                f"study {name} has no loss {loss!r}; {suggest_nearest_name(loss, plan.losses)}"
            )
    jobs = make_sweep_jobs(
        plan,
        find_incumbents(study_dir, plan),
        params=knobs,
        losses=losses or plan.losses,
        values=values,
        seeds=seeds,
    )
    return run_and_print(study_dir, plan, requests=jobs, search=False, address=address)

"""`study sweep`: the figure every paper prints, measured."""

from __future__ import annotations

from pathlib import Path

import click

from study.commands.options import address_option, cluster_option, root_option


@click.command(
    help="One knob at a time around the published point and around the incumbent, several seeds."
)
@click.argument("name")
@click.option("--knob", "knobs", multiple=True, required=True, help="Knob to vary; repeatable.")
@click.option("--loss", "losses", multiple=True, help="Only these losses; repeatable.")
@click.option("--values", type=click.IntRange(min=2), default=7, show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@root_option
@address_option
@cluster_option
def command(
    name: str,
    knobs: tuple[str, ...],
    losses: tuple[str, ...],
    values: int,
    seeds: int,
    root: Path | None,
    address: str | None,
    cluster: Path | None,
) -> int:
    """Ask for the sweep's trainings and run those that are not there yet."""
    if cluster is not None:
        from study.cluster.attach import refuse_local, start

        refuse_local(root=root, address=address)
        options = [part for knob in knobs for part in ("--knob", knob)]
        options += [part for loss in losses for part in ("--loss", loss)]
        options += ["--values", str(values), "--seeds", str(seeds)]
        return start(cluster, name, ["sweep", name, *options])

    from study.errors import StudyError, nearest
    from study.home import find_study
    from study.plan import load_plan
    from study.requests import sweep_jobs
    from study.running import execute, incumbents

    home = find_study(name, root)
    plan = load_plan(home.directory)
    for loss in losses:
        if loss not in plan.losses:
            raise StudyError(f"study {name} has no loss {loss!r}; {nearest(loss, plan.losses)}")
    jobs = sweep_jobs(
        plan,
        incumbents(home, plan),
        knobs=knobs,
        losses=losses or plan.losses,
        values=values,
        seeds=seeds,
    )
    return execute(home, plan, requests=jobs, search=False, address=address)

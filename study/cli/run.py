"""`study run`: run a study from its file."""

from __future__ import annotations

from pathlib import Path

import click

from study.commands.options import (
    address_option,
    cluster_option,
    report_option,
    root_option,
    set_option,
)


@click.command(
    help="Run a study; safe to interrupt, `study resume` goes on. With --cluster it runs there, "
    "whether this machine is on or not; the same command again follows it, or goes on with it."
)
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@root_option
@address_option
@report_option
@cluster_option
@click.option("--detach", is_flag=True, help="With --cluster: start it and do not follow.")
def command(
    file: Path,
    overrides: tuple[str, ...],
    root: Path | None,
    address: str | None,
    report: bool,
    cluster: Path | None,
    detach: bool,
) -> int:
    """Check everything, make the study's directory, run."""
    if cluster is not None:
        from study.cluster.attach import refuse_local, run_file

        refuse_local(root=root, address=address)
        return run_file(cluster, file, overrides, report=report, detach=detach)
    from study.home import new_study
    from study.planning import build_plan
    from study.read_file import read_study_file
    from study.running import begin, execute

    plan = build_plan(read_study_file(file, overrides))
    home = new_study(plan.name, root)
    begin(home, plan, address=address)
    return execute(home, plan, address=address, report=report)

"""`study run`: run a study from its file."""

from __future__ import annotations

from pathlib import Path

import click

from study.cli.options import address_option, cluster_option, report_option, root_option, set_option


@click.command(
    help="Run a study. It is safe to interrupt; `study resume` continues it. With --cluster, it "
    "runs on the cluster, even while this machine is off; the same command again follows its "
    "output, or continues the study if it has stopped."
)
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@root_option
@address_option
@report_option
@cluster_option
@click.option(
    "--detach", is_flag=True, help="With --cluster: start the study without following its output."
)
def run_command(
    file: Path,
    overrides: tuple[str, ...],
    root: Path | None,
    address: str | None,
    report: bool,
    cluster: Path | None,
    detach: bool,
) -> int:
    """Check everything, create the study's directory and run."""
    if cluster is not None:
        from study.cluster.client import reject_local_options, submit_file

        reject_local_options(root=root, address=address)
        return submit_file(cluster, file, overrides, report=report, detach=detach)
    from study.cli.execute import check_and_create_study, run_and_print
    from study.config.loader import load_config
    from study.config.planner import build_plan
    from study.directory import new_study_directory

    plan = build_plan(load_config(file, overrides))
    study_dir = new_study_directory(plan.name, root)
    training = check_and_create_study(study_dir, plan, address=address)
    return run_and_print(study_dir, plan, training=training, address=address, report=report)

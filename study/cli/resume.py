"""`study resume`: continue a study after an interruption."""

from __future__ import annotations

from pathlib import Path

import click

from study.cli.options import address_option, cluster_option, report_option, root_option


@click.command(help="Continue a study after any interruption; finished trials are kept.")
@click.argument("name")
@root_option
@address_option
@report_option
@cluster_option
def resume_command(
    name: str, root: Path | None, address: str | None, report: bool, cluster: Path | None
) -> int:
    """Continue from the plan, the journal and the checkpoints in the study's directory."""
    if cluster is not None:
        from study.cluster.client import reject_local_options, submit_command

        reject_local_options(root=root, address=address)
        return submit_command(
            cluster, name, ["resume", name, "--report" if report else "--no-report"]
        )

    from study.cli.execute import run_and_print
    from study.config.plan import load_plan
    from study.directory import find_study

    study_dir = find_study(name, root)
    return run_and_print(study_dir, load_plan(study_dir.path), address=address, report=report)

"""`study extend`: add trials to the search of a finished study."""

from __future__ import annotations

from pathlib import Path

import click

from study.cli.options import address_option, cluster_option, root_option


@click.command(help="Add trials to a finished study; the Sobol sequence and the sampler continue.")
@click.argument("name")
@click.option("--trials", type=click.IntRange(min=1), required=True, help="Points to add per loss.")
@root_option
@address_option
@cluster_option
def extend_command(
    name: str, trials: int, root: Path | None, address: str | None, cluster: Path | None
) -> int:
    """Add a stage to the plan and run it."""
    if cluster is not None:
        from study.cluster.client import reject_local_options, submit_command

        reject_local_options(root=root, address=address)
        return submit_command(cluster, name, ["extend", name, "--trials", str(trials)])

    from study.cli.execute import run_and_print
    from study.config.plan import load_plan, save_plan
    from study.directory import find_study
    from study.errors import StudyError
    from study.search.job_scheduler import JobScheduler
    from study.search.journal import StudyJournal

    study_dir = find_study(name, root)
    plan = load_plan(study_dir.path)
    with study_dir.hold_lock():
        if not JobScheduler(plan, StudyJournal(study_dir.path, plan.spaces)).is_finished():
            raise StudyError(f"study {name} is not finished; first run: study resume {name}")
        plan = plan.with_extra_stage(trials)
        save_plan(plan, study_dir.path)
    return run_and_print(study_dir, plan, address=address)

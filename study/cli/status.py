"""`study status`: show the progress of a study, or of all studies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.cli.options import cluster_option, json_option, print_json, root_option
from study.errors import StudyError

if TYPE_CHECKING:
    from study.directory import StudyDirectory


@click.command(help="Show the progress of a study, or of all studies; works while they run.")
@click.argument("name", required=False)
@json_option
@root_option
@cluster_option
@click.option(
    "--follow", is_flag=True, help="With --cluster: follow the output until the study ends."
)
def status_command(
    name: str | None, as_json: bool, root: Path | None, cluster: Path | None, follow: bool
) -> int:
    """Print the status of one study, or of all studies without a name."""
    if cluster is not None:
        return _show_cluster_status(cluster, name, as_json=as_json, root=root, follow=follow)
    if follow:
        raise StudyError("--follow is for studies on a cluster and needs --cluster")
    from study.directory import find_study, list_study_names
    from study.utils.paths import studies_root

    if name:
        reports = [_collect_status(find_study(name, root))]
    else:
        reports = [_collect_status_or_error(n, root) for n in list_study_names(root)]
    if as_json:
        print_json(reports[0] if name else reports)
        return 0
    if not reports:
        click.echo(f"no studies in {studies_root(root)}")
    for report in reports:
        _print_status(report)
    return 0


def _show_cluster_status(
    cluster: Path, name: str | None, *, as_json: bool, root: Path | None, follow: bool
) -> int:
    from study.cluster import client

    client.reject_local_options(root=root)
    if not follow:
        arguments = ["status", *([name] if name else []), *(["--json"] if as_json else [])]
        return client.run_remote_command(cluster, arguments)
    if name is None:
        raise StudyError("--follow needs the name of a study")
    return client.follow_output(cluster, name)


def _collect_status_or_error(name: str, root: Path | None) -> dict[str, Any]:
    """Return the status, or the error of a damaged study, so that the others are still shown."""
    from study.directory import find_study

    try:
        return _collect_status(find_study(name, root))
    except StudyError as error:
        return {"study": name, "state": "damaged", "error": str(error)}


def _collect_status(study_dir: StudyDirectory) -> dict[str, Any]:
    from dataclasses import asdict

    from study.config.plan import load_plan
    from study.search.job_scheduler import JobScheduler
    from study.search.journal import StudyJournal

    plan = load_plan(study_dir.path)
    scheduler = JobScheduler(plan, StudyJournal(study_dir.path, plan.spaces))
    running = study_dir.is_running()
    state = "running" if running else "finished" if scheduler.is_finished() else "stopped"
    return {
        "study": plan.name,
        "state": state,
        "directory": str(study_dir.path),
        "objective": plan.file.protocol.objective,
        "losses": [asdict(p) for p in scheduler.get_progress()],
    }


def _print_status(report: dict[str, Any]) -> None:
    from study.utils.format import format_score

    if "error" in report:
        click.echo(f"{report['study']}: {report['state']}  ({report['error']})")
        return
    click.echo(f"{report['study']}: {report['state']}  ({report['directory']})")
    width = max(len(p["loss"]) for p in report["losses"])
    for p in report["losses"]:
        counts = ", ".join(f"{p[k]} {k}" for k in ("stopped", "diverged", "failed") if p[k])
        best = f"best {report['objective']} {format_score(p['best'])}"
        trial = f" ({p['best_trial']})" if p["best_trial"] else ""
        tail = f"; {counts}" if counts else ""
        click.echo(
            f"  {p['loss']:<{width}}  {p['ended']}/{p['planned']} trials, {best}{trial}{tail}"
        )
    if report["state"] == "stopped":
        click.echo(f"continue with: study resume {report['study']}")

"""`study status`: how far a study is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.commands.options import cluster_option, json_option, print_json, root_option
from study.errors import StudyError

if TYPE_CHECKING:
    from study.home import StudyHome


@click.command(help="How far a study is, from its record; works while it runs.")
@click.argument("name", required=False)
@json_option
@root_option
@cluster_option
@click.option("--follow", is_flag=True, help="With --cluster: its output until it ends.")
def command(
    name: str | None, as_json: bool, root: Path | None, cluster: Path | None, follow: bool
) -> int:
    """Without a name: all studies."""
    if cluster is not None:
        return _on_cluster(cluster, name, as_json=as_json, root=root, follow=follow)
    if follow:
        raise StudyError("--follow is for studies on a cluster; name it with --cluster")
    from study.home import find_study, studies_root, study_names

    if name:
        reports = [_report(find_study(name, root))]
    else:
        reports = [_report_or_damage(known, root) for known in study_names(root)]
    if as_json:
        print_json(reports[0] if name else reports)
        return 0
    if not reports:
        click.echo(f"no studies in {studies_root(root)}")
    for report in reports:
        _print(report)
    return 0


def _on_cluster(
    cluster: Path, name: str | None, *, as_json: bool, root: Path | None, follow: bool
) -> int:
    from study.cluster import attach

    attach.refuse_local(root=root)
    if not follow:
        words = ["status", *([name] if name else []), *(["--json"] if as_json else [])]
        return attach.show(cluster, words)
    if name is None:
        raise StudyError("name the study to follow")
    return attach.follow(cluster, name)


def _report_or_damage(name: str, root: Path | None) -> dict[str, Any]:
    """One damaged study does not hide the others."""
    from study.home import find_study

    try:
        return _report(find_study(name, root))
    except StudyError as error:
        return {"study": name, "state": "damaged", "error": str(error)}


def _report(home: StudyHome) -> dict[str, Any]:
    from dataclasses import asdict

    from study.plan import load_plan
    from study.tuning.ledger import Ledger
    from study.tuning.record import Record

    plan = load_plan(home.directory)
    ledger = Ledger(plan, Record(home.directory, plan.spaces))
    running = home.is_running()
    state = "running" if running else "finished" if ledger.is_finished() else "stopped"
    return {
        "study": plan.name,
        "state": state,
        "directory": str(home.directory),
        "objective": plan.file.protocol.objective,
        "losses": [asdict(p) for p in ledger.progress()],
    }


def _print(report: dict[str, Any]) -> None:
    from study.display import number

    if "error" in report:
        click.echo(f"{report['study']}: {report['state']}  ({report['error']})")
        return
    click.echo(f"{report['study']}: {report['state']}  ({report['directory']})")
    width = max(len(p["loss"]) for p in report["losses"])
    for p in report["losses"]:
        counts = ", ".join(f"{p[k]} {k}" for k in ("stopped", "diverged", "failed") if p[k])
        best = f"best {report['objective']} {number(p['best'])}"
        trial = f" ({p['best_trial']})" if p["best_trial"] else ""
        tail = f"; {counts}" if counts else ""
        click.echo(
            f"  {p['loss']:<{width}}  {p['ended']}/{p['planned']} trials, {best}{trial}{tail}"
        )
    if report["state"] == "stopped":
        click.echo(f"go on with: study resume {report['study']}")

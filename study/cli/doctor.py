"""`study doctor`: can this machine run studies?"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from study.cluster.places import TRACKING_VARIABLE
from study.folders import CACHE_VARIABLE, cache_dir

PACKAGES = ("torch", "torchvision", "ray", "optuna", "mlflow", "timm", "faiss-cpu", "pandas")
_MODULES = {"faiss-cpu": "faiss"}
_LOW_DISK = 2 * 2**30


@click.command(help="Check that this machine can run studies, and say what to mend.")
def command() -> int:
    """Versions, imports, CPUs and GPUs, disk space, cache; exit code 1 when something is wrong."""
    wrong: list[str] = []
    click.echo(f"python      {platform.python_version()} on {platform.platform()}")
    for package in PACKAGES:
        click.echo(f"{package:<11} {_state(package, wrong)}")
    click.echo(f"processors  {os.cpu_count()}")
    click.echo(f"GPUs        {_gpus()}")
    free = shutil.disk_usage(Path.cwd()).free
    click.echo(f"free disk   {free / 2**30:.1f} GiB here")
    click.echo(f"cache       {_cache(cache_dir())}")
    if free < _LOW_DISK:
        wrong.append("less than 2 GiB of disk are free here")
    if uri := os.environ.get(TRACKING_VARIABLE):
        click.echo(f"tracking    {_tracking(uri, wrong)}")
    for problem in wrong:
        click.echo(f"problem: {problem}", err=True)
    click.echo("ready" if not wrong else f"{len(wrong)} problem(s)")
    return 1 if wrong else 0


def _state(package: str, wrong: list[str]) -> str:
    try:
        number = version(package)
    except PackageNotFoundError:
        wrong.append(f"{package} is not installed; run: pip install -c constraints.txt .")
        return "missing"
    try:
        if package in ("torchvision", "timm"):
            from trainables.backbone import backbone_names

            backbone_names()
        else:
            importlib.import_module(_MODULES.get(package, package))
    except Exception as error:
        wrong.append(f"{package} {number} does not import: {error}")
        return f"{number} (does not import)"
    return number


def _cache(place: Path) -> str:
    """Where decoded data are, and how much of the disk they take."""
    entries, size = 0, 0
    for folder, folders, files in os.walk(place):
        entries += len(folders) if Path(folder) == place else 0
        for name in files:
            with contextlib.suppress(OSError):  # a running study may just have removed it
                size += (Path(folder) / name).stat().st_blocks * 512
    return f"{size / 2**20:,.0f} MiB in {entries:,} entries at {place} ({CACHE_VARIABLE})"


def _tracking(uri: str, wrong: list[str]) -> str:
    """Whether the store that studies on this machine use answers."""
    from study.errors import StudyError
    from study.tracking.probe import check_store
    from study.tracking.redaction import redact

    try:
        problem = check_store(uri)
    except StudyError as error:
        problem = str(error)
    if problem:
        wrong.append(problem)
    return redact(uri) + (" (does not answer)" if problem else "")


def _gpus() -> str:
    try:
        import torch
    except Exception:
        return "unknown"
    if not torch.cuda.is_available():
        return "none (trials run on processors)"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{len(names)}: {', '.join(sorted(set(names)))}"

"""`study doctor`: check that this machine can run studies."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from study.cluster.constants import TRACKING_VARIABLE
from study.utils.format import count_noun
from study.utils.paths import CACHE_DIR_VARIABLE, cache_dir

REQUIRED_PACKAGES = (
    "torch",
    "torchvision",
    "ray",
    "optuna",
    "mlflow",
    "timm",
    "faiss-cpu",
    "pandas",
)
_IMPORT_NAMES = {"faiss-cpu": "faiss"}
_MIN_FREE_DISK_GIB = 2


@click.command(help="Check that this machine can run studies, and print what to fix.")
@click.option(
    "--gpu",
    is_flag=True,
    help="Also compare the GPUs with the CPU and measure their training speed (a few minutes).",
)
def doctor_command(gpu: bool) -> int:
    """Check versions, imports, CPUs, GPUs, disk and cache; the exit code is 1 if a check fails."""
    problems: list[str] = []
    click.echo(f"python      {platform.python_version()} on {platform.platform()}")
    for package in REQUIRED_PACKAGES:
        click.echo(f"{package:<11} {_check_package(package, problems)}")
    click.echo(f"CPUs        {os.cpu_count()}")
    click.echo(f"GPUs        {_describe_gpus()}")
    free = shutil.disk_usage(Path.cwd()).free
    click.echo(f"free disk   {free / 2**30:.1f} GiB here")
    click.echo(f"cache       {_describe_cache(cache_dir())}")
    if free < _MIN_FREE_DISK_GIB * 2**30:
        problems.append(f"less than {_MIN_FREE_DISK_GIB} GiB of disk space is free here")
    if uri := os.environ.get(TRACKING_VARIABLE):
        click.echo(f"tracking    {_check_tracking_store(uri, problems)}")
    if gpu:
        from study.runner.device_check import check_gpus

        problems += check_gpus(click.echo)
    for problem in problems:
        click.echo(f"problem: {problem}", err=True)
    click.echo(count_noun(len(problems), "problem") if problems else "ready")
    return 1 if problems else 0


def _check_package(package: str, problems: list[str]) -> str:
    """Return the version of a package; append to `problems` if it cannot be imported."""
    try:
        number = version(package)
    except PackageNotFoundError:
        problems.append(f"{package} is not installed; run: pip install -c constraints.txt .")
        return "missing"
    try:
        if package in ("torchvision", "timm"):
            from trainables.models.backbone import list_backbone_names

            list_backbone_names()
        else:
            importlib.import_module(_IMPORT_NAMES.get(package, package))
    except Exception as error:
        problems.append(f"{package} {number} cannot be imported: {error}")
        return f"{number} (cannot be imported)"
    return number


def _describe_cache(directory: Path) -> str:
    """Return the location and size of the decoded data."""
    entries, size = 0, 0
    for folder, folders, files in os.walk(directory):
        entries += len(folders) if Path(folder) == directory else 0
        for name in files:
            with contextlib.suppress(OSError):  # a running study may remove it meanwhile
                size += (Path(folder) / name).stat().st_blocks * 512
    return f"{size / 2**20:,.0f} MiB in {entries:,} entries at {directory} ({CACHE_DIR_VARIABLE})"


def _check_tracking_store(uri: str, problems: list[str]) -> str:
    """Return the URI of the default store; append to `problems` if it does not answer."""
    from study.errors import StudyError
    from study.tracking.health import check_store
    from study.utils.redaction import redact

    try:
        problem = check_store(uri)
    except StudyError as error:
        problem = str(error)
    if problem:
        problems.append(problem)
    return redact(uri) + (" (does not answer)" if problem else "")


def _describe_gpus() -> str:
    try:
        import torch
    except Exception:
        return "unknown"
    if not torch.cuda.is_available():
        return "none (trials run on CPUs)"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{len(names)}: {', '.join(sorted(set(names)))}"

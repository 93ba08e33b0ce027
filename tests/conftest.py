"""Fixtures of all tests, and the distribution of tests over worker processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from study.directory import StudyDirectory

# Two test processes and the processes of their trials share two cores, so each has one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# By default Ray gives trials a lower priority, so other tests would delay them.
os.environ.setdefault("RAY_worker_niceness", "0")

REPOSITORY = Path(__file__).resolve().parents[1]
MARKER_BY_FIXTURE = {
    "mlflow_server": "server",
    "s3_server": "server",
    "server": "server",
    "shared_ray": "ray",
}


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, start the slowest group first and split tests last.

    Files with the same `xdist_group` run on one worker, because they share an expensive set-up or
    would compete for the cores. Tests marked `split` share no set-up, so any worker may run them.
    A test whose fixture starts Ray or a server has the marker for it.
    """
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKER_BY_FIXTURE:
                item.add_marker(MARKER_BY_FIXTURE[fixture])
        if item.get_closest_marker("xdist_group") is None and not _is_split(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
    items.sort(key=lambda item: (_get_group(item) != "ray", _is_split(item)))


def _is_split(item: pytest.Item) -> bool:
    return item.get_closest_marker("split") is not None


def _get_group(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("xdist_group")
    return mark.args[0] if mark else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the differences between several ranks and one process, if this run measured them."""
    cache = getattr(config, "cache", None)  # None with `-p no:cacheprovider`
    table = Path(cache.mkdir("exactness")) / "table.txt" if cache else Path("none")
    if table.exists():
        terminalreporter.section("several ranks against one process")
        terminalreporter.write(table.read_text(encoding="utf-8"))
        table.unlink()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the directory of real data outside the repository; skip the test without it."""
    named = os.environ.get("DML_STUDY_DATA")
    candidates = (
        [Path(named)]
        if named
        else [
            REPOSITORY.parent / "shared" / "data",
            REPOSITORY.parent.parent / "shared" / "data",
        ]
    )
    for folder in candidates:
        if (folder / "cub200_lite0.npz").is_file():
            return folder
    pytest.skip("no real data: set DML_STUDY_DATA to a folder with cub200_lite0.npz")


@pytest.fixture(scope="session", autouse=True)
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Set one data cache for all test processes, separate from the user's, and return it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ["DML_STUDY_CACHE"] = str(folder / "cache")
    return folder / "cache"


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[None]:
    """Start one local Ray for all tests that run trials in this process."""
    import logging

    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def real_study(
    tmp_path_factory: pytest.TempPathFactory, shared_ray: None, data_cache: Path
) -> StudyDirectory:
    """Run a study with search, sweep, confirmation and report; tests must not add trials to it."""
    from study.config.plan import load_plan
    from study.runner.points import find_incumbents
    from study.runner.run import RunOptions, run
    from study.search.requests import make_confirm_jobs, make_sweep_jobs
    from tests.support.running_studies import create_study

    study_dir = create_study(tmp_path_factory.mktemp("real"))
    plan = load_plan(study_dir.path)
    assert run(study_dir, plan, options=RunOptions(report=False)).is_finished
    best = find_incumbents(study_dir, plan)
    swept = make_sweep_jobs(
        plan, best, params=["alpha"], losses=["proxy_anchor"], values=3, seeds=1
    )
    summary = run(study_dir, plan, requests=[*swept, *make_confirm_jobs(plan, best)], search=False)
    assert summary.is_finished
    assert summary.is_tracked
    return study_dir


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start a PostgreSQL server of Debian's packages and yield its URI, with user and password."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not binaries:
        reason = "no PostgreSQL server: apt-get install postgresql"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from study.tracking.ui_server import find_free_port

    tools = binaries[-1].parent
    as_owner = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="dml-postgres-"))
    data, password, port = folder / "data", folder / "password", find_free_port()
    password.write_text("s3cret-word", encoding="utf-8")
    if as_owner:
        shutil.chown(folder, "postgres")
        shutil.chown(password, "postgres")
    setup = ["--username=ada", f"--pwfile={password}", "--auth=scram-sha-256", "--encoding=UTF8"]
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    control = [*as_owner, str(tools / "pg_ctl"), "-D", str(data), "-w"]
    try:
        _run_command([*as_owner, str(tools / "initdb"), "-D", str(data), *setup])
        _run_command([*control, "-o", options, "-l", str(folder / "log"), "start"])
        try:
            yield f"postgresql://ada:s3cret-word@127.0.0.1:{port}/postgres"
        finally:
            _run_command([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_command(command: list[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr

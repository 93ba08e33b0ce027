"""Fixtures that every part of the suite may use."""

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
    from study.home import StudyHome

# Two test processes share two cores, and trials have processes of their own: one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray lets trials wait for everything else; here everything else is other tests, which never end.
os.environ.setdefault("RAY_worker_niceness", "0")

REPOSITORY = Path(__file__).resolve().parents[1]


FAULTS = {
    "hosts": (
        "test_ray_up.py",
        "test_rank_trials.py",
        "test_storage.py",
        "test_autoscaling.py",
    ),
    "processes": ("test_faults.py", "test_chaos.py"),
    "trials": ("test_struck.py",),
}
"""Files whose tests start whole studies and kill their processes, hosts and disks: `make faults`.
Those of a group run one after the other, or the cores would be busy with starting processes."""

REAL = (
    "test_run.py",
    "test_real_studies.py",
    "test_importing.py",
    "test_rank_group.py",
    "test_mlflow_ui.py",
)
"""Files whose tests run trials on Ray or look at them in a browser; one after the other, too."""

SHARED = {
    "demo": ("test_analyses.py", "test_record.py"),
    "ranks": ("test_ranks_are_exact.py", "test_shards.py", "test_world.py"),
}
"""Files whose tests share what is dear to set up: one worker takes them all."""

SPLIT = ("losses", "data", "search_spaces")
"""Folders whose tests share nothing that is dear to set up: any worker may take any of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest starts first, and what any worker may take comes last."""
    faults = {file for files in FAULTS.values() for file in files}
    for item in items:
        if item.path.name in faults:
            item.add_marker(pytest.mark.faults)
    items.sort(key=lambda item: (item.path.name not in REAL, item.path.parent.name in SPLIT))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out so that set-up is paid once and few processes run side by side."""
    from xdist.scheduler import LoadScopeScheduling

    groups = {file: group for group, files in (FAULTS | SHARED).items() for file in files}
    groups |= dict.fromkeys(REAL, "real")

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = Path(nodeid.split("::")[0])
            return nodeid if file.parent.name in SPLIT else groups.get(file.name, str(file))

    return ByGroup(config, log)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print how far ranks differ from one process, if this run measured it."""
    table = Path(config.cache.mkdir("exactness")) / "table.txt"
    if table.exists():
        terminalreporter.section("several ranks against one process")
        terminalreporter.write(table.read_text(encoding="utf-8"))
        table.unlink()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Directory of real data, outside the repository; tests skip where there is none."""
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
    """One cache for all test processes, so that glyphs are drawn once; never the user's own."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ["DML_STUDY_CACHE"] = str(folder / "cache")
    return folder / "cache"


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[None]:
    """One local Ray for all tests that run trials in this process."""
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
) -> StudyHome:
    """A study on a real Ray: searched, swept, confirmed and reported; leave its trials alone."""
    from study.plan import load_plan
    from study.requests import confirm_jobs, sweep_jobs
    from study.running import incumbents
    from study.tuning.run import run
    from tests.study.driven import start

    home = start(tmp_path_factory.mktemp("real"))
    plan = load_plan(home.directory)
    assert run(home, plan, report=False).finished
    best = incumbents(home, plan)
    swept = sweep_jobs(plan, best, knobs=["alpha"], losses=["proxy_anchor"], values=3, seeds=1)
    summary = run(home, plan, requests=[*swept, *confirm_jobs(plan, best)], search=False)
    assert summary.finished
    assert summary.tracked
    return home


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A private PostgreSQL server from Debian's packages; gives a URI with a password in it."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not binaries:
        reason = "no PostgreSQL server: apt-get install postgresql"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from study.tracking.server import free_port

    tools = binaries[-1].parent
    as_owner = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="dml-postgres-"))
    data, word, port = folder / "data", folder / "word", free_port()
    word.write_text("s3cret-word", encoding="utf-8")
    if as_owner:
        shutil.chown(folder, "postgres")
        shutil.chown(word, "postgres")
    setup = ["--username=ada", f"--pwfile={word}", "--auth=scram-sha-256", "--encoding=UTF8"]
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    control = [*as_owner, str(tools / "pg_ctl"), "-D", str(data), "-w"]
    try:
        _run([*as_owner, str(tools / "initdb"), "-D", str(data), *setup])
        _run([*control, "-o", options, "-l", str(folder / "log"), "start"])
        try:
            yield f"postgresql://ada:s3cret-word@127.0.0.1:{port}/postgres"
        finally:
            _run([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr

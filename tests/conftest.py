"""Fixtures that every part of the suite may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Two test processes share two cores, and trials have processes of their own: one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

REPOSITORY = Path(__file__).resolve().parents[1]


FAULTS = {
    "hosts": (
        "test_ray_up.py",
        "test_rank_trials.py",
        "test_storage.py",
        "test_autoscaling.py",
    ),
    "processes": ("test_faults.py", "test_chaos.py"),
}
"""Files whose tests start whole studies and kill their processes, hosts and disks: `make faults`.
Those of a group run one after the other, or the cores would be busy with starting processes."""

REAL = ("test_run.py", "test_importing.py", "test_rank_group.py", "test_mlflow_ui.py")
"""Files whose tests run trials on Ray or look at them in a browser; one after the other, too."""

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

    groups = {file: group for group, files in FAULTS.items() for file in files}
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


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data cache for the whole session, so that glyphs are drawn once."""
    folder: Path = tmp_path_factory.mktemp("cache")
    os.environ["DML_STUDY_CACHE"] = str(folder)
    return folder


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

"""Fixtures that every part of the suite may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Two test processes share two cores, and trials have processes of their own: one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

REPOSITORY = Path(__file__).resolve().parents[1]


ONE_AT_A_TIME = ("ray", "cluster", "browser")
"""Marks of tests that start a Ray or a browser of their own: one worker runs them, in turn."""

SPLIT = ("losses", "data", "search_spaces")
"""Folders whose tests share nothing that is dear to set up: any worker may take any of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share the tests out among workers so that set-up is paid once and no one waits at the end."""

    def is_alone(item: pytest.Item) -> bool:
        return any(item.get_closest_marker(mark) for mark in ONE_AT_A_TIME)

    items.sort(key=lambda item: (not is_alone(item), item.path.parent.name in SPLIT))
    for item in items:
        if is_alone(item):
            item.add_marker(pytest.mark.xdist_group("alone"))
        elif item.path.parent.name not in SPLIT:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


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

"""Fixtures that every part of the suite may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


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

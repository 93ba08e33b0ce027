"""Fixtures that every part of the suite may use."""

from __future__ import annotations

import os
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

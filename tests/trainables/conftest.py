"""Fixtures of the trainables package's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trainables.rank_pool import RankPool


@pytest.fixture(scope="session")
def rank_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Four gloo ranks, started once."""
    pool = RankPool(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()

"""Functions with one BLAS thread."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from study.utils.threads import single_threaded

pytestmark = pytest.mark.split


def blas_threads() -> set[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}


def test_the_limit_holds_inside_of_the_function_only() -> None:
    @single_threaded
    def inside(number: int, *, other: str) -> tuple[set[int], int, str]:
        """Say something."""
        return blas_threads(), number, other

    with threadpool_limits(limits=3, user_api="blas"):
        before = blas_threads()
        assert inside(2, other="x") == ({1}, 2, "x")
        assert blas_threads() == before
    assert inside.__doc__ == "Say something."

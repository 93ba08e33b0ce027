"""The driver's memory does not grow with the number of epochs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.driver_memory import measure_bytes_per_epoch


@pytest.mark.slow
def test_memory_is_flat_in_the_number_of_epochs(tmp_path: Path) -> None:
    """With GP, which is shown corrected scores: all that any sampler needs is held."""
    assert measure_bytes_per_epoch(tmp_path, sampler="gp", epochs=250) < 4.0

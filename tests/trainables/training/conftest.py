"""Fixtures of the tests of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.trial_specs import CONV4, GLYPHS
from trainables.training.context import TrainingContext, open_context


@pytest.fixture(scope="session")
def glyphs_context(data_cache: Path) -> TrainingContext:
    """Glyphs with a conv4 that starts from random weights."""
    return open_context(GLYPHS, CONV4, cache_dir=data_cache)

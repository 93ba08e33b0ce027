"""A study with a faulty GPU, with real Ray, Tune and training and logical GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.runner.gpu_faults import MAX_GPU_FAULTS
from tests.support.faulty_gpu_study import FAULT_TEXT, run_in_process

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.xdist_group("faulty-gpu")]


def test_a_faulty_gpu_is_avoided_and_no_trial_fails(tmp_path: Path, data_cache: Path) -> None:
    results = run_in_process(tmp_path)
    assert results["finished"], results
    assert results["states"] == {"finished": 6}
    faults = [text for text in results["warnings"] if FAULT_TEXT in text]
    assert len(faults) == MAX_GPU_FAULTS, "after that no trial reaches the GPU"
    assert all("(GPU 0 on " in text for text in faults)
    assert "not used any more" in faults[-1]

"""Resource usage of a trial."""

from __future__ import annotations

import pytest
import torch

from tests.support.rank_pool import CPU
from trainables.distributed.world import SingleProcessWorld
from trainables.training.usage import UsageMonitor, reduce_usage, sampling_steps

pytestmark = pytest.mark.split


def test_gpu_usage_is_logged_and_a_driver_without_values_fails_no_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pynvml  # torch.cuda.utilization needs it

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    peak, busy = [9 * 2**20], iter([60, 80])
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda: peak.__setitem__(0, 3 * 2**20)
    )
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: peak[0])
    monkeypatch.setattr(torch.cuda, "utilization", lambda: next(busy))
    monitor = UsageMonitor()  # an earlier trial of this process used more
    monitor.sample_gpu()
    monitor.sample_gpu()
    usage = monitor.collect_usage()
    assert (usage["gpu_memory_mib"], usage["gpu_use_percent"]) == (3.0, 70.0)
    assert "gpu_use_percent" not in monitor.collect_usage()

    def raise_not_supported() -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(torch.cuda, "utilization", raise_not_supported)
    monitor.sample_gpu()
    usage = monitor.collect_usage()
    assert "gpu_use_percent" not in usage
    assert usage["gpu_memory_mib"] == 3.0


def test_the_gpu_is_sampled_evenly_including_the_last_step() -> None:
    assert sampling_steps(1) == {0}
    assert sampling_steps(10) == {1, 4, 6, 9}


def test_a_process_without_gpu_reports_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monitor = UsageMonitor()
    monitor.sample_gpu()
    usage = monitor.collect_usage()
    assert set(usage) == {"memory_mib", "node_memory_percent"}
    assert usage["memory_mib"] > 1
    assert 0 < usage["node_memory_percent"] <= 100
    assert reduce_usage(usage, SingleProcessWorld(CPU)) == usage


class TwoRanks(SingleProcessWorld):
    """A world whose second rank reports fixed values, the last of which are missing."""

    size = 2

    def all_gather(self, rows: torch.Tensor, total: int) -> torch.Tensor:
        other = torch.full_like(rows, torch.nan)
        other[0, :2] = torch.tensor([300.0, 20.0])
        return torch.cat([rows, other])


def test_ranks_report_the_maximum_of_memory_and_the_mean_of_utilisation() -> None:
    usage = {"memory_mib": 100.0, "node_memory_percent": 50.0, "gpu_use_percent": 80.0}
    expected = {"memory_mib": 300.0, "node_memory_percent": 50.0, "gpu_use_percent": 80.0}
    assert reduce_usage(usage, TwoRanks(CPU)) == expected

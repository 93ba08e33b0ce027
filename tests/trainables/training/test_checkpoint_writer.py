"""Checkpoint writer: snapshots, writes in a thread, their errors, and when one is due."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.pretend_device import count_device_work, register_pretend_device
from tests.support.slow_disk import SlowDisk
from trainables.training import checkpoint_writer
from trainables.training.checkpoint_writer import CheckpointWriter, copy_to_host
from trainables.training.checkpoints import load_checkpoint

pytestmark = pytest.mark.split


def test_a_snapshot_shares_no_memory_with_the_training() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    state: dict[str, Any] = {
        "replicas": [{"model": model.state_dict(), "optimizer": optimizer.state_dict()}]
    }
    snapshot = copy_to_host(state)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    moment = optimizer.state_dict()["state"][0]["exp_avg"].clone()
    for tensor in (*model.state_dict().values(), optimizer.state[layer.weight]["exp_avg"]):
        tensor.zero_()
    optimizer.param_groups[0]["lr"] = 0.5
    (copied,) = snapshot["replicas"]
    assert all(torch.equal(copied["model"][k], v) for k, v in before.items())
    assert torch.equal(copied["optimizer"]["state"][0]["exp_avg"], moment)
    assert copied["optimizer"]["param_groups"][0]["lr"] != 0.5
    assert copied["model"]._metadata == state["replicas"][0]["model"]._metadata


def test_tensors_of_a_device_are_copied_to_the_host() -> None:
    device = register_pretend_device()
    with count_device_work():
        state = {"model": {"weight": torch.arange(3.0).to(device)}}
        copied = copy_to_host(state)["model"]["weight"]
    assert copied.device.type == "cpu"
    assert copied.tolist() == [0.0, 1.0, 2.0]


def test_a_write_in_the_thread_is_the_state_at_its_start(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    weights = torch.ones(5)
    writer = CheckpointWriter(tmp_path, "t")
    writer.start({"epoch": 1, "weights": weights})
    slow_disk.wait_for_write()
    assert writer.is_writing
    weights.zero_()
    slow_disk.release()
    writer.wait()
    assert not writer.is_writing
    loaded = load_checkpoint(tmp_path, "t")
    assert loaded is not None
    assert loaded["weights"].tolist() == [1.0] * 5


@pytest.mark.parametrize("method", ["start", "write"])
def test_a_write_waits_for_the_one_before(tmp_path: Path, slow_disk: SlowDisk, method: str) -> None:
    """Otherwise an older checkpoint could replace a newer one."""
    writer = CheckpointWriter(tmp_path, "t")
    writer.start({"epoch": 1})
    slow_disk.wait_for_write()
    threading.Timer(0.2, slow_disk.release).start()
    getattr(writer, method)({"epoch": 2})
    assert slow_disk.written[0] == 1
    writer.wait()
    assert slow_disk.written == [1, 2]
    assert load_checkpoint(tmp_path, "t") == {"epoch": 2}


def test_an_error_of_the_disk_is_returned_once_with_its_epoch(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    slow_disk.error = OSError("no space left on device")
    writer = CheckpointWriter(tmp_path, "t")
    writer.start({"epoch": 7})
    assert writer.take_failure() is None, "the write is in flight"
    slow_disk.release()
    writer.wait()
    assert writer.take_failure() == (7, slow_disk.error)
    assert writer.take_failure() is None
    with pytest.raises(OSError, match="no space left"):
        writer.write({"epoch": 8})


def test_any_other_error_of_the_thread_is_raised(tmp_path: Path, slow_disk: SlowDisk) -> None:
    slow_disk.error = TypeError("cannot be pickled")
    slow_disk.release()
    writer = CheckpointWriter(tmp_path, "t")
    writer.start({"epoch": 7})
    writer.wait()
    with pytest.raises(TypeError, match="pickled"):
        writer.take_failure()


@pytest.mark.parametrize(
    ("write_seconds", "interval"), [(0.003, 0.3), (0.5, 50.0), (2.9, 290.0), (4.0, 300.0)]
)
def test_writes_take_a_hundredth_of_the_time_and_follow_within_minutes(
    monkeypatch: pytest.MonkeyPatch, write_seconds: float, interval: float
) -> None:
    now = [1000.0]

    def save(*_: Any) -> None:
        now[0] += write_seconds

    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", save)
    writer = CheckpointWriter("", "t", clock=lambda: now[0])
    assert writer.is_due, "the first epoch is saved"
    for _ in range(3):
        started = now[0]
        writer.start({"epoch": 1})
        writer.wait()
        now[0] = started + interval * 0.99
        assert not writer.is_due
        now[0] = started + interval * 1.01
        assert writer.is_due


def test_none_is_due_while_one_is_written(tmp_path: Path, slow_disk: SlowDisk) -> None:
    now = [0.0]
    writer = CheckpointWriter(tmp_path, "t", clock=lambda: now[0])
    writer.start({"epoch": 1})
    slow_disk.wait_for_write()
    now[0] = 1e6
    assert not writer.is_due
    slow_disk.release()
    writer.wait()
    now[0] = 2e6
    assert writer.is_due

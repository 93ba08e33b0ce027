"""Host checks: real trials on hosts with other data, weights, GPUs or disks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from study.runner.host_checks import HostChecks
from study.runner.preflight import open_data
from study.runner.warning_log import WarningLogDisplay
from tests.support.controllers import RecordingListener, open_controller
from tests.support.displays import RecordingDisplay
from tests.support.running_studies import write_features
from tests.support.scheduler_simulation import make_plan
from trainables.actors.worker import TrialWorker
from trainables.config import TrialSpec
from trainables.models.backbone import build_backbone
from trainables.training.checkpoints import checkpoint_path
from trainables.training.trial_trainer import TrialTrainer


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_trial_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real training whose checkpoints meet a disk that refuses, then takes them again."""
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(write_features(tmp_path))},
        training={"epochs": 5, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
        storage={"checkpoint_every": 1},
    )

    def run_epoch_and_wait(trainer: TrialTrainer) -> dict[str, Any]:
        """Train an epoch at least as long as the write beside it, that of the epoch before."""
        result = run_epoch(trainer)
        trainer.finish_checkpoint()
        return result

    run_epoch = TrialTrainer.run_epoch
    monkeypatch.setattr(TrialTrainer, "run_epoch", run_epoch_and_wait)
    display = RecordingDisplay()
    listener = RecordingListener()
    logged = WarningLogDisplay(display, tmp_path / "warnings.txt")
    controller = open_controller(plan, tmp_path, listener, display=logged)
    spec = controller.start_next_trial()
    assert spec is not None
    worker = TrialWorker()
    worker.assign_trial(TrialSpec.from_dict(spec))
    blocked = tmp_path / "checkpoints"
    blocked.write_text("not a folder")
    for epoch in range(1, 6):
        if epoch == 4:
            blocked.unlink()
        controller.handle_result(spec["trial"], worker.step())
        assert len(display.warnings) == (epoch > 1), "once, not every epoch"
        assert checkpoint_path(blocked, spec["trial"]).exists() == (epoch > 3)
    assert "checkpoint of epoch 1 was not written: FileExistsError" in display.warnings[0]
    assert display.warnings[0] in (tmp_path / "warnings.txt").read_text()
    assert listener.outcomes[spec["trial"]].state == "finished"


def test_a_host_with_other_data_is_named_once(tmp_path: Path) -> None:
    """A copy of the data is incomplete, so trials of that host train on fewer images."""
    display = RecordingDisplay()
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(write_features(tmp_path))},
        training={"epochs": 2, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
    )
    context = open_data(plan, cache_dir=tmp_path)
    known = context.dataset.fingerprint
    for here, warnings in ((known, 0), ("another", 1)):
        (tmp_path / here).mkdir()
        controller = open_controller(
            plan, tmp_path / here, RecordingListener(), display=display, fingerprint=here
        )
        spec = controller.start_next_trial()
        assert spec is not None
        worker = TrialWorker()
        worker.assign_trial(TrialSpec.from_dict({**spec, "checkpoint_dir": ""}))
        for _ in range(2):
            controller.handle_result(spec["trial"], {**worker.step(), "host": "gpu2"})
        assert len(display.warnings) == warnings, "once, not every epoch"
    (warning,) = display.warnings
    assert f"the data on gpu2 differ from the study's (fingerprint {known}, here" in warning


@pytest.mark.parametrize("gpus", [0, 0.5])
def test_a_host_whose_gpus_torch_does_not_see_is_named_once(
    tmp_path: Path, gpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that was given a GPU and trains on CPUs continues, with a warning."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    display = RecordingDisplay()
    plan = make_plan(
        losses=["triplet"],
        data={"name": "arrays", "path": str(write_features(tmp_path))},
        training={"epochs": 3, "batch_size": 32, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
        resources={"gpus_per_trial": gpus},
    )
    controller = open_controller(plan, tmp_path, RecordingListener(), display=display)
    spec = controller.start_next_trial()
    assert spec is not None
    worker = TrialWorker()
    worker.assign_trial(TrialSpec.from_dict(spec))
    for host in ("gpu1", "gpu1", "gpu2"):
        controller.handle_result(spec["trial"], {**worker.step(), "host": host})
    hosts = [text.partition(": trials were given a GPU")[0] for text in display.warnings]
    assert hosts == (["gpu1", "gpu2"] if gpus else [])


def test_a_host_with_other_weights_is_named_once(tmp_path: Path) -> None:
    """As when the weights file was replaced on one node only."""
    torch.manual_seed(0)
    state = build_backbone("conv4", in_channels=1, image_size=28).model.state_dict()
    torch.save(state, tmp_path / "w.pth")
    plan = make_plan(
        losses=["triplet"],
        data={"name": "glyphs", "classes": 80, "samples": 4},
        backbone={"pretrained": str(tmp_path / "w.pth")},
        training={"epochs": 2, "batch_size": 16, "embedding_dim": 8},
        search={"trials": 1, "repeats": 1, "stop_early": False},
    )
    context = open_data(plan, cache_dir=tmp_path)
    display = RecordingDisplay()
    for expected in (0, 1):
        directory = tmp_path / str(expected)
        directory.mkdir()
        controller = open_controller(
            plan,
            directory,
            display=display,
            fingerprint=context.dataset.fingerprint,
            weights=context.initial_weights_fingerprint,
        )
        spec = controller.start_next_trial()
        assert spec is not None
        worker = TrialWorker()
        worker.assign_trial(TrialSpec.from_dict({**spec, "checkpoint_dir": ""}))
        for _ in range(2):
            controller.handle_result(spec["trial"], {**worker.step(), "host": "gpu2"})
        assert len(display.warnings) == expected, "once, not every epoch"
        torch.save({k: v + 1 for k, v in state.items()}, tmp_path / "w.pth")
    assert "the backbone weights on gpu2 differ from the study's" in display.warnings[0]


def test_trials_that_differ_in_precision_or_gpu_are_named_once() -> None:
    display = RecordingDisplay()
    checks = HostChecks(display)
    for host, gpu, precision in (
        ("a", "", ""),
        ("a", "NVIDIA A100", "bf16"),
        ("b", "NVIDIA A100", "bf16"),
        ("c", "Tesla T4", "fp32"),
        ("d", "Tesla T4", "fp32"),
    ):
        result = {"host": host, "gpu": gpu, "precision": precision}
        checks.check_result("circle-0000", result)
    assert len(display.warnings) == 2
    assert "fp32 on c, bf16 before" in display.warnings[0]
    assert "Tesla T4 on c, NVIDIA A100 before" in display.warnings[1]

"""Device check of `study doctor --gpu`, on the pretend device and on CPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from study.runner import device_check
from study.runner.device_check import (
    check_device,
    check_gpus,
    check_ranks,
    list_checked_losses,
    published_params,
)
from tests.support.pretend_device import count_device_work, register_pretend_device
from trainables.device_checks.numerics import LossDifference
from trainables.device_checks.rank_processes import RankProcessError
from trainables.device_checks.training_speed import SpeedCase, TrainingSpeed
from trainables.losses import LOSSES

DEVICE, CPU = register_pretend_device(), torch.device("cpu")
SMALL = SpeedCase(backbone="conv4", image_size=28, batch_size=16, steps=1, repeats=1)


def test_a_correct_device_has_no_problems() -> None:
    lines: list[str] = []
    with count_device_work():
        assert check_device(DEVICE, lines.append, SMALL) == []
    assert [line.split()[0] for line in lines] == [
        "device",
        "losses",
        "images",
        "scores",
        "training",
    ]
    n = len(LOSSES) + sum(info.family == "proxy" for info in LOSSES.values())
    assert f"{n} of {n} equal the CPU's" in lines[1]
    assert "conv4 at 28 px, batch 16" in lines[-1]


def test_differences_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(device: torch.device, name: str, params: Any) -> LossDifference:
        return LossDifference(name, 1e-3 if name == "triplet" else 0.0, 0.0, 0.0)

    monkeypatch.setattr(device_check, "compare_loss", compare)
    monkeypatch.setattr(device_check, "compare_image_transforms", lambda device: float("nan"))
    monkeypatch.setattr(device_check, "compare_scores", lambda device: 0.1)
    lines: list[str] = []
    problems = check_device(CPU, lines.append, SMALL)
    assert len(problems) == 3
    assert problems[0].startswith("triplet differs from the CPU by 1.0e-03 in float64")
    assert "grey levels" in problems[1]
    assert "scores" in problems[2]
    assert "25 of 26" in lines[1]


def test_a_batch_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(case: SpeedCase, device: torch.device) -> TrainingSpeed:
        if case.batch_size > 30:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return TrainingSpeed(1234.0, 3 * 2**30)

    monkeypatch.setattr(device_check, "measure_device_speed", measure)
    text = device_check._describe_speed(DEVICE, SpeedCase())
    assert text == "resnet50 at 224 px, batch 30: 1,234 images/s, 3.0 GiB at the peak"


@pytest.mark.slow
def test_two_ranks_are_compared_with_one() -> None:
    lines: list[str] = []
    assert check_ranks(CPU, 2, lines.append) == []
    assert lines[0].startswith("ranks       2 over gloo: gradients differ from one by ")


def test_ranks_that_differ_or_fail_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    assert check_ranks(CPU, 1, lines.append) == []
    assert "two GPUs" in lines[0]
    monkeypatch.setattr(device_check, "compare_ranks", lambda *_: {"triplet": 0.5, "circle": 0.0})
    (problem,) = check_ranks(CPU, 2, lines.append)
    assert "triplet" in problem

    def fail(*_: Any) -> dict[str, float]:
        raise RankProcessError("rank 1 died")

    monkeypatch.setattr(device_check, "compare_ranks", fail)
    (problem,) = check_ranks(CPU, 2, lines.append)
    assert problem == "2 ranks over gloo cannot train: rank 1 died"


def test_every_loss_has_a_published_point() -> None:
    names = list_checked_losses()
    assert set(LOSSES) < set(names)
    assert all(published_params(name) for name in names if name != "softmax")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_machine_without_gpus_skips_with_the_reason() -> None:
    lines: list[str] = []
    assert check_gpus(lines.append) == []
    assert lines[0].startswith("GPU check   skipped: no CUDA device (torch ")

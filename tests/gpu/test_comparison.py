"""The comparison of `make gpu` runs on any device; here on the CPU, with a small network."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.gpu import comparison
from tests.gpu.comparison import (
    NamedMeasurement,
    format_row,
    list_measurements,
    list_own_settings,
    list_rank_measurements,
    make_result_name,
    measure_own_ranks,
    run_comparison,
    run_measurement,
)
from tests.gpu.plain_loop import (
    TEMPERATURE,
    PlainOptions,
    TransformedImages,
    compute_norm_softmax,
    count_workers,
    measure_plain_loop,
)
from trainables.device_checks.rank_processes import RankProcessError
from trainables.device_checks.training_speed import SpeedCase, TrainingSpeed
from trainables.distributed.world import SingleProcessWorld
from trainables.losses import build_loss

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
CASE = SpeedCase(backbone="resnet18", image_size=32, batch_size=8, steps=1, repeats=1)


def test_the_peers_loss_is_the_projects() -> None:
    loss = build_loss("norm_softmax", n_classes=6, dim=5, temperature=TEMPERATURE)
    x, labels = torch.randn(8, 5), torch.arange(8) % 6
    proxies = loss.get_parameter("proxies").detach()
    expected = float(loss(x, labels).detach())
    assert float(compute_norm_softmax(x, proxies, labels)) == pytest.approx(expected, rel=1e-5)


def test_the_peers_images_are_cropped_and_normalised() -> None:
    image, label = TransformedImages(CASE)[5]
    assert image.shape == (3, 32, 32)
    assert image.dtype == torch.float32
    assert float(image.min()) < 0 < float(image.max())
    assert label == 1


@pytest.mark.parametrize(
    "options",
    [PlainOptions(), PlainOptions("fp32", workers=1), PlainOptions(is_ready=True)],
    ids=str,
)
def test_the_plain_loop_runs(options: PlainOptions) -> None:
    speed = measure_plain_loop(CASE, CPU, options)
    assert speed.images_per_second > 0
    assert speed.peak_memory_bytes is None


def test_all_rows_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "count_workers", lambda n_gpus=1: 0)
    lines: list[str] = []
    rows = run_comparison(CASE, CPU, echo=lines.append)
    assert [row["name"] for row in rows] == [
        *(f"study, {precision}" for precision in list_own_settings()),
        "plain, bf16",
        "plain, bf16, no data",
        "plain, fp32",
        "plain, fp32, no data",
    ]
    assert all(row["images_per_second"] > 0 for row in rows), rows
    assert lines == [format_row(row) for row in rows]


def test_rows_of_ranks_run_over_gloo() -> None:
    """The project's own ranks run in tests/trainables/device_checks."""
    own, plain = list_rank_measurements(CASE, 2, "cpu", workers=1)
    assert (own.batch_size, plain.batch_size) == (16, 16)
    assert "2 ranks" in own.name
    assert measure_own_ranks(SingleProcessWorld(CPU), CASE).images_per_second > 0
    row = run_measurement(plain, CPU)
    assert row["images_per_second"] > 0, row


def test_failures_are_rows() -> None:
    def fail_with(error: Exception) -> TrainingSpeed:
        raise error

    full = NamedMeasurement("a", 120, lambda: fail_with(torch.OutOfMemoryError("CUDA")))
    assert run_measurement(full, CPU)["error"] == "out of memory"
    lost = NamedMeasurement("a", 120, lambda: fail_with(RankProcessError("rank 0\nlast line")))
    row = run_measurement(lost, CPU)
    assert row["error"] == "last line"
    assert format_row({"backbone": "resnet50", **row}).endswith("last line")


def test_names_and_workers() -> None:
    assert make_result_name("NVIDIA A100-SXM4-80GB") == "gpu-nvidia-a100-sxm4-80gb"
    assert 1 <= count_workers(64) <= count_workers() <= 16
    names = [m.name for m in list_measurements(replace(CASE, batch_size=4), CPU, workers=0)]
    assert len(set(names)) == len(names)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_make_gpu_skips_with_the_reason() -> None:
    root = Path(__file__).resolve().parents[2]
    program = subprocess.run(
        [sys.executable, "-m", "tests.gpu"], cwd=root, capture_output=True, text=True, check=True
    )
    assert program.stdout.startswith("skipped: no CUDA device")
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", "-m", "gpu", "-n", "0", "-q"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no CUDA device" in tests.stdout
    assert " passed" not in tests.stdout

"""Throughput and memory of this project beside a plain PyTorch loop, in the same run."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.gpu.plain_loop import (
    PlainOptions,
    count_workers,
    measure_plain_loop,
    measure_plain_ranks,
)
from trainables.device_checks.rank_processes import RankProcessError, run_on_ranks
from trainables.device_checks.training_speed import (
    SpeedCase,
    TrainingSpeed,
    measure_device_speed,
    measure_training_speed,
)

BACKBONES = ("resnet50", "vit_small_patch16_224")
BATCH_SIZE = 120
BUSY_SAMPLE_SECONDS = 0.2

Row = dict[str, Any]
Measurement = Callable[[], TrainingSpeed]


@dataclass(frozen=True)
class NamedMeasurement:
    """A row of the table that has yet to be measured."""

    name: str
    batch_size: int
    measure: Measurement


def list_own_settings() -> dict[str, dict[str, Any]]:
    """Return training settings by precision."""
    return {name: {"precision": name} for name in ("bf16", "fp32")}


def list_measurements(
    case: SpeedCase, device: torch.device, *, workers: int
) -> list[NamedMeasurement]:
    """Return the rows of a single GPU."""

    def measure_own(settings: dict[str, Any]) -> Measurement:
        return lambda: measure_device_speed(replace(case, settings=settings), device)

    def measure_plain(options: PlainOptions) -> Measurement:
        return lambda: measure_plain_loop(case, device, options)

    rows = [
        NamedMeasurement(f"study, {precision}", case.batch_size, measure_own(settings))
        for precision, settings in list_own_settings().items()
    ]
    for precision in ("bf16", "fp32"):
        loop = PlainOptions(precision, workers)
        ready = replace(loop, is_ready=True, workers=0)
        rows += [
            NamedMeasurement(f"plain, {precision}", case.batch_size, measure_plain(loop)),
            NamedMeasurement(f"plain, {precision}, no data", case.batch_size, measure_plain(ready)),
        ]
    return rows


def list_rank_measurements(
    case: SpeedCase, n_ranks: int, device_type: str, *, workers: int
) -> list[NamedMeasurement]:
    """Return the rows of several GPUs, with the batch of one on each."""
    case = replace(case, batch_size=n_ranks * case.batch_size)
    precision, settings = next(iter(list_own_settings().items()))
    own = replace(case, settings=settings)
    options = PlainOptions("bf16", workers)
    return [
        NamedMeasurement(
            f"study, {precision}, {n_ranks} ranks",
            case.batch_size,
            lambda: run_on_ranks(measure_own_ranks, n_ranks, device_type, own)[0],
        ),
        NamedMeasurement(
            f"plain, bf16, {n_ranks} ranks",
            case.batch_size,
            lambda: run_on_ranks(measure_plain_ranks, n_ranks, device_type, case, options)[0],
        ),
    ]


def measure_own_ranks(world: Any, case: SpeedCase) -> TrainingSpeed:
    """Measure this project on a rank."""
    return measure_training_speed(case, world)


def run_measurement(measurement: NamedMeasurement, device: torch.device) -> Row:
    """Return a row of the table; memory that does not suffice is a result."""
    row: Row = {"name": measurement.name, "batch_size": measurement.batch_size}
    with sample_busy_percent(device) as samples:
        try:
            speed = measurement.measure()
        except torch.OutOfMemoryError:
            return {**row, "error": "out of memory"}
        except RankProcessError as error:
            return {**row, "error": str(error).strip().splitlines()[-1]}
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()
    row["images_per_second"] = round(speed.images_per_second, 1)
    if speed.peak_memory_bytes is not None:
        row["peak_memory_gib"] = round(speed.peak_memory_bytes / 2**30, 2)
    if samples:
        # Start-up and warm-up are part of the samples, so the upper half is the steady state.
        row["busy_percent"] = sorted(samples)[len(samples) * 3 // 4]
    return row


@contextmanager
def sample_busy_percent(device: torch.device) -> Iterator[list[int]]:
    """Sample the utilisation of a GPU in a thread; yields an empty list for other devices."""
    samples: list[int] = []
    stopped = threading.Event()

    def sample() -> None:
        while not stopped.wait(BUSY_SAMPLE_SECONDS):
            try:
                samples.append(int(torch.cuda.utilization(device)))
            except Exception:  # the library or the permission may be missing
                return

    thread = threading.Thread(target=sample, daemon=True)
    if device.type == "cuda":
        thread.start()
    try:
        yield samples
    finally:
        stopped.set()
        if device.type == "cuda":
            thread.join()


def run_comparison(
    case: SpeedCase,
    device: torch.device,
    *,
    n_devices: int = 1,
    echo: Callable[[str], None] = print,
) -> list[Row]:
    """Measure all rows of a backbone and print them."""
    measurements = list_measurements(case, device, workers=count_workers())
    if n_devices > 1:
        measurements += list_rank_measurements(
            case, n_devices, device.type, workers=count_workers(n_devices)
        )
    rows = []
    for measurement in measurements:
        row = {"backbone": case.backbone, **run_measurement(measurement, device)}
        echo(format_row(row))
        rows.append(row)
    return rows


def format_row(row: Row) -> str:
    """Return a row as text."""
    head = f"{row['backbone']:<22} {row['name']:<24} {row['batch_size']:>5}"
    if "error" in row:
        return f"{head}  {row['error']}"
    text = f"{head} {row['images_per_second']:>9,.0f} images/s"
    if "peak_memory_gib" in row:
        text += f" {row['peak_memory_gib']:>6.1f} GiB"
    if "busy_percent" in row:
        text += f" {row['busy_percent']:>4} % busy"
    return text


def make_result_name(gpu: str) -> str:
    """Return the name of the result file of a GPU."""
    return "gpu-" + re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")

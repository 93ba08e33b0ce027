"""Modelled GPU throughput of ResNet-50 at 224 px: images per second and busy share of the GPU.

    python -m tests.benchmarks.bench_gpu [--quick]

No GPU is needed. An epoch of real training runs on the pretend device of `tests.support`, which
records every launch, wait, upload and exchange in its order; `virtual_clock` plays them with the
published throughput of the GPU. The earlier design, which prepared images on the CPU in the step
itself, is played from its counts. Time that the host needs to draw an epoch's batches and crops is
measured. `make gpu` measures throughput on a real GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tests.benchmarks.recorded_epoch import RecordedEpoch, record_epoch
from tests.benchmarks.recording import write_result
from tests.benchmarks.virtual_clock import (
    A100,
    H100,
    LAUNCH_SECONDS,
    DeviceFigures,
    Event,
    Exchange,
    HostWork,
    Launch,
    Timing,
    Upload,
    VirtualClock,
    Wait,
    spread_evenly,
    spread_over_convolutions,
)
from trainables.data.augment import ImageTransform
from trainables.data.batch_sampler import sample_epoch_batches
from trainables.data.dataset import DatasetPart
from trainables.data.feed import draw_epoch

IMAGES_PER_RANK = 120
RANKS = 8
GOALS = {1: 0.95, RANKS: 0.85}
"""Smallest busy share of the GPU, by number of ranks; an exchange between ranks is work, too."""

OLD_AUGMENT_SECONDS = 1.6e-3
OLD_STEP_COUNTS = {
    1: {"launches": 492, "waits": 5, "uploads": 3, "exchanges": 0},
    RANKS: {"launches": 2583, "waits": 164, "uploads": 3, "exchanges": 110},
}
ELEMENTWISE_BATCH_NORM_SECONDS = {"fp32": 0.05 / 120, "bf16": 0.025 / 120}
"""Device time per image of batch norm over ranks in elementwise kernels, beyond a fused one."""
N_BATCH_NORMS, N_OPTIMIZER_KERNELS = 53, 40
GRADIENT_BYTES = 95e6


@dataclass(frozen=True)
class Scenario:
    """A training that is modelled.

    Args:
        design: `old` or `new`.
        figures: Figures of the GPU.
        precision: `fp32` (convolutions in TF32) or `bf16`.
        ranks: World size.
        images: Images of a rank in a step.
        is_staged: Whether items are copied for every batch instead of being resident.
    """

    design: str
    figures: DeviceFigures
    precision: str
    ranks: int = 1
    images: int = IMAGES_PER_RANK
    is_staged: bool = False

    @property
    def title(self) -> str:
        """Return a name for tables."""
        gpus = f"{self.ranks} x {self.figures.name}" if self.ranks > 1 else self.figures.name
        feed = ", staged" if self.is_staged else ""
        return f"{gpus}, batch {self.ranks * self.images}, {self.design}, {self.precision}{feed}"


def list_scenarios() -> list[Scenario]:
    """Return the rows of the table."""
    rows = []
    for figures in (A100, H100):
        one = Scenario("old", figures, "fp32")
        rows += [
            one,
            replace(one, design="new"),
            replace(one, design="new", precision="bf16"),
            replace(one, design="new", precision="bf16", is_staged=True),
        ]
        for images in (IMAGES_PER_RANK, IMAGES_PER_RANK // RANKS):
            many = replace(one, ranks=RANKS, images=images)
            rows += [many, replace(many, design="new", precision="bf16")]
    return rows


def make_old_step(ranks: int, images: int) -> list[Event]:
    """Return the events of a step of the earlier design, from its counts.

    Labels were uploaded first, so that the host waited for the previous step before it augmented
    the images of the next one; two waits checked the labels, three read the loss. With ranks every
    batch norm waited three times and exchanged once in forward and once in backward.
    """
    counts = OLD_STEP_COUNTS[ranks]
    pixels = Upload(images * 3 * 224 * 224 * 4.0)
    data: list[Event] = [Upload(8.0 * images), HostWork(images * OLD_AUGMENT_SECONDS), pixels]
    n_forward = counts["launches"] // 3
    n_backward = counts["launches"] - n_forward
    loss: list[Event] = [Wait(), Wait(), Upload(4.0), Wait(), Wait()]
    update: list[Event] = [Wait(), *[Launch()] * N_OPTIMIZER_KERNELS]
    if ranks == 1:
        forward: list[Event] = [Launch()] * n_forward
        return [*data, *forward, *loss, *[Launch()] * n_backward, *update]
    per_layer = n_forward // N_BATCH_NORMS
    forward = [*[Launch()] * per_layer, Exchange(), Wait(), Wait(), Wait()] * N_BATCH_NORMS
    rest: list[Event] = [Launch()] * (n_forward - per_layer * N_BATCH_NORMS)
    per_layer = n_backward // N_BATCH_NORMS
    backward: list[Event] = [*[Launch()] * per_layer, Exchange()] * N_BATCH_NORMS
    rest += [Launch()] * (n_backward - per_layer * N_BATCH_NORMS)
    summed: list[Event] = [Exchange(GRADIENT_BYTES), Exchange()]
    return [*data, *forward, Exchange(), *loss, *backward, *rest, *summed, Exchange(), *update]


def measure_draw_seconds(n_images: int = 5880, batch_size: int = IMAGES_PER_RANK) -> float:
    """Return the host's CPU seconds per image for drawing the batches and crops of an epoch."""
    items = np.broadcast_to(np.zeros((1, 1, 1, 1), np.uint8), (n_images, 256, 256, 3))
    labels = np.arange(n_images, dtype=np.int64) // 60
    part = DatasetPart(items, labels)
    transform = ImageTransform("papers", size=224, mean=(0.5,) * 3, std=(0.25,) * 3)
    durations = []
    for seed in range(5):
        started = time.process_time()
        batches = sample_epoch_batches(labels, batch_size=batch_size, images_per_class=4, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        draw_epoch(part, transform, [np.sort(batch) for batch in batches], generator)
        drawn = sum(len(batch) for batch in batches)
        durations.append((time.process_time() - started) / drawn)
    return float(np.median(durations))


def add_casts(events: Sequence[Event]) -> list[Event]:
    """Return events with the casts of autocast: of a weight before each convolution, and back."""
    if any(isinstance(event, Launch) and event.kernel == "_to_copy" for event in events):
        return list(events)  # recorded under autocast
    with_casts: list[Event] = []
    for event in events:
        is_convolution = isinstance(event, Launch) and "convolution" in event.kernel
        with_casts += [Launch("_to_copy"), event] if is_convolution else [event]
    return with_casts


def compute_device_seconds(scenario: Scenario, *, has_elementwise_batch_norm: bool) -> float:
    """Return the time that a step's kernels last."""
    figures, precision = scenario.figures, scenario.precision
    seconds = 1 / figures.images_per_second[precision]
    if scenario.design == "new":
        seconds += figures.transform_seconds
    if has_elementwise_batch_norm:
        # Memory traffic, in which an H100 is faster by about the same factor as in products.
        ratio = A100.images_per_second[precision] / figures.images_per_second[precision]
        seconds += ELEMENTWISE_BATCH_NORM_SECONDS[precision] * ratio
    return scenario.images * seconds


def play_old_design(scenario: Scenario, n_steps: int = 20) -> Timing:
    """Return the timing of steps of the earlier design."""
    step = make_old_step(scenario.ranks, scenario.images)
    seconds = compute_device_seconds(scenario, has_elementwise_batch_norm=scenario.ranks > 1)
    return VirtualClock(spread_evenly(step, seconds), scenario.figures).play(step * n_steps)


def play_recorded_epoch(
    scenario: Scenario,
    epoch: RecordedEpoch,
    draw_seconds: float,
    *,
    launch_seconds: float = LAUNCH_SECONDS,
) -> Timing:
    """Return the timing of a recorded epoch, for the less favourable durations of kernels.

    Every rank draws the complete batches before the first step.
    """
    n_images = epoch.n_steps * scenario.images * scenario.ranks
    step, events = list(epoch.step_events), list(epoch.events)
    if scenario.precision == "bf16":
        step, events = add_casts(step), add_casts(events)
    seconds = compute_device_seconds(
        scenario, has_elementwise_batch_norm=epoch.has_elementwise_batch_norm
    )
    timings = [
        VirtualClock(spread(step, seconds), scenario.figures, launch_seconds=launch_seconds).play(
            [HostWork(n_images * draw_seconds), *events]
        )
        for spread in (spread_evenly, spread_over_convolutions)
    ]
    return min(timings, key=lambda timing: timing.busy_share)


def find_slowest_launch(
    scenario: Scenario, epoch: RecordedEpoch, draw_seconds: float
) -> float | None:
    """Return the most seconds that a launch may take for the goal to hold; None if it does not."""
    goal, fits = GOALS[scenario.ranks], None
    for microseconds in (8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80):
        timing = play_recorded_epoch(
            scenario, epoch, draw_seconds, launch_seconds=microseconds * 1e-6
        )
        if timing.busy_share < goal:
            break
        fits = microseconds * 1e-6
    return fits


def describe_timing(scenario: Scenario, timing: Timing, n_steps: int) -> dict[str, Any]:
    """Return a row of the table."""
    images = n_steps * scenario.ranks * scenario.images
    published = scenario.ranks * scenario.figures.images_per_second[scenario.precision]
    return {
        "images_per_second": round(images / timing.seconds, 1),
        "share_of_published": round(images / timing.seconds / published, 4),
        "busy_share": round(timing.busy_share, 4),
        "computing_share": round(timing.computing_share, 4),
        "step_milliseconds": round(1000 * timing.seconds / n_steps, 3),
    }


def run_model(n_steps: int, draw_seconds: float) -> dict[str, Any]:
    """Return the table and the counts behind it."""
    epochs: dict[tuple[int, bool], RecordedEpoch] = {
        (1, False): record_epoch(n_steps=n_steps),
        (1, True): record_epoch(n_steps=n_steps, is_staged=True),
        (RANKS, False): record_epoch(n_steps=n_steps, ranks=RANKS),
    }
    rows = {}
    for scenario in list_scenarios():
        if scenario.design == "old":
            rows[scenario.title] = describe_timing(scenario, play_old_design(scenario), 20)
            continue
        epoch = epochs[scenario.ranks, scenario.is_staged]
        timing = play_recorded_epoch(scenario, epoch, draw_seconds)
        row = describe_timing(scenario, timing, n_steps)
        slowest = find_slowest_launch(scenario, epoch, draw_seconds)
        row["slowest_launch_microseconds"] = None if slowest is None else round(slowest * 1e6)
        rows[scenario.title] = row
    counts = {
        "old, 1 rank": OLD_STEP_COUNTS[1],
        f"old, {RANKS} ranks": OLD_STEP_COUNTS[RANKS],
        "new, 1 rank": epochs[1, False].count_step_events(),
        "new, 1 rank, staged": epochs[1, True].count_step_events(),
        f"new, {RANKS} ranks": epochs[RANKS, False].count_step_events(),
    }
    return {"counts_per_step": counts, "rows": rows}


def main() -> None:
    """Run the model, print the table and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="an epoch of 8 steps; writes no file")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    n_steps = 8 if quick else 48
    draw_seconds = measure_draw_seconds()
    result = run_model(n_steps, draw_seconds)
    print("modelled, not measured: counts of a real epoch, published throughput of the GPU")
    for name, counts in result["counts_per_step"].items():
        print(f"{name:<22}", ", ".join(f"{value:,} {key}" for key, value in counts.items()))
    print(f"{'':<36} {'img/s':>8} {'busy':>6} {'computing':>10} {'of published':>13}")
    for title, row in result["rows"].items():
        shares = f"{row['busy_share']:6.0%} {row['computing_share']:10.0%}"
        shares += f" {row['share_of_published']:13.0%}"
        print(f"{title:<36} {row['images_per_second']:8,.0f} {shares}")
    content = {
        "kind": "modelled",
        "network": "resnet50 at 224 px",
        "steps_per_epoch": n_steps,
        "goals": {f"{ranks} ranks": goal for ranks, goal in GOALS.items()},
        "launch_microseconds": round(LAUNCH_SECONDS * 1e6),
        "draw_microseconds_per_image": round(draw_seconds * 1e6, 3),
        **result,
    }
    write_result("gpu_model", content, quick=quick)


if __name__ == "__main__":
    main()

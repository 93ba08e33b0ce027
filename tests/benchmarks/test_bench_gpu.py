"""The modelled GPU keeps busy: goals of the virtual clock with the counts of real epochs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.benchmarks import bench_gpu
from tests.benchmarks.bench_gpu import (
    GOALS,
    OLD_STEP_COUNTS,
    RANKS,
    Scenario,
    add_casts,
    describe_timing,
    list_scenarios,
    make_old_step,
    play_old_design,
    play_recorded_epoch,
)
from tests.benchmarks.recorded_epoch import (
    EventRecorder,
    RecordedEpoch,
    RecordedWorld,
    record_epoch,
)
from tests.benchmarks.recording import RESULTS
from tests.benchmarks.virtual_clock import (
    A100,
    H100,
    DeviceFigures,
    Event,
    Exchange,
    Launch,
    Upload,
    Wait,
)
from tests.support.pretend_device import count_device_work, register_pretend_device

pytestmark = pytest.mark.slow

N_STEPS = 8
DRAW_SECONDS = 4e-6
"""Time to draw an image's crop; measured: 1.5 to 2.6 microseconds."""


@pytest.fixture(scope="module")
def epoch() -> RecordedEpoch:
    """An epoch of one rank with resident items."""
    return record_epoch(n_steps=N_STEPS)


@pytest.fixture(scope="module")
def staged_epoch() -> RecordedEpoch:
    """An epoch of one rank whose items are copied for every batch."""
    return record_epoch(n_steps=N_STEPS, is_staged=True)


@pytest.fixture(scope="module")
def ranks_epoch() -> RecordedEpoch:
    """An epoch of eight ranks."""
    return record_epoch(n_steps=N_STEPS, ranks=RANKS)


def test_events_are_recorded_in_their_order() -> None:
    device = register_pretend_device()
    world = RecordedWorld(2)
    with count_device_work(EventRecorder()) as recorder:
        assert isinstance(recorder, EventRecorder)
        x = torch.ones(4).to(device)
        y = x.add(1)
        torch.get_device_module(device).synchronize(device)
        world.all_reduce_sum_(y)
        float(y.mul(2)[0])
    assert recorder.events == [
        Upload(16),
        Launch("add"),
        Wait(),
        Exchange(16),
        Launch("mul"),
        Wait(),
    ]


def test_a_step_neither_waits_nor_uploads(epoch: RecordedEpoch) -> None:
    counts = epoch.count_step_events()
    assert counts["waits"] == counts["uploads"] == counts["exchanges"] == 0
    assert counts["launches"] < 600


def test_an_epoch_consists_of_its_steps_and_little_else(epoch: RecordedEpoch) -> None:
    launches = epoch.count_step_events()["launches"]
    assert 0 <= sum(isinstance(e, Launch) for e in epoch.events) - N_STEPS * launches < 100
    assert sum(isinstance(e, Wait) for e in epoch.events) < 10
    assert sum(isinstance(e, Upload) for e in epoch.events) < 10


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("figures", [A100, H100], ids=lambda figures: figures.name)
def test_a_gpu_is_busy_with_resident_items(
    figures: DeviceFigures, precision: str, epoch: RecordedEpoch
) -> None:
    scenario = Scenario("new", figures, precision)
    timing = play_recorded_epoch(scenario, epoch, DRAW_SECONDS)
    row = describe_timing(scenario, timing, N_STEPS)
    assert row["busy_share"] >= GOALS[1]
    assert row["share_of_published"] >= 0.9


@pytest.mark.parametrize("figures", [A100, H100], ids=lambda figures: figures.name)
def test_a_gpu_is_busy_with_staged_items(
    figures: DeviceFigures, staged_epoch: RecordedEpoch
) -> None:
    counts = staged_epoch.count_step_events()
    assert (counts["uploads"], counts["waits"]) == (1, 0)
    scenario = Scenario("new", figures, "bf16", is_staged=True)
    timing = play_recorded_epoch(scenario, staged_epoch, DRAW_SECONDS)
    assert timing.busy_share >= GOALS[1]


@pytest.mark.parametrize("figures", [A100, H100], ids=lambda figures: figures.name)
def test_eight_gpus_are_busy(
    figures: DeviceFigures, epoch: RecordedEpoch, ranks_epoch: RecordedEpoch
) -> None:
    counts = ranks_epoch.count_step_events()
    assert counts["exchanges"] > 0
    scenario = Scenario("new", figures, "bf16", ranks=RANKS)
    timing = play_recorded_epoch(scenario, ranks_epoch, DRAW_SECONDS)
    assert counts["waits"] == counts["uploads"] == 0
    assert counts["launches"] <= 1.3 * epoch.count_step_events()["launches"]
    assert timing.busy_share >= GOALS[RANKS]


def test_a_wait_in_every_layer_would_miss_the_goal(epoch: RecordedEpoch) -> None:
    """The clock can tell: the same epoch with the waits and draws of the earlier design."""
    scenario = Scenario("new", H100, "bf16")
    waiting: list[Event] = []
    for event in epoch.events:
        waiting += [event, Wait()] if event == Launch("convolution") else [event]
    slow = replace(epoch, events=tuple(waiting))
    assert play_recorded_epoch(scenario, slow, DRAW_SECONDS).busy_share < GOALS[1]
    assert play_recorded_epoch(scenario, epoch, 1e-4).busy_share < GOALS[1]


@pytest.mark.parametrize(
    ("figures", "images_per_second", "busy_share"), [(A100, 365, 0.39), (H100, 453, 0.24)]
)
def test_the_earlier_design_is_modelled_as_before(
    figures: DeviceFigures, images_per_second: float, busy_share: float
) -> None:
    scenario = Scenario("old", figures, "fp32")
    row = describe_timing(scenario, play_old_design(scenario), 20)
    assert row["images_per_second"] == pytest.approx(images_per_second, rel=0.01)
    assert row["busy_share"] == pytest.approx(busy_share, abs=0.01)


@pytest.mark.parametrize("ranks", [1, RANKS])
def test_steps_of_the_earlier_design_have_its_counts(ranks: int) -> None:
    step = make_old_step(ranks, 120)
    counts = OLD_STEP_COUNTS[ranks]
    assert sum(isinstance(e, Launch) for e in step) == (
        counts["launches"] + bench_gpu.N_OPTIMIZER_KERNELS
    )
    for name, kind in (("waits", Wait), ("uploads", Upload), ("exchanges", Exchange)):
        assert sum(isinstance(e, kind) for e in step) == counts[name]


def test_autocast_casts_the_weight_of_every_convolution_once() -> None:
    events = [Launch("convolution"), Launch("add"), Launch("convolution_backward")]
    with_casts = add_casts(events)
    assert with_casts.count(Launch("_to_copy")) == 2
    assert add_casts(with_casts) == with_casts


def test_every_gpu_has_old_and_new_rows() -> None:
    titles = [scenario.title for scenario in list_scenarios()]
    assert len(set(titles)) == len(titles) == 16
    for gpu in ("A100", "8 x A100", "H100", "8 x H100"):
        for design in ("old, fp32", "new, bf16"):
            batch = 960 if gpu.startswith("8") else 120
            assert f"{gpu}, batch {batch}, {design}" in titles


@pytest.mark.parametrize("page", ["benchmarks.md", "gpus.md"])
def test_the_pages_show_the_recorded_model(page: str) -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "docs" / page).read_text("utf-8")
    result = json.loads((RESULTS / "gpu_model.json").read_text("utf-8"))
    assert result["kind"] == "modelled"
    for gpus, batch in (("A100", 120), ("H100", 120), ("8 x A100", 960), ("8 x H100", 960)):
        (line,) = [row for row in text.splitlines() if row.startswith(f"| {gpus}, ")]
        for design in ("old, fp32", "new, bf16"):
            row = result["rows"][f"{gpus}, batch {batch}, {design}"]
            assert f"{row['images_per_second']:,.0f}" in line, f"{page}: run make bench: {row}"
            assert f"{100 * row['busy_share']:.0f} %" in line, f"{page}: run make bench: {row}"

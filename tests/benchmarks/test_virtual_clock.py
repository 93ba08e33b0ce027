"""The virtual clock adds up launches, waits, copies and exchanges as documented."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.virtual_clock import (
    A100,
    H100,
    SMALL_KERNEL_SECONDS,
    AwaitExchanges,
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

pytestmark = pytest.mark.split

MICROSECOND = 1e-6
FIGURES = replace(A100, exchange_seconds=40e-6, exchange_bytes_per_second=1e11)


def play(*events: Event, kernel_microseconds: float = 100) -> Timing:
    clock = VirtualClock(lambda kernel: kernel_microseconds * MICROSECOND, FIGURES)
    return clock.play(events)


def in_microseconds(timing: Timing) -> tuple[float, float, float]:
    values = (timing.seconds, timing.computing_seconds, timing.exchanging_seconds)
    return tuple(round(value / MICROSECOND, 6) for value in values)  # type: ignore[return-value]


def test_the_host_runs_ahead_of_long_kernels() -> None:
    timing = play(*[Launch()] * 10)
    assert in_microseconds(timing) == (8 + 10 * 100, 1000, 0)
    assert timing.busy_share == pytest.approx(1000 / 1008)


def test_short_kernels_wait_for_the_host() -> None:
    timing = play(*[Launch()] * 10, kernel_microseconds=3)
    assert in_microseconds(timing) == (10 * 8 + 3, 30, 0)


def test_a_wait_leaves_the_device_idle_until_the_next_launch() -> None:
    assert in_microseconds(play(Launch(), Wait(), Launch())) == (8 + 100 + 15 + 8 + 100, 200, 0)


def test_work_of_the_host_is_hidden_unless_it_waits_first() -> None:
    hidden = play(Launch(), HostWork(50e-6), Launch())
    assert in_microseconds(hidden) == (8 + 200, 200, 0)
    waiting = play(Launch(), Upload(0), HostWork(50e-6), Launch())
    assert in_microseconds(waiting) == (8 + 100 + 15 + 50 + 8 + 100, 200, 0)


def test_a_pageable_copy_waits_and_takes_its_time() -> None:
    timing = play(Launch(), Upload(8e6), Launch())  # 8 MB at 8 GB/s
    assert in_microseconds(timing) == (8 + 100 + 15 + 1000 + 8 + 100, 200, 0)


def test_a_pinned_copy_runs_beside_kernels_until_it_is_the_bottleneck() -> None:
    step: list[Event] = [Upload(24e3, is_blocking=False), *[Launch()] * 5]  # 1 us at 24 GB/s
    assert play(*step * 20).busy_share > 0.98
    step[0] = Upload(24e6, is_blocking=False)  # 1,000 us beside kernels of 500
    timing = play(*step * 20)
    assert timing.seconds == pytest.approx(20 * 1000e-6, rel=0.15)
    assert timing.busy_share == pytest.approx(0.5, abs=0.1)


def test_an_exchange_delays_the_kernels_that_follow() -> None:
    timing = play(Launch(), Exchange(1e6), Launch())  # 40 us and 1 MB at 100 GB/s
    assert in_microseconds(timing) == (8 + 100 + 40 + 10 + 100, 200, 50)
    assert timing.busy_share == pytest.approx(250 / 258)
    assert timing.computing_share == pytest.approx(200 / 258)


def test_an_overlapped_exchange_delays_only_what_needs_it() -> None:
    events: list[Event] = [Launch(), Exchange(1e6, is_overlapped=True), Launch()]
    assert in_microseconds(play(*events)) == (208, 200, 0)
    assert in_microseconds(play(*events, AwaitExchanges(), Launch())) == (308, 300, 0)
    late: list[Event] = [
        Launch(),
        Launch(),
        Exchange(1e6, is_overlapped=True),
        AwaitExchanges(),
        Launch(),
    ]
    assert in_microseconds(play(*late)) == (8 + 200 + 50 + 100, 300, 50)


def test_exchanges_happen_one_after_the_other() -> None:
    exchanges = [Exchange(1e6, is_overlapped=True)] * 2
    timing = play(Launch(), *exchanges, AwaitExchanges(), Launch())
    assert in_microseconds(timing) == (8 + 100 + 50 + 50 + 100, 200, 100)


def test_kernels_share_the_time_of_a_step() -> None:
    step: list[Event] = [
        Launch("convolution"),
        Launch("add"),
        Wait(),
        Launch("convolution_backward"),
    ]
    even = spread_evenly(step, 300e-6)
    assert even("add") == even("convolution") == pytest.approx(100e-6)
    uneven = spread_over_convolutions(step, 300e-6)
    assert uneven("add") == SMALL_KERNEL_SECONDS
    assert uneven("convolution") == pytest.approx((300e-6 - SMALL_KERNEL_SECONDS) / 2)
    assert spread_over_convolutions([Launch("add")] * 2, 1.0)("add") == 0.5


def test_published_throughput() -> None:
    assert A100.images_per_second == {"fp32": 938, "bf16": 2470}
    assert H100.images_per_second == {"fp32": 2 * 938, "bf16": 2 * 2470}

"""Where a run's trials run: the Ray of this process, one of our own, or a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from study.environment import environment
from study.file import ResourcesSection
from study.tuning.placement import alive_nodes, check_room

STARTS = 3
"""A machine under load may take longer than the half minute Ray gives its own processes."""


@contextlib.contextmanager
def ray_session(
    resources: ResourcesSection, address: str | None, say: Callable[[str], None]
) -> Iterator[None]:
    """A Ray to run on: this process's, the one at `address`, or one of our own."""
    import ray

    if ray.is_initialized():
        yield
        return
    say("starting Ray" if address is None else f"connecting to Ray at {address}")
    # A trial that was given no GPU sees none: it trains on its processors, with gloo.
    with environment({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}):
        if address is None:
            _start(say)
        else:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        if address is None:
            check_room(resources, alive_nodes())
        yield
    finally:
        ray.shutdown()


def _start(say: Callable[[str], None]) -> None:
    import ray

    # "local": without it Ray joins whatever cluster was last started on this machine.
    options: dict[str, Any] = {"address": "local", "include_dashboard": False}
    for attempt in range(1, STARTS + 1):
        try:
            ray.init(
                object_store_memory=200 * 2**20,
                logging_level=logging.ERROR,
                log_to_driver=False,
                **options,
            )
            return
        except Exception as error:
            ray.shutdown()
            if attempt == STARTS or "timed out" not in str(error):
                raise
            say("Ray did not start in time; starting it again")


@contextlib.contextmanager
def polite_stop() -> Iterator[None]:
    """SIGTERM stops like ctrl-C: no new trial starts, and the record stays in order."""
    try:
        old = signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    except ValueError:  # not the main thread: whoever runs us handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)

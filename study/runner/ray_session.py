"""Where a run's trials run: the Ray of this process, one of our own, or a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from study.environment import environment
from study.errors import RayError, StudyError
from study.file import ResourcesSection
from study.tuning.growth import nodes_that_may_come
from study.tuning.placement import alive_nodes, check_room, fitting, idle_gpus, lack

FIRST_WARNING_SECONDS, WARNING_SECONDS = 20.0, 60.0
STARTS = 3
"""A machine under load may take longer than the half minute Ray gives its own processes."""
START_SECONDS = 120.0
"""A driver waits without limit for a Ray whose process was killed just as it connected to it."""

CONNECT_SECONDS = 15.0

WATCH_SECONDS = 1.0
VITAL = ("gcs_server", "raylet")
"""Processes without which a Ray of our own answers nothing, and never will again."""


@contextlib.contextmanager
def ray_session(
    resources: ResourcesSection,
    address: str | None,
    say: Callable[[str], None],
    on_death: Callable[[str], None],
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[None]:
    """A Ray to run on: this process's, the one at `address`, or one of our own.

    Args:
        resources: What a trial takes.
        address: A Ray cluster; None uses a running one of this process, else starts one.
        say: Told in one line what is going on.
        on_death: Told, in a thread, why a Ray of our own will never answer again. Whoever waits
            for it waits for ever, so it had better end this process.
        warn: Told in one line what makes trials on a cluster dearer than they need be.

    Raises:
        StudyError: No Ray answers at the address, or a trial fits no node it has or may get.
        RayError: Our own does not start, or died.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    say("starting Ray" if address is None else f"connecting to Ray at {address}")
    # A trial that was given no GPU sees none: it trains on its processors, with gloo.
    with environment({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}):
        if address is None:
            _start(say, on_death)
        else:
            _connect(address)
    try:
        with contextlib.nullcontext() if address else _watched(on_death):
            alive = alive_nodes()
            may_come = nodes_that_may_come(len(alive)) if address else ()
            check_room(resources, alive, may_come)
            if idle := idle_gpus(resources, may_come or alive):
                (warn if address else say)(idle)
            yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _watched(on_death: Callable[[str], None]) -> Iterator[None]:
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            dead = _dead_part()
            if dead and not over.is_set():
                on_death(f"Ray's {dead} died")
                return

    thread = threading.Thread(target=watch, name="ray-watch", daemon=True)
    thread.start()
    try:
        yield
    except Exception:
        # Whoever was just asking a Ray that died got some error of its own making.
        if dead := _dead_part():
            on_death(f"Ray's {dead} died")
            raise RayError(f"Ray's {dead} died") from None
        raise
    finally:
        over.set()
        thread.join()


def check_cluster(resources: ResourcesSection, address: str) -> None:
    """Raise when a trial fits no node that the cluster has or may get.

    Raises:
        StudyError: It would wait for ever.
    """
    with ray_session(resources, address, lambda text: None, lambda process: None):
        pass


class Patience:
    """Says again and again, while no node can take a trial, what is missing.

    Args:
        resources: What a trial takes.
        warn: Is told, in one line.
        nodes: What each node has now.
        clock: Seconds.
    """

    def __init__(
        self,
        resources: ResourcesSection,
        warn: Callable[[str], None],
        *,
        nodes: Callable[[], Sequence[Mapping[str, float]]] = alive_nodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources, self._warn, self._nodes, self._clock = resources, warn, nodes, clock
        self._next = clock() + FIRST_WARNING_SECONDS

    def update(self) -> None:
        """To be called often; looks every minute."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + WARNING_SECONDS
        nodes = self._nodes()
        if not fitting(self._resources, nodes):
            self._warn(f"no trial can run yet: {lack(self._resources, nodes)}; waiting for nodes")


def _dead_part() -> str:
    """A vital process of this process's own Ray that has died; empty when all live."""
    from ray._private import worker

    node = worker._global_node
    dead = [kind for kind, _ in node.dead_processes() if kind in VITAL] if node else []
    return dead[0] if dead else ""


def _connect(address: str) -> None:
    import ray

    host, _, port = address.rpartition(":")
    try:
        if port.isdigit() and "/" not in host:  # Ray itself would go on trying for many minutes
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        ray.shutdown()
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StudyError(
            f"no Ray can be used at {address} ({reason}): `ray up FILE` or `ray start --head` "
            "starts one"
        ) from None


def _start(say: Callable[[str], None], on_death: Callable[[str], None]) -> None:
    import ray

    # "local": without it Ray joins whatever cluster was last started on this machine.
    options: dict[str, Any] = {"address": "local", "include_dashboard": False}
    for attempt in range(1, STARTS + 1):
        try:
            with _bounded(on_death):
                ray.init(
                    object_store_memory=200 * 2**20,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    **options,
                )
            return
        except Exception as error:
            ray.shutdown()
            if attempt == STARTS:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise RayError(f"Ray does not start on this machine: {reason}") from None
            say("Ray did not start; starting it again")


@contextlib.contextmanager
def _bounded(on_death: Callable[[str], None]) -> Iterator[None]:
    timer = threading.Timer(
        START_SECONDS, on_death, [f"Ray did not start in {START_SECONDS:.0f} s"]
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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

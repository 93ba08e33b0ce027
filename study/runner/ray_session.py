"""Ray session: a Ray instance for a run, either this process's, a local one, or a cluster."""

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

from study.config.schema import ResourcesSection
from study.errors import RayUnavailableError, StudyError
from study.runner.autoscaling import possible_nodes_or_none
from study.runner.display import NullDisplay, ProgressDisplay
from study.runner.placement import (
    check_capacity,
    count_fitting_trials,
    describe_shortage,
    list_alive_nodes,
    unused_gpu_warning,
)
from study.utils.environment import temporary_environment

FIRST_CAPACITY_WARNING_SECONDS, CAPACITY_WARNING_SECONDS = 20.0, 60.0

MAX_RAY_STARTS = 3
"""Ray gives its own processes half a minute, which a machine under load can exceed."""

RAY_START_TIMEOUT_SECONDS = 120.0
"""A driver would wait forever for a Ray process that is killed just as the driver connects."""

RAY_CONNECT_TIMEOUT_SECONDS = 15.0
RAY_WATCH_INTERVAL_SECONDS = 1.0
VITAL_RAY_PROCESSES = ("gcs_server", "raylet")
"""Processes without which a local Ray never answers again."""


@contextlib.contextmanager
def ray_session(
    resources: ResourcesSection,
    address: str | None,
    display: ProgressDisplay,
    on_ray_failure: Callable[[str], None],
) -> Iterator[None]:
    """Connect to the Ray at `address`, or use this process's, or start a local one.

    Args:
        resources: Resources of a trial.
        address: Address of a Ray cluster; None uses an initialised Ray or starts a local one.
        display: Shows messages, and a warning if trials waste a cluster's GPUs.
        on_ray_failure: Called from a thread with the reason when a local Ray died. A call that
            waits for Ray never returns then, so the function should end this process.

    Raises:
        StudyError: No Ray answers at the address, or a trial fits no node it has or can get.
        RayUnavailableError: The local Ray does not start, or died.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    display.show_message("starting Ray" if address is None else f"connecting to Ray at {address}")
    # A trial without a GPU must not see one: it trains on the CPU, with gloo.
    with temporary_environment({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}):
        if address is None:
            _start_local_ray(display, on_ray_failure)
        else:
            _connect_to_ray(address)
    try:
        with contextlib.nullcontext() if address else _watch_ray_processes(on_ray_failure):
            alive = list_alive_nodes()
            possible = possible_nodes_or_none(len(alive)) if address else ()
            check_capacity(resources, alive, possible)
            if warning := unused_gpu_warning(resources, possible or alive):
                (display.show_warning if address else display.show_message)(warning)
            yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _watch_ray_processes(on_ray_failure: Callable[[str], None]) -> Iterator[None]:
    is_over = threading.Event()

    def poll_processes() -> None:
        while not is_over.wait(RAY_WATCH_INTERVAL_SECONDS):
            dead = _find_dead_process()
            if dead and not is_over.is_set():
                on_ray_failure(f"Ray's {dead} died")
                return

    thread = threading.Thread(target=poll_processes, name="ray-watch", daemon=True)
    thread.start()
    try:
        yield
    except Exception:
        # A call to a Ray that died raises some other error first.
        if dead := _find_dead_process():
            on_ray_failure(f"Ray's {dead} died")
            raise RayUnavailableError(f"Ray's {dead} died") from None
        raise
    finally:
        is_over.set()
        thread.join()


def check_cluster(resources: ResourcesSection, address: str) -> None:
    """Raise when a trial fits no node that the cluster has or can get.

    Raises:
        StudyError: The trial would wait forever.
    """
    with ray_session(resources, address, NullDisplay(), lambda reason: None):
        pass


class CapacityMonitor:
    """Warns every minute while no node can take a trial.

    Args:
        resources: Resources of a trial.
        display: Shows the warnings.
        list_nodes: Returns the resources of each live node.
        clock: Seconds.
    """

    def __init__(
        self,
        resources: ResourcesSection,
        display: ProgressDisplay,
        *,
        list_nodes: Callable[[], Sequence[Mapping[str, float]]] = list_alive_nodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources, self._display = resources, display
        self._list_nodes, self._clock = list_nodes, clock
        self._next_warning = clock() + FIRST_CAPACITY_WARNING_SECONDS

    def update(self) -> None:
        """Check the nodes when it is time; call often."""
        if self._clock() < self._next_warning:
            return
        self._next_warning = self._clock() + CAPACITY_WARNING_SECONDS
        nodes = self._list_nodes()
        if not count_fitting_trials(self._resources, nodes):
            shortage = describe_shortage(self._resources, nodes)
            self._display.show_warning(f"no trial can run yet: {shortage}; waiting for nodes")


def _find_dead_process() -> str:
    """Return a vital process of the local Ray that has died; empty if all are alive."""
    from ray._private import worker

    node = worker._global_node
    dead = [kind for kind, _ in node.dead_processes()] if node else []
    return next((kind for kind in dead if kind in VITAL_RAY_PROCESSES), "")


def _connect_to_ray(address: str) -> None:
    import ray

    host, _, port = address.rpartition(":")
    try:
        if port.isdigit() and "/" not in host:  # Ray itself retries for many minutes
            socket.create_connection(
                (host.strip("[]"), int(port)), RAY_CONNECT_TIMEOUT_SECONDS
            ).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise StudyError(
            f"cannot connect to Ray at {address} ({_first_line(error)}); start one with "
            "`ray up FILE` or `ray start --head`"
        ) from None


def _start_local_ray(display: ProgressDisplay, on_ray_failure: Callable[[str], None]) -> None:
    import ray

    # "local": without it Ray joins the cluster that was last started on this machine.
    options: dict[str, Any] = {"address": "local", "include_dashboard": False}
    for attempt in range(1, MAX_RAY_STARTS + 1):
        try:
            with _limit_start_time(on_ray_failure):
                ray.init(
                    object_store_memory=200 * 2**20,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    **options,
                )
            return
        except Exception as error:
            ray.shutdown()
            if attempt == MAX_RAY_STARTS:
                raise RayUnavailableError(
                    f"Ray does not start on this machine: {_first_line(error)}"
                ) from None
            display.show_message("Ray did not start; starting it again")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def _limit_start_time(on_ray_failure: Callable[[str], None]) -> Iterator[None]:
    timer = threading.Timer(
        RAY_START_TIMEOUT_SECONDS,
        on_ray_failure,
        [f"Ray did not start in {RAY_START_TIMEOUT_SECONDS:.0f} s"],
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def sigterm_as_sigint() -> Iterator[None]:
    """Handle SIGTERM like ctrl-C: no new trial starts, and the journal stays consistent."""
    try:
        old = signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    except ValueError:  # not the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)

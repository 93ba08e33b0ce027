"""A Ray that will never answer must not be waited for."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import ray

from study.config.schema import ResourcesSection
from study.errors import RayUnavailableError, StudyError
from study.runner import ray_session
from study.runner.display import NullDisplay
from study.runner.ray_session import sigterm_as_sigint
from study.tracking.ui_server import find_free_port
from tests.support.displays import RecordingDisplay


def test_a_start_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    given_up = threading.Event()

    def hang(**_: Any) -> None:
        assert given_up.wait(10), "the timeout was not noticed"
        raise ConnectionError("as if the process had ended")

    def on_death(reason: str) -> None:
        told.append(reason)
        given_up.set()

    monkeypatch.setattr(ray_session, "RAY_START_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(ray_session, "MAX_RAY_STARTS", 1)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", hang)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with (
        pytest.raises(RayUnavailableError, match="does not start"),
        ray_session.ray_session(ResourcesSection(), None, NullDisplay(), on_death),
    ):
        pass
    assert told == ["Ray did not start in 0 s"]


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:{}"])
def test_an_address_where_no_ray_is_is_one_line_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing listens Ray is not even asked: it would try for many minutes."""
    asked: list[str] = []

    def none(**options: Any) -> None:
        asked.append(options["address"])
        raise ConnectionError("Could not find any running Ray instance.\nMore words.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", none)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    address = address.format(find_free_port())
    with pytest.raises(StudyError, match=f"cannot connect to Ray at {address}") as found:
        ray_session.check_cluster(ResourcesSection(), address)
    assert "\n" not in str(found.value)
    assert asked == (["auto"] if address == "auto" else [])


def test_a_cluster_of_gpus_that_trials_do_not_use_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a cluster machines are bought for them; on one's own machine it is only said."""
    nodes = [{"Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0}}]
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    for address in ("auto", None):
        for gpus in (0, 1):
            display = RecordingDisplay()
            resources = ResourcesSection(gpus_per_trial=gpus)
            with ray_session.ray_session(resources, address, display, lambda reason: None):
                pass
            shown = display.warnings if address else display.messages
            assert len([text for text in shown if "gpus_per_trial: 0" in text]) == (gpus == 0)
            assert not (display.messages[1:] if address else display.warnings)


def test_waiting_for_nodes_is_a_warning_every_minute() -> None:
    now, nodes, display = [0.0], [{"CPU": 1.0}], RecordingDisplay()
    monitor = ray_session.CapacityMonitor(
        ResourcesSection(cpus_per_trial=2),
        display,
        list_nodes=lambda: nodes,
        clock=lambda: now[0],
    )
    for _ in range(150):
        now[0] += 1.0
        monitor.update()
    assert len(display.warnings) == 3
    (warning,) = set(display.warnings)
    assert "1 node with {CPU: 2}; the cluster has 1 node with {CPU: 1}" in warning
    nodes[:] = [{"CPU": 2.0}]
    for _ in range(150):
        now[0] += 1.0
        monitor.update()
    assert len(display.warnings) == 3


def test_a_termination_is_a_polite_stop() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Tune leaves its own behind
    try:
        with sigterm_as_sigint(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)

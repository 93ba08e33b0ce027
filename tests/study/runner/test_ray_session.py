"""A Ray that will never answer must not be waited for."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import ray

from study.errors import RayError, StudyError
from study.file import ResourcesSection
from study.tracking.server import free_port
from study.tuning import session


def test_a_start_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    given_up = threading.Event()

    def hang(**_: Any) -> None:
        assert given_up.wait(10), "nobody noticed"
        raise ConnectionError("as if the process had ended")

    def on_death(reason: str) -> None:
        told.append(reason)
        given_up.set()

    monkeypatch.setattr(session, "START_SECONDS", 0.05)
    monkeypatch.setattr(session, "STARTS", 1)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", hang)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with (
        pytest.raises(RayError, match="does not start"),
        session.ray_session(ResourcesSection(), None, lambda text: None, on_death),
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
    address = address.format(free_port())
    with pytest.raises(StudyError, match=f"no Ray can be used at {address}") as found:
        session.check_cluster(ResourcesSection(), address)
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
            said: list[str] = []
            warned: list[str] = []
            resources = ResourcesSection(gpus_per_trial=gpus)
            with session.ray_session(
                resources, address, said.append, lambda reason: None, warned.append
            ):
                pass
            idle = [text for text in (warned if address else said) if "have GPUs" in text]
            assert len(idle) == (1 if gpus == 0 else 0)
            assert not (said[1:] if address else warned)

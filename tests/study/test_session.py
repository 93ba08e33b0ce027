"""A Ray that will never answer must not be waited for."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import ray

from study.errors import RayError
from study.file import ResourcesSection
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

"""Host-specific paths."""

from __future__ import annotations

import socket

import pytest

from trainables.utils.host_paths import expand_host

pytestmark = pytest.mark.split


def test_the_placeholder_is_replaced_by_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node-7")
    assert expand_host("/home/me/.cache/{host}/data") == "/home/me/.cache/node-7/data"
    assert expand_host("/home/me/.cache") == "/home/me/.cache"

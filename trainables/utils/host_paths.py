"""Host-specific paths, for hosts that share a home directory."""

from __future__ import annotations

import socket

HOST_PLACEHOLDER = "{host}"
"""Placeholder for the host name in a path that is sent between hosts."""


def expand_host(path: str) -> str:
    """Replace the placeholder in a path by the name of this host.

    >>> expand_host("/home/me/.cache/{host}") == f"/home/me/.cache/{socket.gethostname()}"
    True
    """
    return path.replace(HOST_PLACEHOLDER, socket.gethostname())

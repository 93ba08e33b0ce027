"""Which folder is this host's own, where hosts share a home?"""

from __future__ import annotations

import socket

HOST = "{host}"
"""Stands for the host's name in a path that travels between hosts."""


def of_this_host(path: str) -> str:
    """A path with the name of this host in it.

    >>> of_this_host("/home/me/.cache/{host}") == f"/home/me/.cache/{socket.gethostname()}"
    True
    """
    return path.replace(HOST, socket.gethostname())

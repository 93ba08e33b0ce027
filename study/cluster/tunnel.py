"""A port of this machine that leads through the head, for as long as somebody wants it."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Callable, Sequence

import click

RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between attempts to connect again; the last one from then on."""

LOOK_SECONDS = 0.3


class Tunnel:
    """An ssh that forwards a port; once kept, another takes its place when its connection breaks.

    A laptop that slept, or changed its network, has a page that works again soon after.

    Args:
        command: ssh's; it must end when it cannot forward.
        name: What the tunnel leads to, for a person.
        is_open: Whether the port takes connections.
    """

    def __init__(self, command: Sequence[str], name: str, is_open: Callable[[], bool]) -> None:
        self._command, self._name, self._is_open = command, name, is_open
        self._lock, self._over = threading.Lock(), threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="tunnel", daemon=True)
        self.process = self._start()

    def keep(self) -> None:
        """See to it from now on that the tunnel is open."""
        self._keeper.start()

    def close(self) -> None:
        """End it."""
        with self._lock:
            self._over.set()
            self.process.terminate()
        if self._keeper.is_alive():
            self._keeper.join()
        self.last_words()

    def last_words(self) -> str:
        """What ssh says of its end, which is waited for."""
        said = self.process.stderr
        assert said is not None
        words = "" if said.closed else said.read()
        said.close()
        self.process.wait()
        return words

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # ctrl-C is for us: we close it in order
        )

    def _keep(self) -> None:
        while True:
            self.last_words()
            if self._over.is_set():
                return
            click.echo(f"{self._name}: connection lost, trying again", err=True)
            if not self._open_again():
                return
            click.echo(f"{self._name}: connected again", err=True)

    def _open_again(self) -> bool:
        """Whether it is open; False when nobody wants it any more."""
        for pause in itertools.chain(RETRY_SECONDS, itertools.repeat(RETRY_SECONDS[-1])):
            if self._over.wait(pause):
                return False
            with self._lock:
                if self._over.is_set():
                    return False
                self.process = self._start()
            while self.process.poll() is None:
                if self._is_open():
                    return True
                self._over.wait(LOOK_SECONDS)
            self.last_words()
        return False

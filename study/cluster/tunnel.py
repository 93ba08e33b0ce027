"""ssh tunnel: a local port that is forwarded through the head, and reopened if it breaks."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Callable, Sequence

import click

RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between attempts to reconnect; the last one is repeated."""

OPEN_POLL_SECONDS = 0.3


class SshTunnel:
    """An ssh process that forwards a port and, after `start_reconnecting`, is replaced if it ends.

    A page that was opened through it therefore works again soon after a laptop slept or changed its
    network.

    Args:
        command: ssh command, which must end if it cannot forward.
        name: What the tunnel leads to, for messages.
        is_open: Returns whether the port accepts connections.
    """

    def __init__(self, command: Sequence[str], name: str, is_open: Callable[[], bool]) -> None:
        self._command, self._name, self._is_open = command, name, is_open
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._reconnect_thread = threading.Thread(
            target=self._reconnect_until_closed, name="tunnel", daemon=True
        )
        self.process = self._start_ssh()

    def start_reconnecting(self) -> None:
        """Reopen the tunnel from now on whenever it breaks."""
        self._reconnect_thread.start()

    def close(self) -> None:
        """Close the tunnel."""
        with self._lock:
            self._closed.set()
            self.process.terminate()
        if self._reconnect_thread.is_alive():
            self._reconnect_thread.join()
        self.read_stderr()

    def read_stderr(self) -> str:
        """Wait for the end of ssh and return its error output."""
        stderr = self.process.stderr
        assert stderr is not None
        message = "" if stderr.closed else stderr.read()
        stderr.close()
        self.process.wait()
        return message

    def _start_ssh(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that Ctrl-C reaches this process, which then closes ssh
        )

    def _reconnect_until_closed(self) -> None:
        while True:
            self.read_stderr()
            if self._closed.is_set():
                return
            click.echo(f"{self._name}: connection lost, reconnecting", err=True)
            if not self._reopen_tunnel():
                return
            click.echo(f"{self._name}: connected again", err=True)

    def _reopen_tunnel(self) -> bool:
        """Reopen the tunnel; return False if it was closed in the meantime."""
        for pause in itertools.chain(RETRY_SECONDS, itertools.repeat(RETRY_SECONDS[-1])):
            if self._closed.wait(pause):
                return False
            with self._lock:
                if self._closed.is_set():
                    return False
                self.process = self._start_ssh()
            while self.process.poll() is None:
                if self._is_open():
                    return True
                self._closed.wait(OPEN_POLL_SECONDS)
            self.read_stderr()
        return False

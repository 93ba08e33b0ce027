"""Client of a cluster: starts a study there and follows it, from a laptop that may be closed."""

from __future__ import annotations

import codecs
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from study.cluster.constants import RUN_STAMP_PREFIX
from study.cluster.head import SSH_FAILED_EXIT_CODE, ClusterHead, find_head
from study.cluster.tunnel import RETRY_SECONDS
from study.errors import StudyError

HEAD_PROCESS_COMMAND = ("python", "-m", "study.cluster.detached")
"""Module name that heads of every version accept; see `study.cluster.detached`."""
MAX_RECONNECT_ATTEMPTS = 120  # about an hour
OUTPUT_CHUNK_BYTES = 65536


def submit_file(
    cluster: Path, file: Path, overrides: Sequence[str], *, report: bool, detach: bool
) -> int:
    """Check a study file, send it to the head, start the study there and follow it.

    Repeating this follows the running study, or continues one that was interrupted.

    Args:
        cluster: Cluster file.
        file: Study file.
        overrides: `a.b=c` strings.
        report: Whether to write a report at the end.
        detach: Return once the study has started.

    Returns:
        The study's exit code; 0 with `detach`.
    """
    from study.config.loader import load_config, merged_yaml, reject_relative_paths
    from study.config.planner import build_plan

    reject_relative_paths(file, overrides)
    plan = build_plan(load_config(file, overrides))
    command = ["run", "--report" if report else "--no-report"]
    content = merged_yaml(file, overrides)
    return submit_command(cluster, plan.name, command, content=content, detach=detach)


def submit_command(
    cluster: Path, name: str, command: Sequence[str], *, content: str = "", detach: bool = False
) -> int:
    """Start a `study` command on the head and follow it.

    Args:
        cluster: Cluster file.
        name: Name of the study.
        command: Arguments of `study`.
        content: Text of the study file, if the command is `run`.
        detach: Return once the command has started.

    Returns:
        The command's exit code; 0 with `detach`.
    """
    head = find_head(cluster)
    result = head.run_command([*HEAD_PROCESS_COMMAND, "start", name, *command], content=content)
    click.echo(result.stdout, nl=False)
    if result.returncode:
        click.echo(result.stderr, nl=False, err=True)
        return result.returncode
    if detach:
        click.echo(f"started; follow it with: study status {name} --cluster {cluster} --follow")
        return 0
    return follow_output(cluster, name, head=head)


def follow_output(cluster: Path, name: str, *, head: ClusterHead | None = None) -> int:
    """Print a study's output until it ends, reconnecting if the connection is lost.

    If the study was started again in the meantime, the new run is printed from its beginning.

    Args:
        cluster: Cluster file.
        name: Name of the study.
        head: Head of the cluster, if it has just answered.

    Returns:
        The study's exit code; 130 if the user stopped following it.

    Raises:
        StudyError: The head was never reached, or not for an hour.
    """
    if head is None:
        head = find_head(cluster)
        head.run_command(["true"])
    follower, n_attempts = _LogFollower(name), 0
    try:
        while True:
            code, count = _stream_output(head, follower)
            n_attempts = 0 if count else n_attempts
            if code != SSH_FAILED_EXIT_CODE:
                return code
            if n_attempts == 0:
                click.echo(
                    f"{name}: connection lost; the study keeps running, reconnecting", err=True
                )
            if n_attempts > MAX_RECONNECT_ATTEMPTS:
                raise StudyError(head.explain_ssh_failure("no connection for an hour"))
            time.sleep(RETRY_SECONDS[min(n_attempts, len(RETRY_SECONDS) - 1)])
            n_attempts += 1
    except KeyboardInterrupt:
        command = f"study status {name} --cluster {cluster} --follow"
        click.echo(f"\n{name} keeps running on the cluster; re-attach with: {command}", err=True)
        return 130


def run_remote_command(cluster: Path, command: Sequence[str]) -> int:
    """Run a `study` command on the head, print its output and return its exit code."""
    result = find_head(cluster).run_command(["study", *command])
    click.echo(result.stdout, nl=False)
    click.echo(result.stderr, nl=False, err=True)
    return result.returncode


@contextlib.contextmanager
def open_stores(cluster: Path, names: Sequence[str], port: int = 0) -> Iterator[list[str]]:
    """Open the tracking stores of studies of a cluster; yield their addresses on this machine.

    Args:
        cluster: Cluster file.
        names: Names of the studies.
        port: Local port of a tunnel to a server; 0 selects a free one.

    Raises:
        StudyError: A study is unknown there, or its store cannot be reached from this machine.
    """
    head = find_head(cluster)
    with contextlib.ExitStack() as tunnels:
        local_uris: dict[str, str] = {}
        uris = [_find_store_uri(head, name) for name in names]
        for uri in uris:
            if uri not in local_uris:
                local_uris[uri] = tunnels.enter_context(head.open_store(uri, port))
        yield [local_uris[uri] for uri in uris]


def _find_store_uri(head: ClusterHead, name: str) -> str:
    """Ask the head for the tracking URI of a study; it may contain a password."""
    result = head.run_command([*HEAD_PROCESS_COMMAND, "tracking", name])
    if result.returncode:
        message = result.stderr.strip().removeprefix("study: ")
        raise StudyError(message or f"{name}: the head gave no tracking URI")
    return result.stdout.strip()


def reject_local_options(**options: object) -> None:
    """Reject options of this machine that are given together with --cluster.

    Args:
        options: Values by name of the option; None if not given.

    Raises:
        StudyError: An option is given.
    """
    for name, value in options.items():
        if value is not None:
            option = name.replace("_", "-")
            raise StudyError(f"--{option} cannot be used with --cluster")


class _LogFollower:
    """Prints a study's output, and remembers the run and the number of bytes printed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._reset_run("-")

    @property
    def follow_command(self) -> list[str]:
        """Command that requests the rest of the output from the head."""
        return [
            *HEAD_PROCESS_COMMAND,
            "follow",
            self.name,
            str(self._n_bytes_shown),
            self._run_stamp,
        ]

    def read_stamp_line(self, line: bytes) -> None:
        """Read the first line, which holds the run's stamp.

        A head of another version may not send one; the line is then output.
        """
        text = line.decode("ascii", "replace")
        if not text.startswith(RUN_STAMP_PREFIX) or not text.endswith("\n"):
            self.print_chunk(line)
            return
        run = text.removeprefix(RUN_STAMP_PREFIX).strip()
        if run == self._run_stamp:
            return
        if self._n_bytes_shown:
            click.echo(f"{self.name} was started again; printing the new run", err=True)
        self._reset_run(run)

    def print_chunk(self, chunk: bytes) -> None:
        """Print a part of the output."""
        self._n_bytes_shown += len(chunk)
        sys.stdout.write(self._decoder.decode(chunk))
        sys.stdout.flush()

    def _reset_run(self, run: str) -> None:
        self._run_stamp, self._n_bytes_shown = run, 0
        # A chunk may end within a multi-byte character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")


def _stream_output(head: ClusterHead, follower: _LogFollower) -> tuple[int, int]:
    """Print a study's output until it or the connection ends; return exit code and bytes read."""
    process = subprocess.Popen(
        head.remote_command(follower.follow_command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    count = 0
    try:
        follower.read_stamp_line(process.stdout.readline())
        while chunk := process.stdout.read1(OUTPUT_CHUNK_BYTES):  # type: ignore[attr-defined]
            count += len(chunk)
            follower.print_chunk(chunk)
        return process.wait(), count
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()

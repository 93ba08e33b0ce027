"""Start a study on a cluster, and follow it: from a laptop that may be closed at any time."""

from __future__ import annotations

import codecs
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from study.cluster.head import SSH_FAILED, Head, find_head
from study.cluster.places import STAMP
from study.cluster.tunnel import RETRY_SECONDS
from study.errors import StudyError

DETACHED = ("python", "-m", "study.cluster.detached")
RETRIES = 120  # about an hour
CHUNK = 65536


def run_file(
    cluster: Path, file: Path, overrides: Sequence[str], *, report: bool, detach: bool
) -> int:
    """Check a study file here, send it to the head, start it there and follow it.

    Doing so again follows the study that runs, or goes on with one that was interrupted.
    """
    from study.planning import build_plan
    from study.read_file import merged_text, read_study_file, refuse_relative_paths

    refuse_relative_paths(file, overrides)
    plan = build_plan(read_study_file(file, overrides))
    command = ["run", "--report" if report else "--no-report"]
    content = merged_text(file, overrides)
    return start(cluster, plan.name, command, content=content, detach=detach)


def start(
    cluster: Path, name: str, command: Sequence[str], *, content: str = "", detach: bool = False
) -> int:
    """Start a command of a study on the head and follow it; gives its exit code."""
    head = find_head(cluster)
    done = head.run([*DETACHED, "start", name, *command], content=content)
    click.echo(done.stdout, nl=False)
    if done.returncode:
        click.echo(done.stderr, nl=False, err=True)
        return done.returncode
    if detach:
        click.echo(f"started; follow it with: study status {name} --cluster {cluster} --follow")
        return 0
    return follow(cluster, name, head=head)


def follow(cluster: Path, name: str, *, head: Head | None = None) -> int:
    """Show a study's output until it ends; a lost connection is taken up where it was lost.

    Should the study have been started anew meanwhile, the new run is shown from its beginning.

    Args:
        head: Of the cluster, if it has just been talked to.

    Returns:
        The study's exit code; 130 when only the following was interrupted.

    Raises:
        StudyError: The head was never reached, or not for an hour.
    """
    if head is None:
        head = find_head(cluster)
        head.run(["true"])
    shown, losses = _Shown(name), 0
    try:
        while True:
            code, count = _stream(head, shown)
            losses = 0 if count else losses
            if code != SSH_FAILED:
                return code
            if losses == 0:
                click.echo(f"{name}: connection lost; it goes on there, trying again", err=True)
            if losses > RETRIES:
                raise StudyError(head.explain("no connection for an hour"))
            time.sleep(RETRY_SECONDS[min(losses, len(RETRY_SECONDS) - 1)])
            losses += 1
    except KeyboardInterrupt:
        again = f"study status {name} --cluster {cluster} --follow"
        click.echo(f"\n{name} goes on on the cluster; follow it again with: {again}", err=True)
        return 130


def show(cluster: Path, command: Sequence[str]) -> int:
    """Run a `study` command on the head and show what it says."""
    done = find_head(cluster).run(["study", *command])
    click.echo(done.stdout, nl=False)
    click.echo(done.stderr, nl=False, err=True)
    return done.returncode


@contextlib.contextmanager
def reached(cluster: Path, names: Sequence[str], port: int = 0) -> Iterator[list[str]]:
    """Addresses, as seen from this machine, of the stores that keep studies of a cluster.

    Raises:
        StudyError: A study is unknown there, or its store cannot be reached from here.
    """
    head = find_head(cluster)
    with contextlib.ExitStack() as tunnels:
        near: dict[str, str] = {}
        found = [_store(head, name) for name in names]
        for uri in found:
            if uri not in near:
                near[uri] = tunnels.enter_context(head.reach(uri, port))
        yield [near[uri] for uri in found]


def _store(head: Head, name: str) -> str:
    """Where a study of the cluster is kept, as the head says it; may hold a password."""
    done = head.run([*DETACHED, "tracking", name])
    if done.returncode:
        raise StudyError(done.stderr.strip().removeprefix("study: ") or f"{name}: the head failed")
    return done.stdout.strip()


def refuse_local(**options: object) -> None:
    """Raise when options that mean this machine are given together with --cluster.

    Raises:
        StudyError: Names the option.
    """
    for name, value in options.items():
        if value is not None:
            option = name.replace("_", "-")
            raise StudyError(f"--{option} is for studies of this machine, not with --cluster")


class _Shown:
    """What has been shown of a study's output: of which run, and how much."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._begin("-")

    @property
    def words(self) -> list[str]:
        """What asks the head for the rest."""
        return [*DETACHED, "follow", self.name, str(self._seen), self._run]

    def start(self, line: bytes) -> None:
        """Take the line that comes before the output: the run's stamp.

        A head of another version may have none: then it is output.
        """
        text = line.decode("ascii", "replace")
        if not text.startswith(STAMP) or not text.endswith("\n"):
            self.show(line)
            return
        run = text.removeprefix(STAMP).strip()
        if run == self._run:
            return
        if self._seen:
            click.echo(f"{self.name} was started anew; its output from the beginning", err=True)
        self._begin(run)

    def show(self, chunk: bytes) -> None:
        """Print some more."""
        self._seen += len(chunk)
        sys.stdout.write(self._text.decode(chunk))
        sys.stdout.flush()

    def _begin(self, run: str) -> None:
        self._run, self._seen = run, 0
        # A chunk may end within a letter.
        self._text = codecs.getincrementaldecoder("utf-8")("replace")


def _stream(head: Head, shown: _Shown) -> tuple[int, int]:
    """Copy what the head says of a study here; its exit code and how many bytes came."""
    process = subprocess.Popen(
        head.command(shown.words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    count = 0
    try:
        shown.start(process.stdout.readline())
        while chunk := process.stdout.read1(CHUNK):  # type: ignore[attr-defined]
            count += len(chunk)
            shown.show(chunk)
        return process.wait(), count
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()

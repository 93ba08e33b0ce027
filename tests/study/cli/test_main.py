"""Tests of the `study` command itself: look-up of commands, errors and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from study.cli.main import COMMAND_SUMMARIES, cli, main
from study.errors import StudyError
from tests.support.command_line import RunCommand

pytestmark = pytest.mark.split


def test_unknown_commands_and_options_are_one_line(study: RunCommand) -> None:
    assert "did you mean 'resume'?" in study("resum").err
    done = study("run", "--sett", "x")
    assert done.code == 2
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("name", COMMAND_SUMMARIES)
def test_every_command_has_a_help_text_and_documented_options(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.help
    options = [p for p in command.params if isinstance(p, click.Option)]
    assert [p.name for p in options if not p.help] == []


def test_the_installed_command_answers() -> None:
    executable = Path(sys.executable).parent / "study"
    done = subprocess.run(
        [str(executable), "--version"], capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0
    assert "study" in done.stdout


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StudyError("a rule\n  over two lines"), 2, "study: a rule over two lines\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (OSError(28, "No space left on device"), 1, "No space left on device\n"),
    ],
    ids=["wrong input", "ctrl-C", "full disk"],
)
def test_errors_have_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "main", fail)
    with pytest.raises(SystemExit) as done:
        main(["status"])
    assert done.value.code == code
    printed = capsys.readouterr().err
    assert printed.endswith(message)
    assert printed.count("\n") == 1

"""The `study` command: a list of commands, and how errors end.

Commands are imported only when they run, so `study --help` is immediate.
"""

from __future__ import annotations

import importlib
import sys

import click

COMMANDS: dict[str, str] = {
    "new": "Write a commented study file to start from.",
    "check": "Validate a study file; print its plan and cost.",
    "run": "Run a study; safe to interrupt.",
    "resume": "Go on with a study after any interruption.",
    "extend": "Go on searching a finished study.",
    "status": "How far a study is.",
    "stop": "Stop a study that runs elsewhere.",
    "sweep": "Paper-style one-at-a-time curves of a knob.",
    "confirm": "Best and published points on the test classes, once.",
    "refine": "Which trials would narrow the answer most; runs them.",
    "claims": "What the papers say, and whether it holds here.",
    "report": "Make the sensitivity report; of several studies a comparison.",
    "ui": "Open MLflow's UI on a study.",
    "import": "Make a study of trials run elsewhere.",
    "losses": "List the losses with their knobs and papers.",
    "datasets": "List the data sets and their options.",
    "doctor": "Check that this machine can run studies.",
}

FILES = {"import": "import_trials"}
"""Commands whose name cannot be a module's."""


class LazyCommands(click.Group):
    """Looks a command up in `study.commands` when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of this name; its module is imported here."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"study.commands.{FILES.get(name, name)}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with a hint at the nearest command."""
        from study.errors import nearest

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"no command {args[0]!r}; {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dml-study", prog_name="study")
def cli() -> None:
    """Hyperparameter studies of deep-metric-learning losses.

    Exit codes: 0 done, 1 the study ran and something in it failed, 2 the input is wrong.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run a command; wrong input ends in one line and exit code 2."""
    from study.errors import StudyError

    try:
        code = cli.main(args=arguments, prog_name="study", standalone_mode=False)
    except StudyError as error:
        _fail(str(error))
    except click.ClickException as error:
        _fail(error.format_message())
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) has seen enough
        sys.exit(0)
    except OSError as error:
        # A full or broken disk stops a study, whose record is in order up to here.
        click.echo(f"study: stopped by the file system: {error}", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    click.echo("study: " + " ".join(message.split()), err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()

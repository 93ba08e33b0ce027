"""Entry point of the `study` command: its list of commands and the exit codes of errors.

A command is imported only when it runs, so that `study --help` is immediate.
"""

from __future__ import annotations

import importlib
import sys

import click

COMMAND_SUMMARIES: dict[str, str] = {
    "new": "Write a commented study file to start from.",
    "check": "Validate a study file; print its plan and cost.",
    "run": "Run a study; safe to interrupt.",
    "resume": "Continue a study after any interruption.",
    "extend": "Add trials to a finished study.",
    "status": "Show the progress of a study, or of all studies.",
    "stop": "Stop a study that runs in another terminal or on a cluster.",
    "sweep": "Vary one hyperparameter at a time, as papers do.",
    "confirm": "Score the best and published points on the test classes.",
    "refine": "Suggest the trials that would narrow the answers most; run them.",
    "claims": "Print the claims of the papers and whether they hold here.",
    "report": "Write the report of a study, or compare several studies.",
    "ui": "Open MLflow's UI on a study.",
    "import": "Make a study from trials that ran elsewhere.",
    "losses": "List the losses with their hyperparameters and papers.",
    "datasets": "List the data sets and their options.",
    "doctor": "Check that this machine can run studies.",
}

COMMAND_MODULES = {"import": "import_trials"}
"""Modules of commands whose name is a Python keyword."""


class LazyCommandGroup(click.Group):
    """Group of commands that imports a command from `study.cli` when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of `study --help`."""
        return list(COMMAND_SUMMARIES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of a command and return its function `<name>_command`."""
        if name not in COMMAND_SUMMARIES:
            return None
        module = importlib.import_module(f"study.cli.{COMMAND_MODULES.get(name, name)}")
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMAND_SUMMARIES.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; the error for an unknown command names the nearest one."""
        from study.errors import suggest_nearest_name

        if args and args[0] not in COMMAND_SUMMARIES and not args[0].startswith("-"):
            raise click.UsageError(
                f"unknown command {args[0]!r}; {suggest_nearest_name(args[0], COMMAND_SUMMARIES)}"
            )
        return super().resolve_command(ctx, args)


@click.group(cls=LazyCommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dml-study", prog_name="study")
def cli() -> None:
    """Hyperparameter studies of deep-metric-learning losses.

    Exit codes: 0 done, 1 something failed while the study ran, 2 the input is wrong.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run a command; wrong input is reported in one line with exit code 2."""
    from study.errors import StudyError

    try:
        code = cli.main(args=arguments, prog_name="study", standalone_mode=False)
    except StudyError as error:
        _exit_with_error(str(error))
    except click.ClickException as error:
        _exit_with_error(error.format_message())
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) closed the pipe
        sys.exit(0)
    except OSError as error:
        # A full or broken disk stops a study; its journal is consistent up to here.
        click.echo(f"study: stopped by the file system: {error}", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _exit_with_error(message: str) -> None:
    click.echo("study: " + " ".join(message.split()), err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()

"""The command ``stategraph``: it imports its commands by name, and turns errors into messages and exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

import click

from stategraph._text.shown import meant
from stategraph.cli._options import Request, common
from stategraph.cli._output import INTERRUPTED, Exit, Failure, error_shape, exit_of, message_of, note

_LOOKING, _CHANGING = "stategraph.cli._looking", "stategraph.cli._changing"
COMMANDS = {
    **dict.fromkeys(("runs", "show", "history", "diff", "watch", "draw", "export"), _LOOKING),
    **dict.fromkeys(("import", "migrate"), _CHANGING),
    "doctor": _LOOKING,
    **dict.fromkeys(("resume", "answer", "send", "fork", "rollback", "cancel", "delete", "prune"), _CHANGING),
    "work": "stategraph.cli._working",
    "ui": "stategraph.web._command",
}
"""The commands in the order of ``--help``, with their modules, which are imported when used."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in COMMANDS:
            ctx.fail(f"No such command {cmd_name!r}. {meant(cmd_name, COMMANDS).capitalize()}".rstrip())
        module = import_module(COMMANDS[cmd_name])
        command: click.Command = getattr(module, "import_" if cmd_name == "import" else cmd_name)
        return command


_EXAMPLES = """
\b
Examples:
  stategraph --store runs.db runs --status failed
  stategraph --store runs.db show review-42
  stategraph answer review-42 yes --graph app.flows:review

The store is the first of --store, --config, STATEGRAPH_STORE, STATEGRAPH_CONFIG and ./graph.toml.
Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 paused, 5 busy or conflict, 6 damaged.
"""


@click.command(cls=_Commands, epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="durable-stategraph", message="%(version)s", help="Show the version.")
@common
def stategraph() -> None:
    """Show, continue and change the runs of a store.

    Commands that only look never change a store.
    """


def run(arguments: Sequence[str] | None) -> int:
    """Run the command; return its exit code. Errors go to stderr, as JSON with --json."""
    request = Request()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack characters
    try:
        result = stategraph.main(arguments, prog_name="stategraph", standalone_mode=False, obj=request)
        sys.stdout.flush()
        return result if isinstance(result, int) else Exit.OK
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # the reader has ended; Python must not write at its end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except Exception as error:  # noqa: BLE001 - every error becomes a message and an exit code
        return _failed(error, request.is_json)


def _failed(error: Exception, is_json: bool) -> int:
    hint = f"Try '{error.ctx.command_path} --help'." if isinstance(error, click.UsageError) and error.ctx else ""
    if isinstance(error, click.ClickException):
        error = Failure(Exit(error.exit_code), error.format_message())
    if is_json:
        print(json.dumps(error_shape(error)), file=sys.stderr)
    else:
        note(f"stategraph: {message_of(error)}")
        if hint:
            note(hint)
    return exit_of(error)

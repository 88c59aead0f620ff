"""The commands, found by their names, and what becomes of their errors."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

import click

from stategraph.cli._asked import Asked, common
from stategraph.cli._exits import INTERRUPTED, Exit, exit_of, told
from stategraph.cli._screen import leave_pipe, note

COMMANDS = """
    runs show history diff watch draw export import migrate doctor
    resume answer fork rollback cancel delete prune work ui
""".split()
"""In the order in which ``--help`` lists them; each is a module of `stategraph.cli._commands`, but for those below."""


_COMMANDS = "stategraph.cli._commands"
_MODULES = {"import": f"{_COMMANDS}.import_", "ui": "stategraph.web._command"}


class _Commands(click.Group):
    """Imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(_MODULES.get(cmd_name, f"{_COMMANDS}.{cmd_name}")).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and name.isalpha() and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, COMMANDS, 1, 0.5)
            ctx.fail(f"there is no command {name!r}{f'; is it {near[0]!r}?' if near else ''}")
        return super().resolve_command(ctx, args)


_EXAMPLES = """
\b
Examples:
  stategraph --store runs.db runs --status failed
  stategraph --store runs.db show review-42
  stategraph answer review-42 yes --graph app.flows:review

The store is that of --store, else of STATEGRAPH_STORE, else of --config, else of ./graph.toml.
Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 paused, 5 busy or conflict, 6 damaged.
"""


def _tell_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(import_module("stategraph").__version__)
        context.exit()


@click.command(cls=_Commands, epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_tell_version, help="Show the version."
)
@common
def stategraph() -> None:
    """See the runs of a store, and take hold of them.

    Looking never changes a store.
    """


def run(arguments: Sequence[str] | None) -> int:
    """Run the command; return its exit code. Errors are told on stderr, in JSON if that is what was asked for."""
    asked = Asked()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # whatever it is that a terminal cannot show
    try:
        result = stategraph.main(arguments, prog_name="stategraph", standalone_mode=False, obj=asked)
        sys.stdout.flush()
        return result if isinstance(result, int) else Exit.OK
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        return _usage(error, asked.is_json)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        leave_pipe()
        return Exit.OK
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told in one line, and the exit code says what
        _tell(error, asked.is_json)
        return exit_of(error)


def _usage(error: click.UsageError, is_json: bool) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        note(error.format_message())
    elif is_json:
        shape = {"code": Exit.USAGE.code, "exit": int(Exit.USAGE), "type": None, "message": error.format_message()}
        print(json.dumps({"error": shape}), file=sys.stderr)
    else:
        where = error.ctx.command_path if error.ctx else "stategraph"
        note(f"stategraph: {error.format_message()}\nTry '{where} --help'.")
    return Exit.USAGE


def _tell(error: Exception, is_json: bool) -> None:
    if is_json:
        print(json.dumps(told(error)), file=sys.stderr)
    else:
        note(f"stategraph: {told(error)['error']['message']}")

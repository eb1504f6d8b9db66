"""The `labctl` command: finds its commands when they are asked for, and turns errors into messages and exit codes.

A command is a file of this folder that holds a function of its own name, or an entry point of the group
`labctl.commands`, which is how the execution side adds its own without being imported from here. Nothing of a command
is imported before it is run: `labctl --help` reads the first lines of the files.
"""

from __future__ import annotations

import ast
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from labctl.errors import LabctlError

EXIT_INTERRUPTED = 130
EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What every command is given. `state` is the folder that holds reports and logs, and the store unless `store` is the
    URL of another database. `broker` is the URL of the Redis to work with; None: a private one."""

    state: Path
    store: str | None = field(default=None, repr=False)
    broker: str | None = field(default=None, repr=False)


class Commands(click.Group):
    """A group whose commands are found lazily, and whose errors are told to people."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names of all commands."""
        return sorted({*_own_commands(), *self._foreign})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of this name, imported now; None when there is none."""
        if cmd_name in _own_commands():
            module = import_module(f"labctl.cli.{_module_name(cmd_name)}")
            return _command(getattr(module, _module_name(cmd_name)))
        if cmd_name in self._foreign:
            return _command(self._foreign[cmd_name].load())
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in the help, from the first line of each command's function."""
        rows = [(name, self._summary(name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Run the command; errors end the process with the exit code of who must act."""
        try:
            return super().invoke(ctx)
        except LabctlError as error:
            click.echo(f"labctl: {error}", err=True)
            ctx.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            click.echo("labctl: interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception:
            click.echo(traceback.format_exc(), err=True)
            click.echo("labctl: this is a bug of labctl; please report it with the lines above", err=True)
            ctx.exit(EXIT_BUG)

    @cached_property
    def _foreign(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group="labctl.commands")}

    def _summary(self, name: str) -> str:
        if name in _own_commands():
            return _summary_of(Path(__file__).with_name(f"{_module_name(name)}.py"), _module_name(name))
        entry = self._foreign[name]
        spec = find_spec(entry.module)
        return _summary_of(Path(spec.origin), entry.attr) if spec is not None and spec.origin else ""


def default_state() -> Path:
    """`$XDG_STATE_HOME/labctl`, or `~/.local/state/labctl` (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "labctl"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="LABCTL_STATE",
    default=default_state,
    show_default="$XDG_STATE_HOME/labctl or ~/.local/state/labctl",
    help="Folder of the store, reports and logs.",
)
@click.option(
    "--store",
    metavar="URL",
    envvar="LABCTL_STORE",
    help="Database of the store; without it, SQLite in the state folder. A URL with a password belongs into LABCTL_STORE.",
)
@click.option(
    "--broker",
    metavar="URL",
    envvar="LABCTL_BROKER",
    help="Redis that several machines share; without it, a private one. A URL with a password belongs into LABCTL_BROKER.",
)
@click.version_option(package_name="labctl", prog_name="labctl")
@click.pass_context
def main(ctx: click.Context, state: Path, store: str | None, broker: str | None) -> None:
    """Measures what the network between virtual machines really delivers.

    Exit codes: 0 done; 1 the campaign ended with failed runs; 2 your input; 3 the lab; 130 interrupted.
    """
    ctx.obj = Context(state=state, store=store or None, broker=broker or None)
    ctx.with_resource(_in_environment("LABCTL_STATE", str(state.absolute())))


@contextmanager
def _in_environment(name: str, value: str) -> Iterator[None]:
    """A variable for as long as the command runs, also for the processes that it starts."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def _module_name(command: str) -> str:
    return command.replace("-", "_")


def _own_commands() -> list[str]:
    """Files of this folder that hold a function of their own name, told without importing them."""
    files = [path for path in Path(__file__).parent.glob("*.py") if path.stem not in ("main", "__init__")]
    return [path.stem.replace("_", "-") for path in files if _function(path, path.stem) is not None]


def _function(path: Path, name: str) -> ast.FunctionDef | None:
    body: Sequence[ast.stmt] = ast.parse(path.read_bytes()).body
    return next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == name), None)


def _summary_of(path: Path, function: str) -> str:
    node = _function(path, function)
    text = ast.get_docstring(node) if node is not None else None
    return text.splitlines()[0] if text else ""


def _command(found: object) -> click.Command:
    if not isinstance(found, click.Command):
        raise TypeError(f"{found!r} is no command")
    return found

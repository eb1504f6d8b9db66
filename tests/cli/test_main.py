from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from labctl.cli.main import Commands, Context, main
from labctl.errors import LabError, SpecError


def run_with(error: BaseException | None, *arguments: str) -> Result:
    """A command line of ours with one command, which raises the error."""

    @click.group(cls=Commands)
    def door() -> None:
        pass

    @click.command()
    def knock() -> None:
        if error is not None:
            raise error

    class Door(Commands):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            return knock if cmd_name == "knock" else None

    door.__class__ = Door
    return CliRunner().invoke(door, ["knock", *arguments])


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (None, 0, ""),
        (SpecError("The file is wrong", todo="mend it"), 2, "What to do: mend it"),
        (LabError("The host is down", kind="host-unreachable"), 3, "The host is down"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (ZeroDivisionError("oops"), 70, "this is a bug of labctl"),
    ],
)
def test_errors_become_messages_and_exit_codes(error: BaseException | None, code: int, words: str) -> None:
    result = run_with(error)
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""
    assert ("Traceback" in result.stderr) == (code == 70)


def test_wrong_options_are_the_users_input() -> None:
    assert run_with(None, "--nonsense").exit_code == 2
    assert CliRunner().invoke(main, ["no-such-command"]).exit_code == 2


def test_help_lists_commands_of_both_sides_with_what_they_do() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.startswith("  ")}
    for name in ("plan", "schema", "lab", "parse"):
        assert len(lines[name].split()) > 3


def test_help_imports_no_command() -> None:
    script = (
        "import sys; from labctl.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "labctl.cli.main" in loaded
    assert not {"labctl.cli.plan", "numpy", "pydantic", "sqlalchemy", "libvirt", "workers.cli.lab"} & set(loaded)


def test_every_command_file_loads() -> None:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None, name
        assert command.name == name


def test_files_without_a_function_of_their_name_are_no_commands() -> None:
    names = main.list_commands(click.Context(main))
    assert "main" not in names
    assert "live" not in names


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("labctl, version ")


def state_of(arguments: list[str], environment: dict[str, str | None]) -> Path:
    seen: list[Context] = []

    class Spy(Commands):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            @click.command()
            @click.pass_obj
            def spy(context: Context) -> None:
                seen.append(context)

            return spy

    group = Spy(name="labctl", params=main.params, callback=main.callback)
    result = CliRunner(env=environment).invoke(group, [*arguments, "spy"])
    assert result.exit_code == 0, result.output
    return seen[0].state


def test_the_state_folder_is_an_option_then_a_variable_then_the_users_own(tmp_path: Path) -> None:
    option, variable = str(tmp_path / "option"), str(tmp_path / "variable")
    assert state_of(["--state", option], {"LABCTL_STATE": variable}) == Path(option)
    assert state_of([], {"LABCTL_STATE": variable}) == Path(variable)
    xdg = {"LABCTL_STATE": None, "XDG_STATE_HOME": str(tmp_path)}
    assert state_of([], xdg) == tmp_path / "labctl"
    home = {"LABCTL_STATE": None, "XDG_STATE_HOME": None, "HOME": os.fspath(tmp_path)}
    assert state_of([], home) == tmp_path / ".local" / "state" / "labctl"

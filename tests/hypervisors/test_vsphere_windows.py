"""PowerShell in Windows guests by VMware Tools: guest operations and `cmd.exe` pretend, what runs behind scripts is real."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import ChannelKind, GuestSystem, Image, ImageKind, Login, SecretRef
from tests.contracts.endpoints import until
from tests.simulators.windows import SimulatedWindows, answered
from tests.simulators.winrm.jobs import NAMES, PACKAGE, Jobs
from tests.simulators.winrm.processes import Context, ScriptFailure
from workers.channels.base import ChannelError
from workers.channels.vmtools import VmToolsChannel
from workers.channels.windows import WindowsChannel
from workers.guard import Guard
from workers.hypervisors.base import Vm
from workers.hypervisors.vsphere import guests
from workers.hypervisors.vsphere.tools_powershell import PARENT, SHELL, ToolsPowerShell, arguments
from workers.powershell.base import Json, Script

SCRIPT = Script(package="workers.channels", name="read-clock", writes=False)
CHANGING = Script(package="workers.channels", name="write-file")

Run = Callable[[str, Mapping[str, Json], Context], Json]


@dataclass
class WindowsTools:
    """Guest operations in a Windows guest whose `cmd.exe` does what the line of arguments says, and nothing else."""

    run: Run
    files: dict[str, bytes] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    started: list[str] = field(default_factory=list)
    not_ready: str = ""
    fails: dict[str, ChannelError] = field(default_factory=dict)
    """What the next operation of a name fails with, when it has been carried out."""
    silent: bool = False
    """Whether programs go on for ever."""

    def __post_init__(self) -> None:
        self._jobs = Jobs(self.run)

    def obstacle(self, *, timeout: float) -> str:
        return self.not_ready

    def make_directory(self, path: str, *, timeout: float) -> None:
        if self.not_ready:
            raise ChannelError("Not now.", kind="channel-unreachable", why="GuestOperationsUnavailable")
        assert path.startswith(PARENT)
        assert path not in self.directories
        self.directories.add(path)
        self._fail("make_directory")

    def remove_directory(self, path: str, *, timeout: float) -> None:
        self.directories = {name for name in self.directories if not name.startswith(path)}
        self.files = {name: content for name, content in self.files.items() if not name.startswith(f"{path}\\")}

    def put_file(self, path: str, content: bytes, *, timeout: float) -> None:
        assert path.rpartition("\\")[0] in self.directories
        self.files[path] = content

    def get_file(self, path: str, *, timeout: float) -> bytes | None:
        return self.files.get(path)

    def start(self, program: str, line: str, *, directory: str, timeout: float) -> int:
        assert (program, line) == (SHELL, arguments()), "the command line never depends on what is asked"
        self.started.append(directory)
        request = self.files.pop(f"{directory}\\in", None)
        if request is not None:
            threading.Thread(target=self._work, args=[directory, request], daemon=True).start()
        self._fail("start")
        return 4711

    def lives(self, pid: int, *, timeout: float) -> bool:
        return pid == 4711

    def _work(self, directory: str, request: bytes) -> None:
        if self.silent:
            return
        answer = answered(request, self._script)
        self.files[f"{directory}\\out"] = b"a profile that talks\r\n" + answer
        self.files[f"{directory}\\err"] = b"#< CLIXML\r\n"
        self.files[f"{directory}\\done"] = b"0\r\n"

    def _script(self, name: str, document: Mapping[str, Json], context: Context) -> Json:
        if context.package == PACKAGE and name in NAMES:
            return self._jobs.script(name, document, context)
        return self.run(name, document, context)

    def _fail(self, operation: str) -> None:
        if operation in self.fails:
            raise self.fails.pop(operation)


def powershell(run: Run, guard: Guard | None = None) -> tuple[ToolsPowerShell, WindowsTools]:
    tools = WindowsTools(run)
    return ToolsPowerShell(where="vm labctl-x", operations=tools, guard=guard or Guard(), host="esx1"), tools


class TestCall:
    def test_v3_an_answer_comes_back_and_nothing_is_left(self) -> None:
        """V3: Windows, with output by files and clean-up."""
        shell, tools = powershell(lambda name, document, _: {"name": name, "got": dict(document)})
        answer = shell.call(SCRIPT, {"text": 'ä "$(x)" %P% !P!', "number": 2**40}, timeout=10)
        assert answer == {"name": "read-clock", "got": {"text": 'ä "$(x)" %P% !P!', "number": 2**40}}
        assert (tools.directories, tools.files) == (set(), {})

    def test_an_error_of_the_script_is_its_own(self) -> None:
        def fail(*_: object) -> Json:
            raise ScriptFailure("not-found", "There is no such file.")

        shell, tools = powershell(fail)
        with pytest.raises(LabError, match="failed on vm labctl-x") as caught:
            shell.call(SCRIPT, {}, timeout=10)
        assert caught.value.kind == "not-found"
        assert caught.value.host == "esx1"
        assert tools.directories == set()

    def test_v3_a_script_whose_start_was_lost_runs_once(self) -> None:
        """V3, V2: started again, it sees that it was started."""
        ran: list[str] = []

        def run(name: str, *_: object) -> Json:
            ran.append(name)
            return {}

        shell, tools = powershell(run)
        tools.fails["start"] = ChannelError("The answer was lost.", kind="channel-unreachable")
        shell.call(CHANGING, {}, timeout=30)
        assert ran == ["write-file"]
        assert len(tools.started) == 2

    def test_v3_a_script_that_does_not_end_is_a_timeout(self) -> None:
        """V3: bounded."""
        shell, tools = powershell(lambda *_: {})
        tools.silent = True
        with pytest.raises(LabError) as caught:
            shell.call(SCRIPT, {}, timeout=0.2)
        assert caught.value.kind == "timeout"
        assert tools.directories == set()

    def test_v3_tools_that_are_not_ready_say_why(self) -> None:
        """V3: what Tools say of themselves says more than the fault of an operation."""
        shell, tools = powershell(lambda *_: {})
        tools.not_ready = "VMware Tools don't run in it (guestToolsNotRunning)."
        with pytest.raises(LabError) as caught:
            shell.call(SCRIPT, {}, timeout=0.1)
        assert (caught.value.kind, caught.value.why) == ("unreachable", tools.not_ready)

    def test_a_cancel_is_seen(self) -> None:
        guard = Guard()
        shell, tools = powershell(lambda *_: {}, guard)
        tools.silent = True
        cancel = threading.Timer(0.2, guard.stop, ["enough"])
        cancel.start()
        with pytest.raises(AttemptCancelled):
            shell.call(SCRIPT, {}, timeout=600)
        cancel.join()
        assert tools.directories == set()

    def test_v3_what_could_not_be_removed_is_removed_at_the_end(self) -> None:
        """V3: a directory that nobody knew to be there."""
        shell, tools = powershell(lambda *_: {})
        tools.fails["make_directory"] = ChannelError("The answer was lost.", kind="channel-unreachable")
        shell.call(SCRIPT, {}, timeout=30)
        assert len(tools.directories) == 1
        shell.close()
        assert tools.directories == set()


def test_the_line_of_arguments_fits_and_has_no_text_of_others() -> None:
    """`cmd.exe` takes 8191 characters. The script in it is one word in base64, which `!` and `%` do nothing to."""
    line = arguments()
    assert len(line) < 8191
    assert line.count("!") == 2
    assert "%" not in line
    assert shlex.split(line)[:3] == ["/d", "/v:on", "/c"]


class TestChannel:
    """The channel into Windows, carried by Tools."""

    @pytest.fixture
    def machine(self, tmp_path: Path) -> Iterator[SimulatedWindows]:
        made = SimulatedWindows(tmp_path)
        yield made
        until(lambda: made.processes() == [], f"an end of {made.processes()}")

    @pytest.fixture
    def channel(self, machine: SimulatedWindows) -> Iterator[WindowsChannel]:
        shell, tools = powershell(machine.run)
        made = WindowsChannel(endpoint="vm labctl-x", powershell=shell, guard=Guard())
        yield made
        made.close()
        assert tools.directories == set()
        assert machine.folders() == []

    def test_v3_commands_files_and_the_clock(self, channel: WindowsChannel) -> None:
        """V3: Windows."""
        assert channel.wait_ready(timeout=10) >= 0
        result = channel.run(["sh", "-c", "cat; echo err >&2; exit 7"], timeout=30, stdin=b"in")
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"in", b"err\n")
        channel.write_file("C:\\file", b"\0content" * 1000, timeout=30)
        assert channel.read_file("C:\\file", timeout=30) == b"\0content" * 1000
        offset = channel.clock(timeout=30)
        assert abs(offset.seconds) <= offset.uncertainty + 0.01

    def test_v3_a_command_that_outlives_the_call(self, channel: WindowsChannel) -> None:
        """V3: started, asked for, and ended."""
        process = channel.start(["sh", "-c", "echo begun; sleep 1000"], lifetime=60)
        until(lambda: process.output()[0] == b"begun\n", "its first line")
        assert not process.finished()
        process.kill()
        assert process.finished()


class TestChoice:
    """Which channel an image gets."""

    def channel(self, vm_address: Any = None, **image: Any) -> Any:
        login = Login(user="admin", password=SecretRef(scheme="env", locator="NOWHERE"))
        inside = guests.Inside(
            vm=Vm(name="labctl-x", uuid="u", host="a", mac="m", address=vm_address),
            session=lambda: pytest.fail("nobody is asked"),
            machine=lambda: pytest.fail("nobody is asked"),
        )
        values = {"name": "i", "kind": ImageKind.TEMPLATE, "login": login} | image
        return guests.channel(inside, Image(**values), Guard())

    def test_tools_by_the_system_of_the_guest(self) -> None:
        assert isinstance(self.channel(channel=ChannelKind.VMTOOLS), VmToolsChannel)
        windows = self.channel(channel=ChannelKind.VMTOOLS, system=GuestSystem.WINDOWS)
        assert isinstance(windows, WindowsChannel)
        assert isinstance(windows.powershell, ToolsPowerShell)

    @pytest.mark.parametrize(
        ("image", "words"),
        [
            ({"channel": ChannelKind.VMTOOLS, "login": None}, "login"),
            ({"channel": ChannelKind.WINRM}, "no address yet"),
            ({"channel": ChannelKind.SSH}, "no address yet"),
            ({"channel": ChannelKind.POWERSHELL_DIRECT}, "vmtools, ssh or winrm"),
        ],
    )
    def test_what_is_missing_is_said(self, image: Any, words: str) -> None:
        with pytest.raises(ChannelError) as caught:
            self.channel(**image)
        assert caught.value.kind == "channel-refused"
        assert words in f"{caught.value.why} {caught.value.todo}"

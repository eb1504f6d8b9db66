"""What the channel into Windows promises, with real processes and files behind scripts that only pretend to be PowerShell:
without a wire, and by WinRM as it is spoken."""

from __future__ import annotations

import random
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import Login, SecretRef, WinrmAccess
from tests.contracts.endpoints import free_port, listens, until
from tests.simulators.windows import SimulatedPowerShell, SimulatedWindows
from tests.simulators.winrm import WinrmEndpoint
from workers.channels import windows, windows_calls, windows_process
from workers.channels.base import Channel, ChannelError
from workers.channels.windows import WindowsChannel
from workers.channels.winrm import winrm_channel
from workers.guard import Guard

pytestmark = pytest.mark.skipif(shutil.which("iperf3") is None, reason="needs iperf3")

AWKWARD = [
    "",
    " ",
    "two words",
    "it's",
    'say "x"',
    "$(x)",
    "`x`",
    "a;b&c|d>e",
    "line\nbreak\n",
    "tab\t",
    "ä€😀",
    "a\\",
    '\\"',
    "%P%",
]


class Bench:
    """A channel, the guard that it obeys, and the machine behind it as seen from outside."""

    def __init__(self, machine: SimulatedWindows, channel: WindowsChannel, guard: Guard) -> None:
        self.machine = machine
        self.channel = channel
        self.guard = guard

    def open(self, guard: Guard) -> WindowsChannel:
        """Another channel into the same machine."""
        powershell = SimulatedPowerShell(self.machine.run)
        return WindowsChannel(endpoint="vm under test", powershell=powershell, guard=guard)


@contextmanager
def bare(machine: SimulatedWindows, guard: Guard) -> Iterator[WindowsChannel]:
    powershell = SimulatedPowerShell(machine.run)
    channel = WindowsChannel(endpoint="vm under test", powershell=powershell, guard=guard)
    yield channel
    channel.close()
    assert powershell.closed == 1


@contextmanager
def over_winrm(machine: SimulatedWindows, guard: Guard) -> Iterator[WindowsChannel]:
    with WinrmEndpoint(machine.run, host="guest", users={"admin": "pw"}) as endpoint:
        login = Login(user="admin", password=SecretRef(scheme="env", locator="LABCTL_TEST_GUEST_PASSWORD"))
        channel = winrm_channel(
            WinrmAccess(url=endpoint.url, login=login), endpoint="vm under test", guard=guard, host="hv1"
        )
        yield channel
        channel.close()


@pytest.fixture(params=[bare, pytest.param(over_winrm, marks=pytest.mark.services)], ids=["bare", "winrm"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("LABCTL_TEST_GUEST_PASSWORD", "pw")
    machine, guard = SimulatedWindows(tmp_path), Guard()
    with request.param(machine, guard) as channel:
        yield Bench(machine, channel, guard)
    until(lambda: machine.processes() == [], f"an end of {machine.processes()}")
    assert machine.folders() == []


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Bench]:
    """Without a wire."""
    machine, guard = SimulatedWindows(tmp_path), Guard()
    with bare(machine, guard) as channel:
        yield Bench(machine, channel, guard)


def test_it_is_a_channel(alone: Bench) -> None:
    channel: Channel = alone.channel
    assert channel.endpoint == "vm under test"


class TestRun:
    def test_the_exit_code_and_both_outputs_are_the_commands(self, bench: Bench) -> None:
        result = bench.channel.run(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout=20)
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
        with pytest.raises(ChannelError, match="the echo failed with exit code 7"):
            result.require("the echo")

    def test_arguments_and_bytes_of_any_code_page_arrive_as_they_are(self, bench: Bench) -> None:
        """H12: nothing on the way means anything."""
        result = bench.channel.run(["printf", "%s\\0", *AWKWARD], timeout=20)
        assert result.stdout.decode().split("\0") == [*AWKWARD, ""]
        assert bench.channel.run(["printf", r"\204\377\r\n\0"], timeout=20).stdout == b"\x84\xff\r\n\0"

    @pytest.mark.parametrize("size", [1, 200_000, windows.WRITE_CHUNK * 2 + 1])
    def test_input_and_output_of_any_size_arrive_byte_for_byte(self, bench: Bench, size: int) -> None:
        content = random.Random(size).randbytes(size)
        result = bench.channel.run(["sh", "-c", "cat; echo end >&2"], timeout=60, stdin=content)
        assert result.stdout == content
        assert result.stderr == b"end\n"

    def test_output_that_is_read_as_a_file_is_whole(self, alone: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(windows_calls, "READ_CHUNK", 400_000)
        content = random.Random(1).randbytes(3_000_001)
        (alone.machine.root / "content").write_bytes(content)
        result = alone.channel.run(["cat", str(alone.machine.root / "content")], timeout=60)
        assert result.stdout == content

    def test_a_missing_program_is_9009(self, alone: Bench) -> None:
        missing = alone.channel.run(["labctl-no-such-program"], timeout=20)
        assert missing.exit_code == 9009
        assert b"labctl-no-such-program" in missing.stderr

    @pytest.mark.parametrize("argv", [[], [""], ["-x"], ["echo", "a\0b"], ['a"b']])
    def test_what_is_no_command_is_a_bug_of_the_callers(self, alone: Bench, argv: list[str]) -> None:
        with pytest.raises(ValueError, match=r"command|NUL"):
            alone.channel.run(argv, timeout=5)

    def test_at_the_deadline_the_whole_process_tree_is_killed(self, bench: Bench) -> None:
        script = "trap '' TERM; sleep 1001 & setsid sleep 1002 & while :; do sleep 1005; done"
        with pytest.raises(ChannelError, match="sh did not end within 1 s in vm under test") as caught:
            bench.channel.run(["sh", "-c", script], timeout=1)
        assert caught.value.kind == "channel-timeout"
        assert "was killed" in caught.value.why
        assert bench.machine.processes() == []

    @pytest.mark.parametrize("quiet", [0.0, 60.0])
    def test_a_cancel_ends_the_wait_and_the_command(
        self, alone: Bench, quiet: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(windows_process, "ROUND_SECONDS", 0.2)
        stopping = threading.Timer(0.5, alone.guard.stop, ["the user said so"])
        stopping.start()
        with pytest.raises(AttemptCancelled, match="the user said so"):
            alone.channel.run(["sleep", "1000"], timeout=60, quiet=quiet)
        stopping.join()
        until(lambda: alone.machine.processes() == [], "the end of the command")

    def test_nothing_is_asked_while_it_is_quiet(self, alone: Bench) -> None:
        result = alone.channel.run(["sh", "-c", "sleep 0.2; echo x"], timeout=20, quiet=0.6)
        assert result.stdout == b"x\n"
        assert alone.machine.scripts.count("look-command") == 1

    def test_two_threads_get_their_own_results(self, bench: Bench) -> None:
        results: dict[int, list[bytes]] = {0: [], 1: []}

        def work(thread: int) -> None:
            for number in range(5):
                results[thread].append(bench.channel.run(["echo", str(thread), str(number)], timeout=30).stdout)

        threads = [threading.Thread(target=work, args=[number]) for number in results]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, outputs in results.items():
            assert outputs == [f"{number} {n}\n".encode() for n in range(5)]


class TestStart:
    def test_a_server_is_ready_when_start_returns_and_gone_after_kill(self, bench: Bench) -> None:
        port = free_port()
        server = bench.channel.start(["iperf3", "-s", "-p", str(port)], lifetime=60, ready_port=port)
        assert listens(port)
        assert not server.finished()
        assert server.pid in bench.machine.processes()
        server.kill()
        assert not listens(port)
        assert server.finished()
        assert server.wait(timeout=5).exit_code == 1
        server.kill()

    def test_a_taken_port_is_an_error_at_once(self, alone: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ChannelError, match="iperf3 was not started in vm under test") as caught:
                alone.channel.start(["iperf3", "-s", "-p", str(port)], lifetime=60, ready_port=port)
        assert (caught.value.kind, f"port {port}" in caught.value.why) == ("command-failed", True)
        assert alone.machine.folders() == []

    def test_a_server_that_ends_at_once_is_an_error_with_its_words(self, alone: Bench) -> None:
        with pytest.raises(ChannelError, match="sh did not start") as caught:
            alone.channel.start(["sh", "-c", "echo no such device >&2; exit 3"], lifetime=60, ready_port=free_port())
        assert "exit code 3" in caught.value.why
        assert "no such device" in caught.value.why

    def test_a_server_that_never_listens_is_ended(self, alone: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(windows, "READY_SECONDS", 0.3)
        with pytest.raises(ChannelError, match="did not start") as caught:
            alone.channel.start(["sh", "-c", "echo thinking; sleep 1000"], lifetime=60, ready_port=free_port())
        assert "did not listen" in caught.value.why
        assert "thinking" in caught.value.why
        assert alone.machine.processes() == []

    def test_a_program_that_is_not_there_is_told(self, alone: Bench) -> None:
        with pytest.raises(ChannelError, match="did not start") as caught:
            alone.channel.start(["labctl-no-such-program"], lifetime=60)
        assert "9009" in caught.value.why

    def test_without_a_port_it_returns_at_once_and_output_grows(self, bench: Bench) -> None:
        process = bench.channel.start(["sh", "-c", "echo one; sleep 1; echo two; echo bad >&2; exit 4"], lifetime=60)
        until(lambda: process.output() == (b"one\n", b""), "the first line")
        with pytest.raises(ChannelError) as caught:
            process.wait(timeout=0.1)
        assert caught.value.kind == "channel-timeout"
        result = process.wait(timeout=20, quiet=0.5)
        assert (result.exit_code, result.stdout, result.stderr) == (4, b"one\ntwo\n", b"bad\n")
        assert process.wait(timeout=1) is result
        assert process.output() == (b"one\ntwo\n", b"bad\n")

    def test_after_its_lifetime_the_endpoint_ends_it_with_all_its_children(self, alone: Bench) -> None:
        script = "trap '' TERM; setsid sleep 1001 & sleep 1002 & while :; do sleep 1003; done"
        process = alone.channel.start(["sh", "-c", script], lifetime=0.5)
        assert process.wait(timeout=20).exit_code == 1
        assert alone.machine.processes() == []

    def test_closing_the_channel_ends_what_it_started_after_a_cancel_too(self, bench: Bench) -> None:
        guard = Guard()
        channel = bench.open(guard)
        one = channel.start(["sleep", "1001"], lifetime=60)
        channel.start(["sleep", "1002"], lifetime=60)
        assert len(bench.machine.processes()) == 2
        guard.stop("enough")
        with pytest.raises(AttemptCancelled):
            one.wait(timeout=10)
        one.kill()
        channel.close()
        assert bench.machine.processes() == []
        assert bench.machine.folders() == []

    def test_what_vanished_from_the_endpoint_is_an_error(self, alone: Bench) -> None:
        process = alone.channel.start(["true"], lifetime=60)
        for folder in alone.machine.folders():
            shutil.rmtree(folder)
        with pytest.raises(ChannelError, match="gone") as caught:
            process.wait(timeout=5)
        assert caught.value.kind == "command-failed"
        with pytest.raises(ChannelError, match="gone"):
            process.output()

    def test_a_supervisor_that_fails_says_why(self, alone: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        def break_it() -> None:
            raise OSError("no room on the disk")

        alone.machine.before["supervise-command"] = break_it
        monkeypatch.setattr(windows, "STARTING_SECONDS", 0.3)
        monkeypatch.setattr(windows_process, "STARTING_SECONDS", 0.3)
        with pytest.raises(ChannelError, match="could not be started") as caught:
            alone.channel.start(["true"], lifetime=60)
        assert caught.value.why == "no room on the disk"
        with pytest.raises(ChannelError) as caught:
            alone.channel.run(["true"], timeout=20, quiet=0.4)
        assert caught.value.why == "no room on the disk"


class TestFiles:
    @pytest.mark.parametrize("size", [0, 10, windows.WRITE_CHUNK + 7])
    def test_a_file_is_written_and_read_byte_for_byte(self, bench: Bench, size: int) -> None:
        content, path = random.Random(size).randbytes(size), "C:\\file ä $(x)"
        bench.channel.write_file(path, b"old" * 10, timeout=20)
        bench.channel.write_file(path, content, timeout=60, mode=0o750)
        assert bench.channel.read_file(path, timeout=60) == content
        assert [each.name for each in bench.machine.root.iterdir() if each.is_file()] == ["file ä $(x)"]

    def test_a_missing_file_is_an_error_that_names_it(self, alone: Bench) -> None:
        with pytest.raises(ChannelError, match="nothing") as caught:
            alone.channel.read_file("C:\\nothing", timeout=10)
        assert caught.value.kind == "command-failed"

    @pytest.mark.parametrize("path", ["C:\\nowhere\\file", "C:\\folder"])
    def test_a_file_that_can_not_be_written_is_an_error(self, alone: Bench, path: str) -> None:
        (alone.machine.root / "folder").mkdir()
        with pytest.raises(ChannelError, match="could not be written") as caught:
            alone.channel.write_file(path, b"x", timeout=10)
        assert caught.value.why

    def test_a_file_that_changes_while_it_is_read_is_no_mixture(
        self, alone: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(windows_calls, "READ_CHUNK", 5)
        file = alone.machine.root / "file"
        file.write_bytes(b"a" * 10)

        def change() -> None:
            file.write_bytes(random.Random(time.monotonic()).randbytes(10))

        alone.machine.before["read-file"] = change
        with pytest.raises(ChannelError, match="could not be read") as caught:
            alone.channel.read_file("C:\\file", timeout=10)
        assert "changed" in caught.value.why


def test_the_clock_of_this_machine_is_that_of_this_machine(bench: Bench) -> None:
    offset = bench.channel.clock(timeout=10)
    assert 0 < offset.uncertainty < 5
    assert abs(offset.seconds) <= offset.uncertainty + 0.001


class TestReady:
    def test_it_is_waited_for_until_it_is_there(self, alone: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(windows, "RETRY_SECONDS", 0.05)
        powershell = alone.channel.powershell
        assert isinstance(powershell, SimulatedPowerShell)
        powershell.fails["read-clock"] = LabError("It does not answer.", kind="unreachable", why="no route")
        with pytest.raises(ChannelError, match=r"vm under test did not answer within 0\.2 s") as caught:
            alone.channel.wait_ready(timeout=0.2)
        assert (caught.value.kind, "no route" in caught.value.why) == ("channel-unreachable", True)
        booting = threading.Timer(0.2, powershell.fails.clear)
        booting.start()
        assert alone.channel.wait_ready(timeout=10) > 0.1
        booting.join()

    def test_a_refused_login_is_told_at_once(self, alone: Bench) -> None:
        powershell = alone.channel.powershell
        assert isinstance(powershell, SimulatedPowerShell)
        powershell.fails["read-clock"] = LabError("The login is refused.", kind="refused", todo="Correct it.")
        with pytest.raises(ChannelError, match="refused") as caught:
            alone.channel.wait_ready(timeout=60)
        assert (caught.value.kind, caught.value.todo) == ("channel-refused", "Correct it.")

    @pytest.mark.parametrize(
        ("kind", "told"),
        [("unreachable", "channel-unreachable"), ("timeout", "channel-timeout"), ("quota", "channel-refused")],
    )
    def test_errors_on_the_way_are_those_of_a_channel(self, alone: Bench, kind: str, told: str) -> None:
        powershell = alone.channel.powershell
        assert isinstance(powershell, SimulatedPowerShell)
        powershell.fails["begin-command"] = LabError("x", kind=kind)
        with pytest.raises(ChannelError) as caught:
            alone.channel.run(["true"], timeout=5)
        assert caught.value.kind == told


@pytest.mark.services
def test_a_connection_that_is_cut_loses_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H2: the command goes on, and is found again."""
    monkeypatch.setenv("LABCTL_TEST_GUEST_PASSWORD", "pw")
    machine = SimulatedWindows(tmp_path)
    with WinrmEndpoint(machine.run, host="guest", users={"admin": "pw"}) as endpoint:
        login = Login(user="admin", password=SecretRef(scheme="env", locator="LABCTL_TEST_GUEST_PASSWORD"))
        channel = winrm_channel(WinrmAccess(url=endpoint.url, login=login), endpoint="vm", guard=Guard())
        process = channel.start(["sh", "-c", "sleep 0.5; echo done"], lifetime=60)
        endpoint.cut_connections()
        assert process.wait(timeout=20).stdout == b"done\n"
        assert machine.scripts.count("supervise-command") == 1
        channel.close()

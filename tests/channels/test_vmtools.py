"""What the channel of VMware Tools makes of Tools that are not ready, fail half way, restart, or never answer."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from labctl.errors import AttemptCancelled
from tests.contracts.endpoints import Endpoint, SocketTools, new_home, start_tools, tools_endpoint, until
from workers.channels.base import ChannelError
from workers.channels.vmtools import VmToolsChannel
from workers.guard import Guard

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root"),
    pytest.mark.skipif(shutil.which("busybox") is None, reason="needs busybox"),
]


@dataclass(frozen=True)
class Bench:
    """A guest with Tools, a channel into it, and what tests can do to the guest operations in between."""

    endpoint: Endpoint
    tools: SocketTools
    channel: VmToolsChannel
    guard: Guard


@contextmanager
def a_guest(*, busybox: bool = False) -> Iterator[Bench]:
    with new_home() as home:
        endpoint = tools_endpoint(home, busybox=busybox)
        tools = SocketTools(endpoint)
        guard = Guard()
        channel = VmToolsChannel(endpoint="vm labctl-x", operations=tools, guard=guard)
        try:
            start_tools(endpoint)
            yield Bench(endpoint, tools, channel, guard)
            channel.close()
        finally:
            endpoint.stop()


@pytest.fixture
def guest() -> Iterator[Bench]:
    with a_guest() as bench:
        yield bench


@dataclass
class Failing:
    """Lets an operation fail so many times, before it does anything or after it has done all."""

    operation: str
    kind: str
    times: int = 1
    asked: list[str] = field(default_factory=list)

    def __call__(self, operation: str) -> None:
        self.asked.append(operation)
        if operation == self.operation and self.times:
            self.times -= 1
            raise ChannelError("It did not work.", kind=self.kind, why="the test said so")


def answers_lost(tools: SocketTools, operation: str) -> None:
    """From now on the next answer of this operation is lost: it was carried out, and nobody knows."""
    real: Callable[..., object] = getattr(tools, operation)

    def lose(*arguments: object, **more: object) -> object:
        setattr(tools, operation, real)
        real(*arguments, **more)
        raise ChannelError("The answer was lost.", kind="channel-unreachable")

    setattr(tools, operation, lose)


class TestReady:
    def test_v3_tools_that_run_are_not_taken_for_ready(self, guest: Bench) -> None:
        """V3: guest operations say themselves when they are possible; that Tools run is not enough."""
        answers = ["VMware Tools run, but guest operations are not ready.", "They are not ready.", ""]
        guest.tools.obstacle = lambda *, timeout: answers.pop(0)  # type: ignore[method-assign]
        assert guest.channel.wait_ready(timeout=30) > 1.0
        assert answers == []

    def test_v3_tools_that_never_get_ready_are_an_error_that_says_why(self, guest: Bench) -> None:
        """V3: bounded. Tools not running."""
        guest.tools.obstacle = lambda *, timeout: "VMware Tools are not running."  # type: ignore[method-assign]
        with pytest.raises(ChannelError, match=r"labctl-x were not ready within 0\.2 s") as caught:
            guest.channel.wait_ready(timeout=0.2)
        assert caught.value.kind == "channel-unreachable"
        assert caught.value.why == "VMware Tools are not running."
        assert "open-vm-tools" in caught.value.todo

    def test_a_vcenter_out_of_reach_is_waited_for_and_a_refused_login_is_not(self, guest: Bench) -> None:
        guest.tools.before = Failing("obstacle", "channel-unreachable", 1)
        assert guest.channel.wait_ready(timeout=30) >= 0
        guest.tools.before = Failing("obstacle", "channel-refused", 1)
        with pytest.raises(ChannelError) as caught:
            guest.channel.wait_ready(timeout=30)
        assert caught.value.kind == "channel-refused"


class TestOneScript:
    def test_v3_the_exit_code_survives_a_restart_of_tools(self, guest: Bench) -> None:
        """V3: Tools keep exit codes for five minutes, and in their memory; ours is in a file."""

        def restart() -> None:
            guest.endpoint.stop_server()
            start_tools(guest.endpoint)

        restarting = threading.Timer(0.3, restart)
        restarting.start()
        result = guest.channel.run(["sh", "-c", "sleep 1; echo x; exit 7"], timeout=30)
        restarting.join()
        assert (result.exit_code, result.stdout) == (7, b"x\n")

    def test_v3_nobody_else_can_read_what_is_on_its_way(self, guest: Bench) -> None:
        """V3: a directory for each script, with mode 0700, and gone when its output is here."""
        seen = guest.channel.run(["sh", "-c", "stat -c '%a %n' /tmp/labctl-*"], timeout=10)
        modes = [line.split()[0] for line in seen.stdout.decode().splitlines()]
        assert modes == ["700", "700"]
        assert guest.endpoint.leftovers() == []

    def test_v3_a_command_whose_result_can_not_be_fetched_is_ended(self, guest: Bench) -> None:
        """V3: cleaned up on every path."""
        looks = Failing("get_file", "command-failed")
        guest.tools.before = lambda operation: looks(operation) if "sleep 1000" in guest.endpoint.commands() else None
        with pytest.raises(ChannelError, match="It did not work") as caught:
            guest.channel.run(["sleep", "1000"], timeout=30)
        assert caught.value.kind == "command-failed"
        assert guest.endpoint.leftovers() == []
        until(lambda: guest.endpoint.commands() == [], f"an end of {guest.endpoint.commands()}")

    @pytest.mark.parametrize("operation", ["make_directory", "put_file", "start"])
    def test_v3_whatever_fails_nothing_is_left(self, guest: Bench, operation: str) -> None:
        """V3: cleaned up on every path."""
        guest.tools.before = Failing(operation, "command-failed")
        with pytest.raises(ChannelError, match="It did not work") as caught:
            guest.channel.run(["sleep", "1000"], timeout=10)
        assert caught.value.kind == "command-failed"
        assert guest.endpoint.leftovers() == []
        until(lambda: guest.endpoint.commands() == [], f"an end of {guest.endpoint.commands()}")

    @pytest.mark.parametrize("operation", ["make_directory", "put_file", "start", "get_file"])
    def test_a_guest_that_is_away_for_a_moment_is_waited_for(self, guest: Bench, operation: str) -> None:
        """As VMs are that arrive at another host."""
        guest.tools.before = Failing(operation, "channel-unreachable", 2)
        assert guest.channel.run(["echo", "x"], timeout=30).stdout == b"x\n"
        guest.channel.close()
        assert guest.endpoint.leftovers() == []

    @pytest.mark.parametrize("operation", ["make_directory", "put_file", "start"])
    def test_a_command_whose_answer_was_lost_runs_once(self, guest: Bench, operation: str) -> None:
        """V3, V2: what was carried out is not carried out again because nobody knows."""
        answers_lost(guest.tools, operation)
        result = guest.channel.run(["sh", "-c", "echo x >>/tmp/count; cat /tmp/count"], timeout=30)
        assert result.stdout == b"x\n"
        guest.channel.close()
        assert guest.endpoint.leftovers() == ["count"]

    def test_a_launcher_that_comes_late_does_nothing(self, guest: Bench) -> None:
        """V2: also when all is being removed, as after a start that was made twice."""
        late: list[str] = []

        def stay(path: str, *, timeout: float) -> None:
            late.append(path)

        real = guest.tools.remove_directory
        guest.tools.remove_directory = stay  # type: ignore[method-assign]
        guest.channel.run(["sh", "-c", "echo x >>/tmp/count"], timeout=30)
        (directory,) = late
        guest.tools.start("/bin/sh", "go", directory=directory, timeout=10)
        pid = guest.tools.start("/bin/sh", "gone", directory=directory, timeout=10)
        until(lambda: not guest.tools.lives(pid, timeout=10), "its end")
        assert (guest.endpoint.tmp / "count").read_text() == "x\n"
        real(directory, timeout=10)

    def test_a_login_that_was_refused_is_hardly_tried_again(self, guest: Bench) -> None:
        """Accounts lock after a few wrong passwords."""
        refusals = Failing("make_directory", "channel-refused", times=100)
        guest.tools.before = refusals
        with pytest.raises(ChannelError) as caught:
            guest.channel.run(["true"], timeout=10)
        assert caught.value.kind == "channel-refused"
        guest.channel.close()
        assert len(refusals.asked) <= 3

    def test_what_could_not_be_removed_is_removed_at_the_end(self, guest: Bench) -> None:
        guest.tools.before = Failing("remove_directory", "channel-unreachable")
        guest.channel.run(["true"], timeout=10)
        assert len(guest.endpoint.leftovers()) == 1
        guest.channel.close()
        assert guest.endpoint.leftovers() == []

    def test_a_launcher_that_is_killed_is_noticed(self, guest: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """V3: its last file would never come, and the deadline may be hours away."""
        monkeypatch.setattr("workers.channels.guest_launch.LIFE_SECONDS", 0.2)

        def kill() -> None:
            for pid in launchers(guest.endpoint):
                os.kill(pid, signal.SIGKILL)

        killing = threading.Timer(0.5, kill)
        killing.start()
        with pytest.raises(ChannelError, match="vanished") as caught:
            guest.channel.run(["sleep", "1000"], timeout=3600)
        killing.join()
        assert caught.value.kind == "channel-unreachable"

    def test_a_result_that_is_not_whole_is_no_short_result(self, guest: Bench) -> None:
        real = guest.tools.get_file

        def cut(path: str, *, timeout: float) -> bytes | None:
            content = real(path, timeout=timeout)
            return content and content[:-1]

        guest.tools.get_file = cut  # type: ignore[method-assign]
        with pytest.raises(ChannelError, match="lost on its way") as caught:
            guest.channel.run(["echo", "x"], timeout=10)
        assert caught.value.kind == "command-failed"
        assert guest.endpoint.leftovers() == []

    def test_looks_get_rarer_and_a_quiet_time_has_none(self, guest: Bench) -> None:
        guest.channel.run(["sleep", "1.5"], timeout=20)
        assert guest.tools.asked.count("get_file") < 12
        guest.tools.asked.clear()
        guest.channel.run(["sleep", "1"], timeout=20, quiet=1.5)
        assert guest.tools.asked.count("get_file") == 1


class TestSilence:
    def test_v3_a_guest_that_hangs_is_a_timeout(self, guest: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """V3: bounded."""
        monkeypatch.setattr("workers.channels.guest_launch.GRACE", 0.2)
        guest.channel.run(["true"], timeout=10)
        guest.endpoint.signal(signal.SIGSTOP)
        try:
            with pytest.raises(ChannelError) as caught:
                guest.channel.run(["echo", "late"], timeout=0.5)
            assert caught.value.kind == "channel-timeout"
        finally:
            guest.endpoint.signal(signal.SIGCONT)
        assert guest.channel.run(["echo", "x"], timeout=10).stdout == b"x\n"
        guest.channel.close()
        until(lambda: guest.endpoint.leftovers() == [], f"an end of {guest.endpoint.leftovers()}")

    def test_a_cancel_does_not_wait_for_a_guest_that_hangs(self, guest: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("workers.channels.guest_launch.CLEAN_UP_SECONDS", 0.5)
        monkeypatch.setattr("workers.channels.guest_launch.GRACE", 0.2)
        guest.channel.clean_up_seconds = 0.5
        guest.endpoint.signal(signal.SIGSTOP)
        cancel = threading.Timer(0.2, guest.guard.stop, ["enough"])
        cancel.start()
        began = time.monotonic()
        try:
            with pytest.raises(AttemptCancelled):
                guest.channel.run(["true"], timeout=300)
            assert time.monotonic() - began < 60
        finally:
            guest.endpoint.signal(signal.SIGCONT)
            cancel.join()


def test_v3_a_guest_with_busybox_only() -> None:
    """V3: the launcher needs no more than busybox has."""
    with a_guest(busybox=True) as guest:
        result = guest.channel.run(["sh", "-c", "cat; echo $0 >&2; exit 3"], timeout=10, stdin=b"\0\xff" * 100)
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"\0\xff" * 100, b"sh\n")
        offset = guest.channel.clock(timeout=20)
        assert abs(offset.seconds) <= offset.uncertainty + 0.001
        assert guest.endpoint.leftovers() == []


def launchers(endpoint: Endpoint) -> list[int]:
    """The process ids of the launchers that run inside."""
    lines = ((pid, Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in endpoint.processes())
    return [pid for pid, line in lines if line == b"/bin/sh\0go\0"]

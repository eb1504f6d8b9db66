"""What every channel promises, on real servers: a guest agent, OpenSSH, and both again with busybox (and dropbear).

VMware Tools have a stand-in, because the real ones need a hypervisor of VMware.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import SecretRef, SshAccess
from workers.channels.agent_socket import SocketAgentTransport
from workers.channels.base import Channel, ChannelError
from workers.channels.qemu_agent import QemuAgentChannel
from workers.channels.ssh import SshChannel
from workers.channels.vmtools import VmToolsChannel
from workers.guard import Guard

sys.path.insert(0, str(Path(__file__).parent))
from endpoints import (
    Endpoint,
    SocketTools,
    agent_endpoint,
    dropbear_endpoint,
    free_port,
    known_hosts,
    listens,
    make_key,
    new_home,
    ssh_endpoint,
    start_agent,
    start_tools,
    tools_endpoint,
    until,
)

NEEDED = ("qemu-ga", "unshare", "ssh-keygen", "dropbear", "dropbearkey", "busybox", "iperf3")
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root"),
    pytest.mark.skipif(
        any(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None for name in NEEDED),
        reason=f"needs {', '.join(NEEDED)}",
    ),
]

AWKWARD = [
    "",
    " ",
    "two words",
    "it's",
    'say "x"',
    "$(touch /tmp/injected)",
    "`touch /tmp/injected`",
    "a;b&c|d>e<f",
    "line\nbreak\n",
    "tab\there",
    "ä€😀",
    "\\n\\",
    "*",
    "~",
    "-n",
    "--",
    "${HOME}",
    "!x",
]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A channel, the guard it obeys, and the endpoint behind it as seen from outside."""

    channel: Channel
    guard: Guard
    endpoint: Endpoint
    open: Callable[[Guard], Channel]


@contextmanager
def agent_bench(*, busybox: bool) -> Iterator[Bench]:
    with new_home() as home:
        endpoint = agent_endpoint(home, busybox=busybox)
        transport = SocketAgentTransport(f"{home}/agent.sock")

        def open_channel(guard: Guard) -> Channel:
            return QemuAgentChannel(endpoint="vm under test", agent=transport, guard=guard)

        guard = Guard()
        try:
            start_agent(endpoint)
            channel = open_channel(guard)
            yield Bench(channel=channel, guard=guard, endpoint=endpoint, open=open_channel)
            channel.close()
            transport.close()
        finally:
            endpoint.stop()


@contextmanager
def tools_bench() -> Iterator[Bench]:
    with new_home() as home:
        endpoint = tools_endpoint(home, busybox=False)

        def open_channel(guard: Guard) -> Channel:
            return VmToolsChannel(endpoint="vm under test", operations=SocketTools(endpoint), guard=guard)

        guard = Guard()
        try:
            start_tools(endpoint)
            channel = open_channel(guard)
            yield Bench(channel=channel, guard=guard, endpoint=endpoint, open=open_channel)
            channel.close()
        finally:
            endpoint.stop()


@contextmanager
def ssh_bench(make: Callable[[Path, int], Endpoint]) -> Iterator[Bench]:
    port = free_port()
    with new_home() as home:
        endpoint = make(home, port)
        access = ssh_access(home, port)

        def open_channel(guard: Guard) -> Channel:
            return SshChannel(endpoint="host under test", access=access, guard=guard)

        guard = Guard()
        try:
            endpoint.start(lambda: listens(port))
            channel = open_channel(guard)
            yield Bench(channel=channel, guard=guard, endpoint=endpoint, open=open_channel)
            channel.close()
        finally:
            endpoint.stop()


def ssh_access(home: Path, port: int) -> SshAccess:
    return SshAccess(
        address="127.0.0.1",
        user="root",
        key=SecretRef(scheme="file", locator=f"{home}/user_key"),
        known_hosts=str(known_hosts(home / "known_hosts", port, home / "host_key.pub")),
        port=port,
    )


BENCHES: dict[str, Callable[[], object]] = {
    "agent": lambda: agent_bench(busybox=False),
    "agent-busybox": lambda: agent_bench(busybox=True),
    "tools": tools_bench,
    "openssh": lambda: ssh_bench(ssh_endpoint),
    "dropbear-busybox": lambda: ssh_bench(dropbear_endpoint),
}


@pytest.fixture(params=list(BENCHES))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with BENCHES[request.param]() as it:  # type: ignore[attr-defined]
        it.channel.wait_ready(timeout=10)
        yield it


@pytest.fixture(params=["agent", "agent-busybox"])
def agent(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with BENCHES[request.param]() as it:  # type: ignore[attr-defined]
        yield it


@pytest.fixture
def ssh() -> Iterator[Bench]:
    with ssh_bench(ssh_endpoint) as it:
        yield it


class TestRun:
    def test_the_exit_code_and_both_outputs_are_the_commands(self, bench: Bench) -> None:
        result = bench.channel.run(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout=10)
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
        assert result.argv == ("sh", "-c", "echo out; echo err >&2; exit 7")
        assert 0 < result.seconds < 10
        with pytest.raises(ChannelError, match="the echo failed with exit code 7") as caught:
            result.require("the echo")
        assert caught.value.kind == "command-failed"

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
    def test_an_end_by_a_signal_is_128_and_its_number(self, bench: Bench, number: int) -> None:
        result = bench.channel.run(["sh", "-c", f"echo before; kill -{number:d} $$"], timeout=10)
        assert (result.exit_code, result.stdout, result.stderr) == (128 + number, b"before\n", b"")

    def test_a_missing_program_is_127_and_one_that_is_none_is_126(self, bench: Bench) -> None:
        missing = bench.channel.run(["labctl-no-such-program"], timeout=10)
        assert missing.exit_code == 127
        assert b"labctl-no-such-program" in missing.stderr
        assert bench.channel.run(["/etc/passwd"], timeout=10).exit_code == 126

    @pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 20_000_000])
    def test_output_of_any_size_arrives_byte_for_byte(self, bench: Bench, size: int) -> None:
        """L1: also more than the 16 MiB that the guest agent keeps of a program's output."""
        content = random.Random(size).randbytes(size)
        (bench.endpoint.tmp / "content").write_bytes(content)
        result = bench.channel.run(["cat", "/tmp/content"], timeout=60)
        assert result.exit_code == 0
        assert result.stdout == content
        assert result.stderr == b""
        assert bench.endpoint.leftovers() == ["content"]

    def test_much_on_both_outputs_at_once_is_kept_apart(self, bench: Bench) -> None:
        script = "i=0; while [ $i -lt 400 ]; do head -c 5000 /tmp/a; head -c 5000 /tmp/b >&2; i=$((i+1)); done"
        (bench.endpoint.tmp / "a").write_bytes(b"\xffA" * 2500)
        (bench.endpoint.tmp / "b").write_bytes(b"\x00B" * 2500)
        result = bench.channel.run(["sh", "-c", script], timeout=60)
        assert result.stdout == b"\xffA" * 1_000_000
        assert result.stderr == b"\x00B" * 1_000_000

    @pytest.mark.parametrize("size", [1, 200_000, 5_000_000])
    def test_input_of_any_size_arrives_byte_for_byte(self, bench: Bench, size: int) -> None:
        content = random.Random(size).randbytes(size)
        result = bench.channel.run(["sh", "-c", "cat; echo end >&2"], timeout=60, stdin=content)
        assert result.stdout == content
        assert result.stderr == b"end\n"
        assert bench.endpoint.leftovers() == []

    def test_without_input_a_command_reads_the_end_of_file(self, bench: Bench) -> None:
        assert bench.channel.run(["wc", "-c"], timeout=10).stdout.strip() == b"0"

    def test_input_that_nobody_reads_is_no_error(self, bench: Bench) -> None:
        result = bench.channel.run(["sh", "-c", "echo done"], timeout=20, stdin=b"x" * 5_000_000)
        assert (result.exit_code, result.stdout) == (0, b"done\n")

    def test_arguments_arrive_as_they_are(self, bench: Bench) -> None:
        result = bench.channel.run(["printf", "%s\\0", *AWKWARD], timeout=10)
        assert result.stdout.decode().split("\0") == [*AWKWARD, ""]
        assert bench.endpoint.leftovers() == []

    def test_long_and_many_arguments(self, bench: Bench) -> None:
        arguments = ["x" * 20_000, *(str(n) for n in range(2000))]
        result = bench.channel.run(["printf", "%s\\n", *arguments], timeout=10)
        assert result.stdout.decode().splitlines() == arguments

    @pytest.mark.parametrize("argv", [[], [""], ["-x"], ["echo", "a\0b"]])
    def test_what_is_no_command_is_a_bug_of_the_callers(self, bench: Bench, argv: list[str]) -> None:
        with pytest.raises(ValueError, match=r"command|NUL"):
            bench.channel.run(argv, timeout=5)

    def test_at_the_deadline_the_whole_process_tree_is_killed(self, bench: Bench) -> None:
        script = (
            "trap '' TERM; sleep 1001 & setsid sleep 1002 & sh -c 'sleep 1003; :' & (trap '' TERM; sleep 1004) & "
            "while :; do sleep 1005; done"
        )
        with pytest.raises(ChannelError, match=r"sh did not end within 1 s in .* under test") as caught:
            bench.channel.run(["sh", "-c", script], timeout=1)
        assert caught.value.kind == "channel-timeout"
        assert "was killed" in caught.value.why
        until(lambda: bench.endpoint.commands() == [], f"an end of {bench.endpoint.commands()}", seconds=2)
        assert bench.endpoint.leftovers() == []

    def test_a_command_that_goes_when_asked_is_only_asked(self, bench: Bench) -> None:
        script = "trap 'echo asked >/tmp/asked; exit' TERM; while :; do sleep 0.05; done"
        with pytest.raises(ChannelError):
            bench.channel.run(["sh", "-c", script], timeout=0.5)
        assert bench.endpoint.leftovers() == ["asked"]

    @pytest.mark.parametrize("quiet", [0.0, 60.0])
    def test_a_cancel_ends_the_wait_and_the_command(self, bench: Bench, quiet: float) -> None:
        sleeping = threading.Timer(0.5, bench.guard.stop, ["the user said so"])
        sleeping.start()
        began = time.monotonic()
        with pytest.raises(AttemptCancelled, match="the user said so"):
            bench.channel.run(["sleep", "1000"], timeout=60, quiet=quiet)
        assert time.monotonic() - began < 30
        sleeping.join()
        assert bench.endpoint.leftovers() == []
        until(lambda: bench.endpoint.commands() == [], f"an end of {bench.endpoint.commands()}", seconds=2)
        with pytest.raises(AttemptCancelled):
            bench.channel.run(["true"], timeout=5)

    def test_quiet_does_not_hide_the_result(self, bench: Bench) -> None:
        result = bench.channel.run(["sh", "-c", "sleep 0.3; echo x"], timeout=10, quiet=0.6)
        assert result.stdout == b"x\n"

    def test_many_commands_leave_nothing_behind(self, bench: Bench) -> None:
        bench.channel.run(["true"], timeout=10)
        server = bench.endpoint.server
        assert server is not None

        def open_files() -> tuple[int, int]:
            return len([*Path("/proc/self/fd").iterdir()]), len([*Path(f"/proc/{server.pid}/fd").iterdir()])

        before = open_files()
        for number in range(200):
            assert bench.channel.run(["echo", str(number)], timeout=20).stdout == f"{number}\n".encode()
        until(lambda: open_files() == before, f"{open_files()} open files as before: {before}")
        assert bench.endpoint.leftovers() == []
        until(lambda: bench.endpoint.commands() == [], f"an end of {bench.endpoint.commands()}")

    def test_two_threads_get_their_own_results(self, bench: Bench) -> None:
        results: dict[int, list[bytes]] = {0: [], 1: []}

        def work(thread: int) -> None:
            for number in range(20):
                script = f"echo {thread} {number}; head -c 50000 /dev/zero"
                results[thread].append(bench.channel.run(["sh", "-c", script], timeout=30).stdout)

        threads = [threading.Thread(target=work, args=[number]) for number in results]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for thread_number, outputs in results.items():
            assert outputs == [f"{thread_number} {n}\n".encode() + bytes(50000) for n in range(20)]

    def test_a_short_command_passes_a_long_one_by(self, bench: Bench) -> None:
        long = threading.Thread(target=bench.channel.run, args=[["sleep", "3"]], kwargs={"timeout": 20})
        long.start()
        assert bench.channel.run(["echo", "x"], timeout=10).stdout == b"x\n"
        assert long.is_alive()
        long.join()


class TestStart:
    def test_a_server_is_ready_when_start_returns_and_gone_after_kill(self, bench: Bench) -> None:
        port = free_port()
        server = bench.channel.start(["iperf3", "-s", "-p", str(port)], lifetime=60, ready_port=port)
        assert listens(port)
        assert not server.finished()
        assert f"listening on {port}".encode() in b"".join(server.output()) or server.output() == (b"", b"")
        assert server.pid in bench.endpoint.processes()
        server.kill()
        assert not listens(port)
        assert server.finished()
        assert server.wait(timeout=5).exit_code in (1, 128 + signal.SIGTERM)
        assert f"listening on {port}".encode() in server.output()[0]
        server.kill()
        until(lambda: bench.endpoint.commands() == [], f"an end of {bench.endpoint.commands()}")
        assert bench.endpoint.leftovers() == []

    def test_a_real_measurement(self, bench: Bench) -> None:
        port = free_port()
        server = bench.channel.start(["iperf3", "-s", "-1", "--json", "-p", str(port)], lifetime=60, ready_port=port)
        client = bench.channel.run(
            ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-t", "1", "-b", "10M", "--json"], timeout=30, quiet=1.0
        )
        assert client.exit_code == 0
        assert b'"sum_received"' in client.stdout
        ended = server.wait(timeout=10)
        assert ended.exit_code == 0
        assert b'"server_output_text"' in ended.stdout or b'"intervals"' in ended.stdout
        assert bench.endpoint.leftovers() == []

    def test_a_udp_server_is_seen_too(self, bench: Bench) -> None:
        port = free_port()
        server = bench.channel.start(["iperf", "-s", "-u", "-p", str(port)], lifetime=60, ready_port=port)
        assert not server.finished()
        server.kill()

    def test_a_taken_port_is_an_error_at_once(self, bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ChannelError, match=r"iperf3 was not started in .* under test") as caught:
                bench.channel.start(["iperf3", "-s", "-p", str(port)], lifetime=60, ready_port=port)
        assert caught.value.kind == "command-failed"
        assert f"port {port}" in caught.value.why
        assert bench.endpoint.leftovers() == []

    def test_a_server_that_ends_at_once_is_an_error_with_its_words(self, bench: Bench) -> None:
        port = free_port()
        began = time.monotonic()
        with pytest.raises(ChannelError, match="sh did not start") as caught:
            bench.channel.start(["sh", "-c", "echo no such device >&2; exit 3"], lifetime=60, ready_port=port)
        assert caught.value.kind == "command-failed"
        assert "exit code 3" in caught.value.why
        assert "no such device" in caught.value.why
        assert time.monotonic() - began < 8
        assert bench.endpoint.leftovers() == []

    def test_a_server_that_never_listens_is_ended(self, bench: Bench) -> None:
        with pytest.raises(ChannelError, match="did not start") as caught:
            bench.channel.start(["sh", "-c", "echo thinking; sleep 1000"], lifetime=60, ready_port=free_port())
        assert "did not listen" in caught.value.why
        assert "thinking" in caught.value.why
        until(lambda: bench.endpoint.commands() == [], f"an end of {bench.endpoint.commands()}")
        assert bench.endpoint.leftovers() == []

    def test_without_a_port_it_returns_at_once_and_output_grows(self, bench: Bench) -> None:
        process = bench.channel.start(["sh", "-c", "echo one; sleep 1; echo two; echo bad >&2; exit 4"], lifetime=60)
        until(lambda: process.output() == (b"one\n", b""), "the first line")
        with pytest.raises(ChannelError) as caught:
            process.wait(timeout=0.2)
        assert caught.value.kind == "channel-timeout"
        assert not process.finished()
        result = process.wait(timeout=10, quiet=0.5)
        assert (result.exit_code, result.stdout, result.stderr) == (4, b"one\ntwo\n", b"bad\n")
        assert process.wait(timeout=1) is result
        assert process.output() == (b"one\ntwo\n", b"bad\n")
        assert bench.endpoint.leftovers() == []

    def test_large_output_of_a_process(self, bench: Bench) -> None:
        process = bench.channel.start(["head", "-c", "5000000", "/dev/zero"], lifetime=60)
        until(process.finished, "its end")
        assert process.output() == (bytes(5_000_000), b"")
        assert process.wait(timeout=20).stdout == bytes(5_000_000)
        assert bench.endpoint.leftovers() == []

    def test_after_its_lifetime_the_endpoint_ends_it_with_all_its_children(self, bench: Bench) -> None:
        script = "trap '' TERM; setsid sleep 1001 & sleep 1002 & while :; do sleep 1003; done"
        process = bench.channel.start(["sh", "-c", script], lifetime=1)
        result = process.wait(timeout=20)
        assert result.exit_code == 128 + signal.SIGKILL
        until(lambda: bench.endpoint.commands() == [], f"an end of {bench.endpoint.commands()}")
        assert bench.endpoint.leftovers() == []

    def test_closing_the_channel_ends_what_it_started(self, bench: Bench) -> None:
        channel = bench.open(Guard())
        channel.start(["sleep", "1001"], lifetime=60)
        channel.start(["sleep", "1002"], lifetime=60)
        until(lambda: {"sleep 1001", "sleep 1002"} <= set(bench.endpoint.commands()), "both sleeping")
        channel.close()
        until(lambda: bench.endpoint.commands() == [], f"an end of {bench.endpoint.commands()}", seconds=2)
        assert bench.endpoint.leftovers() == []

    def test_kill_and_close_work_after_a_cancel(self, bench: Bench) -> None:
        guard = Guard()
        channel = bench.open(guard)
        one = channel.start(["sleep", "1001"], lifetime=60)
        channel.start(["sleep", "1002"], lifetime=60)
        guard.stop("enough")
        with pytest.raises(AttemptCancelled):
            one.wait(timeout=10)
        one.kill()
        channel.close()
        until(lambda: bench.endpoint.commands() == [], f"an end of {bench.endpoint.commands()}", seconds=2)
        assert bench.endpoint.leftovers() == []

    def test_what_vanished_from_the_endpoint_is_an_error(self, bench: Bench) -> None:
        process = bench.channel.start(["true"], lifetime=60)
        until(process.finished, "its end")
        (job,) = bench.endpoint.tmp.glob("labctl-job-*")
        shutil.rmtree(job)
        with pytest.raises(ChannelError, match="gone") as caught:
            process.wait(timeout=5)
        assert caught.value.kind == "command-failed"
        with pytest.raises(ChannelError, match="gone"):
            process.output()


class TestFiles:
    @pytest.mark.parametrize("size", [0, 10, 3_000_000])
    def test_a_file_is_written_and_read_byte_for_byte(self, bench: Bench, size: int) -> None:
        content = random.Random(size).randbytes(size)
        path = "/tmp/file ä $(x)"
        bench.channel.write_file(path, b"old" * 10, timeout=10, mode=0o640)
        bench.channel.write_file(path, content, timeout=30, mode=0o750)
        written = bench.endpoint.tmp / "file ä $(x)"
        assert written.read_bytes() == content
        assert written.stat().st_mode & 0o7777 == 0o750
        assert bench.channel.read_file(path, timeout=30) == content
        assert bench.endpoint.leftovers() == [written.name]

    def test_files_of_the_kernel_have_no_size_and_are_read_all_the_same(self, bench: Bench) -> None:
        assert bench.channel.read_file("/proc/version", timeout=10) == Path("/proc/version").read_bytes()

    def test_a_missing_file_is_an_error_that_names_it(self, bench: Bench) -> None:
        with pytest.raises(ChannelError, match="/tmp/nothing") as caught:
            bench.channel.read_file("/tmp/nothing", timeout=10)
        assert caught.value.kind == "command-failed"
        assert "No such file" in caught.value.why

    @pytest.mark.parametrize("path", ["/nowhere/file", "/tmp"])
    def test_a_file_that_can_not_be_written_is_an_error(self, bench: Bench, path: str) -> None:
        with pytest.raises(ChannelError, match=path) as caught:
            bench.channel.write_file(path, b"x", timeout=10)
        assert caught.value.kind == "command-failed"
        assert caught.value.why
        assert bench.endpoint.leftovers() == []


class TestClock:
    def test_the_clock_of_this_machine_is_that_of_this_machine(self, bench: Bench) -> None:
        offset = bench.channel.clock(timeout=10)
        assert 0 < offset.uncertainty < 1
        assert abs(offset.seconds) <= offset.uncertainty + 0.001


class TestAgent:
    def test_it_is_waited_for_until_it_is_there(self) -> None:
        with new_home() as home:
            endpoint = agent_endpoint(home, busybox=False)
            transport = SocketAgentTransport(f"{home}/agent.sock")
            channel = QemuAgentChannel(endpoint="vm x", agent=transport, guard=Guard())
            with pytest.raises(ChannelError, match=r"vm x did not answer within 0\.3 s") as caught:
                channel.wait_ready(timeout=0.3)
            assert caught.value.kind == "channel-unreachable"
            with pytest.raises(ChannelError) as caught:
                channel.run(["true"], timeout=5)
            assert caught.value.kind == "channel-unreachable"
            boot = threading.Timer(0.5, start_agent, [endpoint])
            boot.start()
            try:
                assert channel.wait_ready(timeout=10) > 0.3
                assert channel.run(["echo", "x"], timeout=5).stdout == b"x\n"
            finally:
                boot.join()
                channel.close()
                transport.close()
                endpoint.stop()

    def test_a_restart_between_commands_is_not_noticed(self, agent: Bench) -> None:
        agent.channel.run(["true"], timeout=10)
        agent.endpoint.stop_server()
        start_agent(agent.endpoint)
        assert agent.channel.run(["echo", "x"], timeout=10).stdout == b"x\n"

    def test_an_agent_that_dies_while_a_command_runs_is_unreachable(self, agent: Bench) -> None:
        agent.channel.run(["true"], timeout=10)
        death = threading.Timer(0.5, agent.endpoint.stop_server)
        death.start()
        with pytest.raises(ChannelError) as caught:
            agent.channel.run(["sleep", "1000"], timeout=60)
        assert caught.value.kind == "channel-unreachable"
        death.join()

    def test_an_agent_that_restarts_while_a_command_runs_has_forgotten_it(self, agent: Bench) -> None:
        def restart() -> None:
            agent.endpoint.stop_server()
            start_agent(agent.endpoint)

        agent.channel.run(["true"], timeout=10)
        restarting = threading.Timer(0.5, restart)
        restarting.start()
        with pytest.raises(ChannelError, match="forgotten") as caught:
            agent.channel.run(["sleep", "1000"], timeout=60)
        restarting.join()
        assert caught.value.kind == "channel-unreachable"

    def test_a_stopped_agent_is_a_timeout_and_late_replies_confuse_nothing(self, agent: Bench) -> None:
        """L1: no question to an agent is without a deadline."""
        agent.channel.run(["true"], timeout=10)
        agent.endpoint.signal(signal.SIGSTOP)
        began = time.monotonic()
        try:
            with pytest.raises(ChannelError) as caught:
                agent.channel.run(["echo", "late"], timeout=1)
            assert caught.value.kind == "channel-timeout"
            assert time.monotonic() - began < 10
            with pytest.raises(ChannelError) as caught:
                agent.channel.wait_ready(timeout=0.5)
            assert caught.value.kind == "channel-unreachable"
        finally:
            agent.endpoint.signal(signal.SIGCONT)
        agent.channel.wait_ready(timeout=10)
        for number in range(5):
            assert agent.channel.run(["echo", str(number)], timeout=10).stdout == f"{number}\n".encode()

    def test_a_cancel_does_not_wait_for_a_stopped_agent(self, agent: Bench) -> None:
        agent.channel.run(["true"], timeout=10)
        agent.endpoint.signal(signal.SIGSTOP)
        cancel = threading.Timer(0.3, agent.guard.stop, ["enough"])
        cancel.start()
        began = time.monotonic()
        try:
            with pytest.raises(AttemptCancelled):
                agent.channel.run(["true"], timeout=120)
            assert time.monotonic() - began < 30
        finally:
            agent.endpoint.signal(signal.SIGCONT)
            cancel.join()

    def test_an_agent_that_forbids_commands_is_named_with_the_remedy(self) -> None:
        """L1: guest-exec is blocked in some distributions."""
        with new_home() as home:
            endpoint = agent_endpoint(home, busybox=False, blocked="guest-exec")
            transport = SocketAgentTransport(f"{home}/agent.sock")
            channel = QemuAgentChannel(endpoint="vm x", agent=transport, guard=Guard())
            try:
                start_agent(endpoint)
                channel.wait_ready(timeout=10)
                with pytest.raises(ChannelError, match="vm x refuses guest-exec") as caught:
                    channel.run(["true"], timeout=10)
                assert caught.value.kind == "channel-refused"
                assert "BLOCK_RPCS" in caught.value.todo
            finally:
                channel.close()
                transport.close()
                endpoint.stop()

    def test_l1_output_that_the_agent_cut_short_is_an_error_and_no_short_output(self, agent: Bench) -> None:
        transport = Cutting(SocketAgentTransport(f"{agent.endpoint.home}/agent.sock"))
        channel = QemuAgentChannel(endpoint="vm x", agent=transport, guard=Guard())
        with pytest.raises(ChannelError, match="cut the output") as caught:
            channel.run(["echo", "x"], timeout=10)
        assert caught.value.kind == "command-failed"
        transport.whole.close()

    def test_replies_to_earlier_questions_are_thrown_away(self, agent: Bench) -> None:
        """A device that keeps what an earlier connection asked, as a VM's character device does."""
        with agent_behind_device(agent.endpoint) as path:
            transport = SocketAgentTransport(path)
            assert "version" in transport.command('{"execute": "guest-info"}', timeout=10)
            transport.close()

    def test_no_room_for_the_job_is_an_error_that_says_so(self, agent: Bench) -> None:
        (agent.endpoint.home / "file").write_text("")
        shutil.rmtree(agent.endpoint.tmp)
        with pytest.raises(ChannelError, match="does not run commands") as caught:
            agent.channel.run(["true"], timeout=10)
        assert caught.value.kind == "channel-refused"
        assert "mkdir" in caught.value.why


class Cutting:
    """An agent whose replies to `guest-exec-status` say that there was more output than it keeps (16 MiB)."""

    def __init__(self, whole: SocketAgentTransport) -> None:
        self.whole = whole

    def command(self, json_text: str, *, timeout: float) -> str:
        reply = json.loads(self.whole.command(json_text, timeout=timeout))
        if "out-data" in reply.get("return", {}):
            reply["return"]["out-truncated"] = True
        return json.dumps(reply)


@contextmanager
def agent_behind_device(endpoint: Endpoint) -> Iterator[str]:
    """A socket whose first words are the replies to questions that nobody here has asked, then the agent's."""
    path = str(endpoint.home / "device.sock")
    with socket.socket(socket.AF_UNIX) as device:
        device.bind(path)
        device.listen()

        def carry() -> None:
            client, _ = device.accept()
            with client, socket.socket(socket.AF_UNIX) as agent:
                agent.connect(str(endpoint.home / "agent.sock"))
                client.sendall(b'{"return": {"pid": 1}}\n\xff{"return": 7}\n{"return": 1234')
                for source, target in [(client, agent), (agent, client)]:
                    threading.Thread(target=_copy, args=[source, target], daemon=True).start()
                done.wait(30)

        done = threading.Event()
        carrier = threading.Thread(target=carry)
        carrier.start()
        yield path
        done.set()
        carrier.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while content := source.recv(4096):
            target.sendall(content)
    except OSError:
        return


class TestSsh:
    def refused(self, bench: Bench, access: SshAccess) -> ChannelError:
        channel = SshChannel(endpoint="host x", access=access, guard=Guard())
        with pytest.raises(ChannelError, match="host x") as caught:
            channel.wait_ready(timeout=20)
        channel.close()
        return caught.value

    def access(self, bench: Bench) -> SshAccess:
        return bench.channel._access  # type: ignore[attr-defined, no-any-return]

    def test_a_key_that_is_not_authorised(self, ssh: Bench) -> None:
        stranger = make_key(ssh.endpoint.home / "stranger")
        access = replace(self.access(ssh), key=SecretRef(scheme="file", locator=str(stranger)))
        error = self.refused(ssh, access)
        assert error.kind == "channel-refused"
        assert "authentication" in error.what
        assert "authorized_keys" in error.todo

    def test_a_host_key_that_nobody_has_written_down(self, ssh: Bench) -> None:
        empty = ssh.endpoint.home / "empty"
        empty.write_text("")
        error = self.refused(ssh, replace(self.access(ssh), known_hosts=str(empty)))
        assert error.kind == "channel-refused"
        assert "unknown" in error.what
        assert "SHA256:" in error.why
        assert "ssh-keyscan" in error.todo

    def test_a_host_key_that_has_changed(self, ssh: Bench) -> None:
        other = make_key(ssh.endpoint.home / "other")
        access = self.access(ssh)
        path = known_hosts(ssh.endpoint.home / "changed", access.port, Path(f"{other}.pub"))
        error = self.refused(ssh, replace(access, known_hosts=str(path)))
        assert error.kind == "channel-refused"
        assert "changed" in error.what

    def test_a_known_hosts_file_that_is_not_there(self, ssh: Bench) -> None:
        error = self.refused(ssh, replace(self.access(ssh), known_hosts="/nowhere/known_hosts"))
        assert error.kind == "channel-refused"
        assert "known-hosts" in error.what

    def test_a_key_from_the_environment(self, ssh: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LABCTL_TEST_KEY", (ssh.endpoint.home / "user_key").read_text())
        access = replace(self.access(ssh), key=SecretRef(scheme="env", locator="LABCTL_TEST_KEY"))
        channel = SshChannel(endpoint="host x", access=access, guard=Guard())
        assert channel.run(["echo", "x"], timeout=20).stdout == b"x\n"
        channel.close()

    @pytest.mark.parametrize(
        ("content", "why"), [("no key at all", "holds no"), (None, "No such file")], ids=["garbage", "missing"]
    )
    def test_a_key_that_is_none(self, ssh: Bench, content: str | None, why: str) -> None:
        path = ssh.endpoint.home / "bad"
        if content is not None:
            path.write_text(content)
        access = replace(self.access(ssh), key=SecretRef(scheme="file", locator=str(path)))
        with pytest.raises(LabError) as caught:
            SshChannel(endpoint="host x", access=access, guard=Guard()).run(["true"], timeout=10)
        assert why in caught.value.why

    def test_nothing_listens(self, ssh: Bench) -> None:
        access = replace(self.access(ssh), port=free_port())
        channel = SshChannel(endpoint="host x", access=access, guard=Guard())
        for call in (lambda: channel.run(["true"], timeout=5), lambda: channel.wait_ready(timeout=0.5)):
            with pytest.raises(ChannelError) as caught:
                call()
            assert caught.value.kind == "channel-unreachable"

    @pytest.mark.parametrize("cancelled", [False, True])
    def test_a_listener_that_never_says_a_word(self, ssh: Bench, cancelled: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as hole:
            access = replace(self.access(ssh), port=hole.getsockname()[1])
            guard = Guard()
            channel = SshChannel(endpoint="host x", access=access, guard=guard)
            began = time.monotonic()
            if cancelled:
                threading.Timer(0.3, guard.stop, ["enough"]).start()
                with pytest.raises(AttemptCancelled):
                    channel.run(["true"], timeout=300)
            else:
                with pytest.raises(ChannelError) as caught:
                    channel.run(["true"], timeout=1)
                assert caught.value.kind == "channel-unreachable"
            assert time.monotonic() - began < 20

    def test_a_server_that_dies_while_a_command_runs_and_comes_back(self, ssh: Bench) -> None:
        ssh.channel.run(["true"], timeout=10)
        death = threading.Timer(0.5, ssh.endpoint.stop)
        death.start()
        with pytest.raises(ChannelError) as caught:
            ssh.channel.run(["sleep", "1000"], timeout=60)
        death.join()
        assert caught.value.kind == "channel-unreachable"
        ssh.endpoint.start(lambda: listens(self.access(ssh).port))
        assert ssh.channel.run(["echo", "x"], timeout=10).stdout == b"x\n"

    def test_one_machine_behind_another(self, ssh: Bench) -> None:
        assert isinstance(ssh.channel, SshChannel)
        port = free_port()
        with new_home() as home:
            behind = ssh_endpoint(home, port)
            try:
                behind.start(lambda: listens(port))
                channel = SshChannel(
                    endpoint="host behind", access=ssh_access(home, port), guard=Guard(), via=ssh.channel
                )
                content = random.Random(1).randbytes(3_000_000)
                assert channel.run(["cat"], timeout=30, stdin=content).stdout == content
                channel.close()
                assert ssh.channel.run(["echo", "x"], timeout=10).stdout == b"x\n"
            finally:
                behind.stop()

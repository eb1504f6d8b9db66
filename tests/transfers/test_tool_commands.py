"""Command lines of the transfer tools, tried on the real tools over the loopback device."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from labctl.errors import SpecError
from labctl.model.order import TransferOrder
from labctl.model.reading import Capture, Reading
from workers.transfers.base import TransferTool
from workers.transfers.registry import parser, tool

ORDER = TransferOrder(tool="iperf3", seconds=1, interval=0.1, rate=100_000_000)


@pytest.mark.parametrize("name", ["iperf3", "iperf"])
def test_arguments_of_the_user_come_last(name: str) -> None:
    order = replace(ORDER, client_args=("--tos", "16"), server_args=("-B", "10.0.0.1"))
    assert tool(name).client_command(order, server="10.0.0.2", port=5300)[-2:] == ("--tos", "16")
    assert tool(name).server_command(order, port=5300)[-2:] == ("-B", "10.0.0.1")


def test_everything_that_is_ordered_reaches_iperf3() -> None:
    order = replace(
        ORDER, streams=4, window=262144, buffer=8192, protocol="udp", rate=5_000_000, reverse=True, client_args=("-N",)
    )
    command = " ".join(tool("iperf3").client_command(order, server="10.0.0.2", port=5300))
    assert command == (
        "iperf3 -c 10.0.0.2 -p 5300 -t 1 -i 0.1 -J --connect-timeout 5000 -P 4 -w 262144 -l 8192 -b 5000000 -u -R -N"
    )
    assert " ".join(tool("iperf3").server_command(order, port=5300)) == "iperf3 -s -1 -p 5300 -J -i 0.1"


def test_the_window_of_iperf_is_on_both_sides() -> None:
    order = replace(ORDER, tool="iperf", window=262144, buffer=8192, streams=2, seconds=2.5)
    server = " ".join(tool("iperf").server_command(order, port=5300))
    client = " ".join(tool("iperf").client_command(order, server="10.0.0.2", port=5300))
    assert server == "iperf -s -p 5300 -e -f b -i 0.1 -w 262144 -l 8192"
    assert client == "iperf -c 10.0.0.2 -p 5300 -t 2.5 -P 2 -e -f b -i 0.1 -w 262144 -l 8192 -b 100000000"


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("iperf3", {"seconds": 2.5}, "whole seconds"),
        ("iperf3", {"interval": 0.05}, "0.1 s"),
        ("iperf3", {"streams": 129}, "128 streams"),
        ("iperf3", {"protocol": "sctp"}, "sctp"),
        ("iperf3", {"omit": 2.5}, "whole seconds"),
        ("iperf3", {"omit": 61.0}, "at most 60 s"),
        ("iperf3", {"mss": 10_000}, "at most 9216 bytes"),
        ("iperf3", {"protocol": "udp", "zerocopy": True}, "UDP has no zero-copy"),
        ("iperf3", {"protocol": "udp", "mss": 1000}, "UDP has no segments"),
        ("iperf3", {"dscp": 64}, "0 to 63"),
        ("iperf3", {"latency": 200}, "at most 100 requests"),
        ("iperf", {"omit": 2.0}, "leave a ramp-up out"),
        ("iperf", {"zerocopy": True}, "without copying"),
        ("iperf", {"interval": 0.001}, "0.005 s"),
        ("iperf", {"protocol": "sctp"}, "sctp"),
        ("iperf", {"seconds": 0.0}, "above 0"),
    ],
)
def test_what_a_tool_cant_do_is_said(name: str, change: dict[str, object], word: str) -> None:
    order = replace(ORDER, tool=name)
    assert tool(name).unsupported(order) == ""
    assert word in tool(name).unsupported(replace(order, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "change", "version", "words"),
    [
        ("iperf3", {"both": True}, "iperf 3.6 (cJSON 1.5.2)", "from release 3.7 on, and this is 3.6"),
        ("iperf3", {"both": True}, "iperf 3.12 (cJSON 1.7.15)", ""),
        ("iperf3", {"reverse": True, "zerocopy": True}, "iperf 3.10.1", "from release 3.11 on"),
        ("iperf3", {}, "iperf 3.0.7", "from release 3.0.11 on"),
        ("iperf", {"both": True}, "iperf version 2.0.5 (08 Jul 2010) pthreads", "from release 2.1 on"),
        ("iperf", {"reverse": True}, "iperf version 2.0.13", "from release 2.1 on"),
        ("iperf", {"reverse": True}, "iperf version 2.1.8 (12 August 2022) pthreads", ""),
        ("iperf", {"reverse": True}, "something new", ""),
    ],
)
def test_what_a_release_lacks_is_said(name: str, change: dict[str, object], version: str, words: str) -> None:
    said = tool(name).unsupported(replace(ORDER, tool=name, **change), version)  # type: ignore[arg-type]
    assert bool(said) == bool(words)
    assert words in said


def test_old_releases_are_not_given_what_they_dont_know() -> None:
    old = tool("iperf3").client_command(ORDER, server="10.0.0.2", port=5300, version="iperf 3.1.7")
    assert "--connect-timeout" not in old
    assert "-e" not in tool("iperf").server_command(ORDER, port=5300, version="iperf version 2.0.5 (08 Jul 2010)")


def test_settings_of_the_socket_reach_both_tools() -> None:
    order = replace(ORDER, mss=1000, congestion="reno", dscp=46, family="ipv6", rate=None)
    iperf3 = " ".join(tool("iperf3").client_command(order, server="fd00::2", port=5300))
    assert iperf3.endswith("-P 1 -M 1000 -C reno -S 184 -6")
    iperf = tool("iperf")
    assert " ".join(iperf.client_command(order, server="fd00::2", port=5300)).endswith("-V -M 1000 -Z reno -S 184")
    assert " ".join(iperf.server_command(order, port=5300)).endswith("-V -M 1000 -Z reno -S 184")
    both = replace(ORDER, both=True, omit=2.0, zerocopy=True, rate=None)
    assert " ".join(tool("iperf3").client_command(both, server="a", port=1)).endswith("-P 1 -O 2 --bidir -Z")
    assert tool("iperf").client_command(replace(both, omit=0.0), server="a", port=1)[-1] == "--full-duplex"


def test_an_unknown_tool_is_named_with_the_nearest_one() -> None:
    with pytest.raises(SpecError, match="Did you mean 'iperf3'"):
        tool("iperf-3")
    with pytest.raises(SpecError, match="no tool 'ftp'"):
        parser("ftp")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _server(command: tuple[str, ...], port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        listening = f":{port:04X} "
        while not any(
            listening in line
            for table in ("tcp", "tcp6", "udp", "udp6")
            for line in open(f"/proc/net/{table}")  # noqa: PTH123, SIM115
        ):
            assert process.poll() is None
        yield process
    finally:
        process.terminate()
        process.wait(10)


def _transfer(used: TransferTool, order: TransferOrder) -> tuple[Reading, Reading]:
    """The client's reading (with the server's output beside it), and the server's own."""
    port = _free_port()
    with _server(used.server_command(order, port=port), port) as server:
        address = "::1" if order.family == "ipv6" else "127.0.0.1"
        command = used.client_command(order, server=address, port=port)
        client = subprocess.run(command, capture_output=True, timeout=30, check=False)
        if "-1" not in used.server_command(order, port=port):
            server.terminate()
        printed, _ = server.communicate(timeout=10)
    common = {"requested_seconds": order.seconds, "command": " ".join(command)}
    return (
        used.parse(Capture(stdout=client.stdout, stderr=client.stderr, server=printed, **common)),  # type: ignore[arg-type]
        used.parse(Capture(stdout=printed, role="server", **common)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"streams": 3, "rate": 30_000_000},
        {"reverse": True},
        {"both": True},
        {"protocol": "udp"},
        {"window": 65536, "buffer": 4096},
        {"mss": 1000, "congestion": "reno", "dscp": 46},
        {"family": "ipv6"},
        {"omit": 1.0, "zerocopy": True},
    ],
    ids=lambda change: " ".join(change) or "plain",
)
@pytest.mark.parametrize("name", ["iperf", "iperf3"])
def test_the_real_tools_obey_and_are_understood(name: str, change: dict[str, object]) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    order = replace(ORDER, tool=name, **change)  # type: ignore[arg-type]
    if tool(name).unsupported(order):
        pytest.skip(tool(name).unsupported(order))
    if order.protocol == "udp" and name == "iperf":
        order = replace(order, buffer=1470)
    client, server = _transfer(tool(name), order)
    assert client.ok, client
    assert server.ok, server
    assert client.side == "receiver"
    assert client.streams == order.streams
    assert client.bits_per_second == pytest.approx(order.streams * (order.rate or 0), rel=0.25)
    assert client.bytes is not None
    assert server.bytes == pytest.approx(client.bytes, rel=0.05)
    assert client.intervals is not None
    assert len(client.intervals) >= 8
    assert (client.reverse is not None) == order.both
    if client.reverse is not None:
        assert client.reverse.bits_per_second == pytest.approx(order.rate, rel=0.25)
    if order.protocol == "tcp" and not (order.reverse or order.both):
        assert client.retransmits is not None

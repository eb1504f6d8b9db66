"""Channels into network namespaces of this machine, and two of them with a link between: endpoints without VMs."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

from labctl.model.result import ClockOffset
from labctl.model.scenario import Side
from workers.channels.base import ChannelError
from workers.channels.posix import PosixChannel, Spoken
from workers.guard import Deadline, Guard
from workers.placing import Endpoint, Placed


class NamespaceChannel(PosixChannel):
    """A real POSIX channel whose scripts run in a namespace here. Network namespaces share all files."""

    inline_limit = 1 << 20

    def __init__(self, namespace: str) -> None:
        super().__init__(endpoint=f"namespace {namespace}", guard=Guard())
        self._namespace = namespace

    def programs(self) -> list[str]:
        """The names of all processes in the namespace."""
        pids = subprocess.run(["ip", "netns", "pids", self._namespace], capture_output=True, check=True).stdout.split()
        return [Path(f"/proc/{pid.decode()}/comm").read_text().strip() for pid in pids]

    def wait_ready(self, *, timeout: float) -> float:
        return 0.0

    def clock(self, *, timeout: float) -> ClockOffset:
        return ClockOffset(seconds=0.0, uncertainty=0.0)

    def _execute(
        self,
        script: str,
        arguments: Sequence[str],
        *,
        stdin: bytes,
        deadline: Deadline,
        guard: Guard,
        quiet: float = 0.0,
    ) -> Spoken:
        argv = ["ip", "netns", "exec", self._namespace, "/bin/sh", "-c", script, "labctl", *arguments]
        try:
            done = subprocess.run(argv, input=stdin, capture_output=True, timeout=max(0.1, deadline.left), check=False)
        except subprocess.TimeoutExpired as error:
            raise ChannelError("too late", kind="channel-timeout") from error
        return Spoken(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def _read(self, path: str, *, deadline: Deadline, guard: Guard) -> bytes:
        return Path(path).read_bytes()

    def _connect(self, *, deadline: Deadline, guard: Guard) -> None:
        pass

    def _disconnect(self) -> None:
        pass


@contextmanager
def two_namespaces() -> Iterator[Placed]:
    """A sender at 198.18.7.1 and a receiver at 198.18.7.2, with a pair of virtual Ethernet adapters between."""
    word = uuid.uuid4().hex[:6]
    names = (f"labctl-s{word}", f"labctl-r{word}")
    channels = [NamespaceChannel(name) for name in names]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, ("198.18.7.1/24", "198.18.7.2/24"), strict=True):
            _ip("-n", name, "addr", "add", address, "dev", "eth0")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "eth0", "up")
        for name in names:
            _await_link_local(name)
        yield Placed(
            sender=_endpoint(Side.SENDER, channels[0], "198.18.7.1"),
            receiver=_endpoint(Side.RECEIVER, channels[1], "198.18.7.2"),
        )
    finally:
        for channel in channels:
            channel.close()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _endpoint(side: Side, channel: NamespaceChannel, address: str) -> Endpoint:
    return Endpoint(side=side, subject=f"machine:{side}", host=str(side), channel=channel, address=IPv4Address(address))


def _await_link_local(name: str) -> None:
    """Until duplicate address detection has ended, which takes about a second."""
    for _ in range(100):
        shown = subprocess.run(
            ["ip", "-n", name, "-6", "addr", "show", "dev", "eth0", "-tentative"], capture_output=True, check=True
        )
        if b"fe80" in shown.stdout:
            return
        time.sleep(0.05)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)

"""A Linux host of its own: a network namespace with a bridge, an adapter under it, and an SSH server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from labctl.model.lab import SecretRef, SshAccess
from tests.namespaced_ssh import known_hosts, listening, make_key

_NUMBER = os.getpid() % 2**14
OUTSIDE, ADDRESS = (str(IPv4Address("10.213.0.0") + 4 * _NUMBER + side) for side in (1, 2))
"""Of this process alone: tests run beside each other."""

SERVE = "mount -t tmpfs none /run && mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f $1"
"""In a mount namespace of its own, as `ip netns exec` makes one."""


@dataclass
class HostNamespace:
    """The host as seen from outside."""

    name: str
    home: Path
    server: subprocess.Popen[bytes] | None = None

    @property
    def ssh(self) -> SshAccess:
        """How it is reached."""
        key = SecretRef(scheme="file", locator=f"{self.home}/user_key")
        return SshAccess(address=ADDRESS, user="root", key=key, known_hosts=f"{self.home}/known_hosts")

    def run(self, *argv: str) -> str:
        """What a command prints inside."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, *argv], check=True, capture_output=True, text=True, timeout=20
        )
        return done.stdout

    def features(self) -> str:
        """All features of its adapter."""
        return self.run("ethtool", "-k", "nic0")

    def start(self) -> None:
        """Start its SSH server."""
        with (self.home / "log").open("ab") as log:
            argv = ["ip", "netns", "exec", self.name, "sh", "-c", SERVE, "serve", f"{self.home}/sshd_config"]
            self.server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        listening(ADDRESS, 22, log=self.home / "log")

    def stop(self) -> None:
        """End its SSH server and all its sessions."""
        pids = subprocess.run(["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True).stdout
        for pid in pids.split():
            subprocess.run(["kill", "-KILL", pid], check=False, capture_output=True)
        if self.server is not None:
            self.server.wait()
        self.server = None


@contextmanager
def host_namespace(home: Path) -> Iterator[HostNamespace]:
    """Make one; everything is gone afterwards. Its bridge `br0` has the adapter `nic0`, and a VM's tap."""
    host = HostNamespace(name=f"lcst{os.getpid()}", home=home)
    outside = f"lcst{os.getpid()}"
    make_key(home / "host_key")
    public = make_key(home / "user_key").with_suffix(".pub")
    known_hosts(home / "known_hosts", ADDRESS, home / "host_key.pub")
    (home / "sshd_config").write_text(
        f"ListenAddress {ADDRESS}\nHostKey {home}/host_key\nAuthorizedKeysFile {public}\nUsePAM no\nPidFile none\n"
        "StrictModes no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nPrintMotd no\nPrintLastLog no\n"
    )
    subprocess.run(["ip", "netns", "add", host.name], check=True)
    try:
        subprocess.run(
            ["ip", "link", "add", outside, "type", "veth", "peer", "name", "mgmt0", "netns", host.name], check=True
        )
        for command in (f"addr add {OUTSIDE}/30 dev {outside}", f"link set {outside} up"):
            subprocess.run(["ip", *command.split()], check=True)
        for command in (
            "link set lo up",
            f"addr add {ADDRESS}/30 dev mgmt0",
            "link set mgmt0 up",
            "link add br0 type bridge",
            "link add nic0 type veth peer name far0",
            "link set nic0 master br0",
            "tuntap add dev vnet0 mode tap",
            "link set vnet0 master br0",
        ):
            host.run("ip", *command.split())
        # Off before: what switches the group on must not leave it on.
        host.run("ethtool", "-K", "nic0", "tx-tcp-mangleid-segmentation", "off")
        host.start()
        yield host
    finally:
        host.stop()
        subprocess.run(["ip", "netns", "del", host.name], check=True)
        subprocess.run(["ip", "link", "del", outside], check=False, capture_output=True)

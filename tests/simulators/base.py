"""What simulators of hypervisors and the guests of their VMs have to do with each other."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Guest:
    """What a simulated VM boots: a network namespace with an SSH server, in which an adapter of this kind seems to be."""

    name: str
    """Its host name."""
    mac: str
    nic_model: str
    address: IPv4Interface | None
    """None: it gets one from the world's DHCP."""


class World(Protocol):
    """The guests of simulated VMs: network namespaces on one bridge. Implemented by `tests.simulators.world.GuestWorld`."""

    @property
    def key(self) -> Path:
        """The private key that every guest lets in as root."""

    @property
    def known_hosts(self) -> Path:
        """The host keys of all guests, by their addresses."""

    def boot(self, guest: Guest) -> IPv4Interface:
        """Start a guest and return its address. A guest of this name that runs is an error of the simulator."""

    def pause(self, name: str) -> None:
        """Freeze all that runs in a guest."""

    def resume(self, name: str) -> None:
        """Let a frozen guest go on."""

    def stun(self, name: str, seconds: float) -> None:
        """Freeze a guest for a moment, and cut its link: what a live migration does at its end."""

    def stop(self, name: str) -> None:
        """End a guest and all that runs in it. No error when there is none."""

    def close(self) -> None:
        """End all guests and remove the bridge and everything else."""

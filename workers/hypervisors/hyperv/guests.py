"""Channels into the guests of Hyper-V: SSH and WinRM to the guest's address, PowerShell Direct through the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labctl.model.lab import ChannelKind, Image, SshAccess
from workers.channels.base import Channel, ChannelError
from workers.channels.ssh import SshChannel
from workers.guard import Guard
from workers.hypervisors.base import Vm
from workers.hypervisors.hyperv.connection import Connections
from workers.hypervisors.hyperv.vm import Presence


@dataclass(frozen=True, kw_only=True)
class Inside:
    """A VM as its channel needs it."""

    vm: Vm
    place: Callable[[], Presence]
    """Where it runs now, and its VMId."""
    connections: Connections

    @property
    def endpoint(self) -> str:
        """How messages name it."""
        return f"vm {self.vm.name}"


def channel(inside: Inside, image: Image, guard: Guard) -> Channel:
    """The channel into a VM. Raises `ChannelError` (`channel-refused`) when the lab file lacks what it needs."""
    if image.channel is ChannelKind.SSH:
        return _ssh(inside, image, guard)
    raise NotImplementedError


def _ssh(inside: Inside, image: Image, guard: Guard) -> Channel:
    address = inside.vm.address
    if image.ssh_key is None or not image.known_hosts or address is None:
        raise ChannelError(
            f"The VM {inside.vm.name} can't be reached by SSH.",
            kind="channel-refused",
            why="That needs `ssh_key` and `known_hosts` of its image, and an address of its own.",
            todo=f"Complete images.{image.name} in the lab file.",
            host=inside.vm.host,
        )
    access = SshAccess(address=str(address.ip), user=image.ssh_user, key=image.ssh_key, known_hosts=image.known_hosts)
    return SshChannel(endpoint=inside.endpoint, access=access, guard=guard)

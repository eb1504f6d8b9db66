"""Channels into the guests of Hyper-V: SSH and WinRM to the guest's address, PowerShell Direct through the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labctl.model.lab import ChannelKind, Image, SshAccess
from workers.channels.base import Channel, ChannelError
from workers.channels.powershell_direct import Place, powershell_direct_channel
from workers.channels.ssh import SshChannel
from workers.channels.winrm import winrm_access, winrm_channel
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
    if image.channel is ChannelKind.WINRM:
        return _winrm(inside, image, guard)
    if image.channel is ChannelKind.POWERSHELL_DIRECT:
        return powershell_direct_channel(
            endpoint=inside.endpoint, image=image, place=lambda: _place(inside), guard=guard
        )
    raise ChannelError(
        f"The VM {inside.vm.name} can't be reached by {image.channel}.",
        kind="channel-refused",
        why="Guests of Hyper-V are reached by powershell-direct, winrm or ssh.",
        todo=f"Correct `channel` of images.{image.name} in the lab file.",
        host=inside.vm.host,
    )


def _place(inside: Inside) -> Place:
    found = inside.place()
    return Place(host=found.host, powershell=inside.connections.shell(found.host), vm_id=found.id)


def _winrm(inside: Inside, image: Image, guard: Guard) -> Channel:
    address = inside.vm.address
    if address is None:
        raise ChannelError(
            f"The VM {inside.vm.name} can't be reached by WinRM.",
            kind="channel-refused",
            why="It has no address yet.",
            host=inside.vm.host,
        )
    access = winrm_access(image, address.ip, endpoint=inside.endpoint)
    return winrm_channel(access, endpoint=inside.endpoint, guard=guard, host=inside.vm.host)


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

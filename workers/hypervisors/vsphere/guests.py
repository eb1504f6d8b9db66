"""Channels into the guests of vSphere: VMware Tools through vCenter, SSH and WinRM to the guest's address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address

from pyVmomi import vim

from labctl.model.lab import ChannelKind, GuestSystem, Image, SshAccess
from workers.channels.base import Channel, ChannelError
from workers.channels.ssh import SshChannel
from workers.channels.vmtools import VmToolsChannel
from workers.channels.windows import WindowsChannel
from workers.channels.winrm import winrm_access, winrm_channel
from workers.guard import Guard
from workers.hypervisors.base import Vm
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.tools import GuestTools
from workers.hypervisors.vsphere.tools_powershell import ToolsPowerShell


@dataclass(frozen=True, kw_only=True)
class Inside:
    """A VM as its channel needs it. `session` and `machine` are asked for with each call."""

    vm: Vm
    session: Callable[[], Session]
    machine: Callable[[], vim.VirtualMachine]

    @property
    def endpoint(self) -> str:
        """How messages name it."""
        return f"vm {self.vm.name}"


def channel(inside: Inside, image: Image, guard: Guard) -> Channel:
    """The channel into a VM. Raises `ChannelError` (`channel-refused`) when the lab file lacks what it needs."""
    if image.channel is ChannelKind.VMTOOLS:
        return _tools(inside, image, guard)
    if image.channel is ChannelKind.SSH:
        return _ssh(inside, image, guard)
    if image.channel is ChannelKind.WINRM:
        access = winrm_access(image, _address(inside, image), endpoint=inside.endpoint)
        return winrm_channel(access, endpoint=inside.endpoint, guard=guard, host=inside.vm.host)
    raise ChannelError(
        f"The VM {inside.vm.name} can't be reached by {image.channel}.",
        kind="channel-refused",
        why="Guests of vSphere are reached by vmtools, ssh or winrm.",
        todo=f"Correct `channel` of images.{image.name} in the lab file.",
        host=inside.vm.host,
    )


def _tools(inside: Inside, image: Image, guard: Guard) -> Channel:
    """By VMware Tools, which follow the VM from host to host."""
    if image.login is None:
        raise ChannelError(
            f"Nobody can log in to the VM {inside.vm.name}.",
            kind="channel-refused",
            why="Guest operations of VMware Tools need a user of the guest and its password.",
            todo=f"Give images.{image.name} a `login` in the lab file.",
            host=inside.vm.host,
        )
    operations = GuestTools(inside.session, inside.machine, name=inside.vm.name, login=image.login)
    if image.system is GuestSystem.LINUX:
        return VmToolsChannel(endpoint=inside.endpoint, operations=operations, guard=guard)
    powershell = ToolsPowerShell(where=inside.endpoint, operations=operations, guard=guard, host=inside.vm.host)
    return WindowsChannel(endpoint=inside.endpoint, powershell=powershell, guard=guard)


def _ssh(inside: Inside, image: Image, guard: Guard) -> Channel:
    address = _address(inside, image)
    if image.ssh_key is None or not image.known_hosts:
        raise ChannelError(
            f"The VM {inside.vm.name} can't be reached by SSH.",
            kind="channel-refused",
            why="That needs `ssh_key` and `known_hosts` of its image.",
            todo=f"Complete images.{image.name} in the lab file, or use the channel vmtools.",
            host=inside.vm.host,
        )
    access = SshAccess(address=str(address), user=image.ssh_user, key=image.ssh_key, known_hosts=image.known_hosts)
    return SshChannel(endpoint=inside.endpoint, access=access, guard=guard)


def _address(inside: Inside, image: Image) -> IPv4Address:
    if inside.vm.address is None:
        raise ChannelError(
            f"The VM {inside.vm.name} can't be reached by {image.channel}.",
            kind="channel-refused",
            why="It has no address yet.",
            host=inside.vm.host,
        )
    return inside.vm.address.ip

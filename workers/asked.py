"""What the inside of a VM must turn out to be, and the errors that say that it is something else. Each is a lab-error."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.errors import LabError
from labctl.model.nic import NIC_MODELS
from labctl.model.order import VmShape
from labctl.model.result import Fact


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a VM's adapter must turn out to be."""

    mac: str
    address: str
    """With the length of its network's prefix; without it when a DHCP server gave the address, which alone knows that."""
    shape: VmShape
    tool: str

    def has(self, address: Fact) -> bool:
        """Whether an address that was found, with the length of its prefix, is the one that was asked for."""
        found = str(address or "")
        return self.address in (found, found.partition("/")[0])


def nic_missing(endpoint: str, asked: Asked) -> LabError:
    """The guest has no adapter of the MAC address."""
    return LabError(
        f"{endpoint} has no network adapter with address {asked.mac}.",
        kind="nic-missing",
        why=f"It was asked for with NIC model {NIC_MODELS[asked.shape.nic_model].name}; the guest has no driver for it, "
        "or the VM has no such device.",
        todo="Add the driver to the image, or leave out the NIC model.",
    )


def nic_mismatch(endpoint: str, *, wanted: str, found: str) -> LabError:
    """The adapter of the MAC address is one of another model."""
    return LabError(
        f"{endpoint} has another adapter than the one asked for.",
        kind="nic-mismatch",
        why=f"Asked: {wanted}. Found: {found}.",
        todo="See in the raw output what the hypervisor says that it made.",
    )


def offload_mismatch(endpoint: str, asked: Asked, offload: str, *, found: str, why: str) -> LabError:
    """An offload is not as it was asked for."""
    on = asked.shape.offloads[offload]
    return LabError(
        f"{endpoint}: offload {offload} is {found}, though {'on' if on else 'off'} was asked for.",
        kind="offload-mismatch",
        why=why,
        todo=f"Leave out this level of offload.{offload} for NIC model {asked.shape.nic_model}.",
    )


def check_mtu(endpoint: str, asked: Asked, found: Fact) -> None:
    """Raise `LabError` (`mtu-mismatch`) for another MTU than the one asked for."""
    if asked.shape.mtu is not None and found != asked.shape.mtu:
        raise LabError(
            f"{endpoint}: MTU is {found}, though {asked.shape.mtu} was asked for.",
            kind="mtu-mismatch",
            why="The driver or the network below it allows no such MTU.",
            todo="Leave out this level of mtu, or raise the MTU of the network on the hosts.",
        )


def check_path(endpoint: str, asked: Asked, *, up: bool, address: Fact, seconds: float) -> None:
    """Raise `LabError` (`link-down`, `address-missing`) for an adapter that still carries nothing after so many seconds."""
    if not up:
        raise LabError(
            f"{endpoint}: the link of its adapter did not come up in {seconds:g} s.",
            kind="link-down",
            todo="Check the bridge of the test network on the host.",
        )
    if not asked.has(address):
        raise LabError(
            f"{endpoint} has address {address or 'none'}, though {asked.address} was given to it.",
            kind="address-missing",
            why="The image did not take the address in the way that its kind and `customisation` in the lab file say.",
            todo="Use an image that understands it, or a network with DHCP.",
        )


def check_tool(endpoint: str, tool: str, said: Fact) -> None:
    """Raise `LabError` (`tool-missing`) when the transfer tool told no version."""
    text = str(said or "")
    if not text or "not found" in text:
        raise LabError(
            f"{tool} is not there in {endpoint}.",
            kind="tool-missing",
            why=text or "It printed no version.",
            todo=f"Install {tool} there.",
        )

"""What only some hypervisors have: images that boot there, and settings that act on their VMs."""

from __future__ import annotations

from collections.abc import Collection

from labctl.model.lab import Customisation, Host, Image, Lab, Network
from labctl.model.nic import NIC_MODELS, Hypervisor, NicModel
from labctl.model.settings import SETTINGS, Level

ONLY_KVM = ("machine_type", "queues", "vhost", "migrate_bandwidth", "auto_converge", "post_copy")
"""Settings that labctl can make true on KVM only: other hypervisors decide these things by themselves."""


_NEVER_TOLD = ("legacy", "vt-d")
"""Adapters whose static address the key-value exchange of Hyper-V doesn't set (Msvm_GuestNetworkAdapterConfiguration)."""


def hosts_for_vms(names: Collection[str], nic_model: str, image: str, lab: Lab) -> tuple[Host, ...]:
    """Those of the named hosts whose hypervisor has the NIC model and boots the image, in the order of the lab file.

    An image that the lab doesn't have boots everywhere, as does the one of a lab that only pretends.
    """
    model = NIC_MODELS[nic_model]
    kinds = model.hypervisors
    if image in lab.images and lab.simulated is None:
        kinds &= lab.images[image].hypervisors
    return tuple(host for host in lab.hosts.values() if host.name in names and host.hypervisor in kinds)


def why_no_host(names: Collection[str], nic_model: str, image: str, lab: Lab) -> str:
    """Why `hosts_for_vms` finds none among these hosts, in a sentence."""
    kinds = {lab.hosts[name].hypervisor for name in names}
    model = NIC_MODELS[nic_model]
    if not kinds & model.hypervisors:
        return f"{model.name} is no adapter of {' or '.join(sorted(kinds))}"
    here = " or ".join(sorted(kinds & model.hypervisors))
    there = " or ".join(sorted(lab.images[image].hypervisors))
    return f"{here} can't boot the image {image}, which is one of {there}"


def acts_nowhere(name: str, level: Level | None, hosts: Collection[Host], *, chosen: bool) -> str:
    """Why a level of a setting of `ONLY_KVM` makes no difference on VMs of these hosts; empty when it acts.

    `chosen` says whether the campaign names the setting for all its cells. Else its default is nobody's choice.
    """
    kinds = {host.hypervisor for host in hosts}
    if level is None or not kinds or Hypervisor.KVM in kinds or (not chosen and level == SETTINGS[name].default):
        return ""
    here = " or ".join(sorted(kinds))
    return (
        f"{name} can be set on {Hypervisor.KVM} only: {here} decides that by itself, so all its levels would be one run"
    )


def not_on_hyperv(model: NicModel, image: Image, network: Network) -> str:
    """Why VMs of an image of Hyper-V can't have this adapter on this network, in a sentence; empty when they may have it."""
    if model.name == "legacy" and image.generation != 1:
        return f"legacy is an adapter of VMs of generation 1, and the image {image.name} is of generation {image.generation}"
    if model.name in _NEVER_TOLD and network.is_static and image.customisation is Customisation.GUEST_OS:
        return f"Hyper-V tells guests the address of synthetic adapters only: {model.name} needs a network with DHCP"
    return ""


def needs_list(host: Host, model: NicModel) -> bool:
    """Whether the lab file must list the devices of a passthrough model. Hyper-V takes virtual functions from its switch."""
    return model.passthrough and not (model.name == "sr-iov" and host.hypervisor is Hypervisor.HYPERV)

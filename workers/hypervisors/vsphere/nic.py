"""The adapter of a VM: what it is attached to, and whether a guest type and hardware version have it at all."""

from __future__ import annotations

from typing import Any

from pyVmomi import vim, vmodl

from labctl.errors import LabError
from labctl.model.nic import NIC_MODELS
from workers.hypervisors.base import VmRequest
from workers.hypervisors.vsphere import definition
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.inventory import Item, properties, property_of
from workers.hypervisors.vsphere.places import HostPlace


def check_model(host: str, request: VmRequest) -> None:
    """Refuse a NIC model that vSphere doesn't have, or that lacks its device. `LabError` (`nic-unsupported`)."""
    model = request.shape.nic_model
    if model not in definition.DEVICES:
        raise _unsupported(
            host, request, f"vSphere has no such adapter; it has {', '.join(definition.DEVICES)}.", "Correct nic_model."
        )
    if NIC_MODELS[model].passthrough and not request.passthrough:
        raise _unsupported(
            host,
            request,
            "No device was named that could be given to the VM.",
            f"List PCI addresses under `devices` or `virtual_functions` of hosts.{host} in the lab file.",
        )


def check_guest(at: HostPlace, request: VmRequest, *, guest_id: str, version: str) -> None:
    """Refuse an adapter that the vCenter says guests of this type can't have with this hardware version. Two calls.

    `LabError` (`nic-unsupported`). Nothing is refused where the vCenter doesn't tell (`GuestOsDescriptor`).
    """
    model = request.shape.nic_model
    if NIC_MODELS[model].passthrough or not guest_id:
        return
    browser = property_of(at.session, at.compute, "environmentBrowser")
    spec = vim.EnvironmentBrowser.ConfigOptionQuerySpec(key=version or None, host=at.host, guestId=[guest_id])
    try:
        option = browser.QueryConfigOptionEx(spec=spec)
    except (vmodl.fault.NotSupported, vmodl.fault.InvalidArgument, vmodl.fault.InvalidRequest, TypeError):
        return  # TypeError: the library refuses descriptors that lack what the API says they have
    known = cards_of(option, guest_id)
    if known and definition.api_name(model) not in known:
        names = sorted(name for name in definition.DEVICES if definition.api_name(name) in known)
        raise _unsupported(
            at.name,
            request,
            f"Guests of type {guest_id} with hardware version {version or 'of the host'} can have {', '.join(names)}.",
            "Take this NIC model out of the campaign, or use a template with another guest type or hardware version.",
        )


def cards_of(option: Any, guest_id: str) -> frozenset[str]:  # noqa: ANN401
    """The adapters that guests of a type can have, by their names in the API; none when an option doesn't tell."""
    guests = (option.guestOSDescriptor if option is not None else None) or ()
    return frozenset(
        _type_name(card) for guest in guests if guest.id == guest_id for card in guest.supportedEthernetCard or ()
    )


def backing(at: HostPlace, network: Item, request: VmRequest) -> Any:  # noqa: ANN401
    """What the adapter is attached to: a network, a PCI device, or for `sr-iov` both. At most two calls.

    `LabError` (`nic-unsupported`) when the host doesn't have the device.
    """
    model = request.shape.nic_model
    if model not in ("sr-iov", "vt-d"):
        return network_backing(at.session, network)
    browser = property_of(at.session, at.compute, "environmentBrowser")
    target = browser.QueryConfigTarget(host=at.host)
    offered = (target.sriov if model == "sr-iov" else target.pciPassthrough) or []
    device = next((one for one in offered if one.pciDevice.id == request.passthrough), None)
    if device is None:
        there = ", ".join(sorted(one.pciDevice.id for one in offered)) or "none"
        raise _unsupported(
            at.name,
            request,
            f"The host offers no PCI device {request.passthrough} for it; it offers {there}.",
            "Enable passthrough or virtual functions of the device on the host, and reboot it if it asks for that.",
        )
    if model == "vt-d":
        return _device_backing(device)
    return network_backing(at.session, network), sriov_backing(offered, device)


def sriov_backing(offered: Any, device: Any) -> Any:  # noqa: ANN401
    """The backing by a virtual function, and by the physical one that it is of (both are on one physical NIC), as far as the
    host tells; or by a physical function, of which the host gives one of its virtual ones."""
    physical = device
    if device.virtualFunction:
        alike = [one for one in offered if not one.virtualFunction and one.pnic and one.pnic == device.pnic]
        physical = alike[0] if alike else None
    return vim.vm.device.VirtualSriovEthernetCard.SriovBackingInfo(
        physicalFunctionBacking=_device_backing(physical) if physical is not None else None,
        virtualFunctionBacking=_device_backing(device) if device.virtualFunction else None,
    )


def network_backing(session: Session, network: Item) -> Any:  # noqa: ANN401
    """The backing by the network's type: of a distributed port group, of NSX, or of a standard one. At most two calls."""
    kinds = vim.vm.device.VirtualEthernetCard
    ref = network.ref
    if isinstance(ref, vim.dvs.DistributedVirtualPortgroup):
        group = properties(session, (ref,), ("key", "config.distributedVirtualSwitch"))[0]
        switch = property_of(session, group["config.distributedVirtualSwitch"], "uuid")
        port = vim.dvs.PortConnection(portgroupKey=group["key"], switchUuid=switch)
        return kinds.DistributedVirtualPortBackingInfo(port=port)
    if isinstance(ref, vim.OpaqueNetwork):
        summary = property_of(session, ref, "summary")
        return kinds.OpaqueNetworkBackingInfo(
            opaqueNetworkId=summary.opaqueNetworkId, opaqueNetworkType=summary.opaqueNetworkType
        )
    return kinds.NetworkBackingInfo(deviceName=network.name, network=ref)


def differences(request: VmRequest, devices: Any) -> str:  # noqa: ANN401
    """Where the adapters of a VM are not the one that was asked for, in a sentence; empty when all is right."""
    found = definition.adapters(devices or ())
    if len(found) != 1:
        return f"it has {len(found)} adapters"
    facts = definition.adapter_facts(found[0])
    if facts["nic.model"] != request.shape.nic_model:
        return f"its adapter is a {facts['nic.model']}"
    mac = facts["nic.mac"]
    if mac is not None and str(mac).lower() != request.mac.lower():
        return f"its adapter has the MAC address {mac} instead of {request.mac}"
    return ""


def _device_backing(device: Any) -> vim.vm.device.VirtualPCIPassthrough.DeviceBackingInfo:  # noqa: ANN401
    pci = device.pciDevice
    return vim.vm.device.VirtualPCIPassthrough.DeviceBackingInfo(
        id=pci.id,
        deviceName=pci.deviceName,
        deviceId=format(pci.deviceId & 0xFFFF, "x"),
        vendorId=pci.vendorId,
        systemId=device.systemId,
    )


def _type_name(kind: Any) -> str:  # noqa: ANN401
    """The name of a type as the API gives it, of which pyvmomi makes the type where it knows it."""
    return str(getattr(kind, "__name__", kind)).rsplit(".", 1)[-1]


def _unsupported(host: str, request: VmRequest, why: str, todo: str) -> LabError:
    return LabError(
        f"Host {host} can't give {request.name} a {request.shape.nic_model} adapter.",
        kind="nic-unsupported",
        why=why,
        todo=todo,
        host=host,
    )

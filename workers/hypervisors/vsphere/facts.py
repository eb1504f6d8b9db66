"""What is true of an ESXi host, as its vCenter says. Sizes in bytes, link speeds in Mbit/s.

Sources: `HostSystem`, `HostNetworkInfo`, `DVPortgroupConfigInfo`, `AboutInfo` of the vSphere Web Services API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyVmomi import vim

from labctl.errors import LabError
from labctl.model.lab import Lab, Network
from labctl.model.result import Fact
from workers.hypervisors.vsphere import vm as vms
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.inventory import Item, plain, properties, property_of, related
from workers.hypervisors.vsphere.places import HostPlace, Places

_HOST = (
    "name",
    "parent",
    "summary.config.product",
    "summary.hardware",
    "summary.quickStats",
    "hardware.biosInfo",
    "hardware.systemInfo",
    "runtime.connectionState",
    "runtime.inMaintenanceMode",
    "runtime.powerState",
    "config.network",
    "config.certificate",
)
_SIMULATORS = ("vcsim", "govmomi", "simulator")
"""What simulators of vCenter call themselves in `AboutInfo`."""


def host_facts(lab: Lab, places: Places, host: str) -> Mapping[str, Fact]:
    """Facts of a host, by some ten calls. `simulated` says that the vCenter is a simulator."""
    place, row = places.look(host, _HOST)
    session = place.session
    facts: dict[str, Fact] = {"hostname": plain(row["name"]), "inventory.path": place.path}
    facts |= _about(session)
    facts |= _product(row["summary.config.product"])
    facts |= _hardware(row["summary.hardware"], row["hardware.biosInfo"])
    facts |= _use(row["summary.hardware"], row["summary.quickStats"])
    facts |= {
        "host.connection": str(row["runtime.connectionState"]),
        "host.maintenance": bool(row["runtime.inMaintenanceMode"]),
    }
    facts |= _machines(place, places)
    network = row["config.network"]
    if network is not None:
        for nic in network.pnic or ():
            facts |= _physical_nic(nic)
        for one in lab.networks.values():
            facts |= _lab_network(places, place, one, network)
    facts |= _datastore(session, places, host)
    return facts


def is_simulated(session: Session) -> bool:
    """Whether the vCenter says that it is a simulator."""
    about = session.content.about
    words = " ".join(
        str(word).lower() for word in (about.name, about.fullName, about.vendor, about.build, about.osType)
    )
    return any(simulator in words for simulator in _SIMULATORS)


def _about(session: Session) -> dict[str, Fact]:
    about = session.content.about
    return {
        "vcenter.name": session.vcenter.name,
        "vcenter.product": about.fullName,
        "vcenter.version": about.version,
        "vcenter.build": about.build,
        "vcenter.api": about.apiVersion,
        "simulated": is_simulated(session),
    }


def _product(product: Any) -> dict[str, Fact]:  # noqa: ANN401
    if product is None:
        return {}
    return {"esxi.version": product.version, "esxi.build": product.build, "esxi.product": product.fullName}


def _hardware(hardware: Any, bios: Any) -> dict[str, Fact]:  # noqa: ANN401
    facts: dict[str, Fact] = {
        "host.uuid": hardware.uuid,
        "host.vendor": hardware.vendor,
        "host.model": hardware.model,
        "cpu.model": hardware.cpuModel,
        "cpu.mhz": hardware.cpuMhz,
        "cpu.count": hardware.numCpuThreads,
        "cpu.cores": hardware.numCpuCores,
        "cpu.sockets": hardware.numCpuPkgs,
        "memory.bytes": hardware.memorySize,
    }
    if bios is not None:
        facts["bios.version"] = bios.biosVersion
        facts["bios.date"] = bios.releaseDate.date().isoformat() if bios.releaseDate is not None else None
    return facts


def _use(hardware: Any, quick: Any) -> dict[str, Fact]:  # noqa: ANN401
    used = quick.overallMemoryUsage
    return {
        "cpu.busy_mhz": quick.overallCpuUsage,
        "memory.free_bytes": hardware.memorySize - used * 2**20 if used is not None else None,
        "uptime_seconds": quick.uptime,
    }


def _machines(place: HostPlace, places: Places) -> dict[str, Fact]:
    rows = related(place.session, place.host, "vm", vim.VirtualMachine, ("runtime.powerState",))
    running = sum(str(row["runtime.powerState"]) == "poweredOn" for row in rows)
    ours = sum(vm.active for vm in vms.owned(place, places.folder(place.name).ref))
    return {"vms.running": running, "vms.ours": min(ours, running), "vms.foreign": max(0, running - ours)}


def _physical_nic(nic: Any) -> dict[str, Fact]:  # noqa: ANN401
    name = f"pnic.{nic.device}"
    speed = nic.linkSpeed
    return {
        f"{name}.driver": nic.driver,
        f"{name}.driver_version": getattr(nic, "driverVersion", None),
        f"{name}.firmware": getattr(nic, "firmwareVersion", None),
        f"{name}.link_mbit": speed.speedMb if speed is not None else 0,
        f"{name}.duplex": speed.duplex if speed is not None else None,
        f"{name}.mac": nic.mac,
        f"{name}.pci": nic.pci,
    }


def _lab_network(places: Places, place: HostPlace, wanted: Network, network: Any) -> dict[str, Fact]:  # noqa: ANN401
    """The port group that a network of the lab is on this host. Empty when there is none: `lacks` says so."""
    try:
        group = places.network(place.name, wanted)
    except LabError:
        return {}
    key = f"network.{wanted.name}"
    if isinstance(group.ref, vim.dvs.DistributedVirtualPortgroup):
        return _distributed(place.session, key, group, network)
    return _standard(key, group.name, network)


def _standard(key: str, name: str, network: Any) -> dict[str, Fact]:  # noqa: ANN401
    group = next((one for one in network.portgroup or () if one.spec.name == name), None)
    if group is None:
        return {f"{key}.kind": "standard", f"{key}.port_group": name}
    switch = next((one for one in network.vswitch or () if one.key == group.vswitch), None)
    policy = group.computedPolicy
    teaming, security, shaping = policy.nicTeaming, policy.security, policy.shapingPolicy
    return {
        f"{key}.kind": "standard",
        f"{key}.port_group": name,
        f"{key}.vlan": group.spec.vlanId,
        f"{key}.switch": group.spec.vswitchName,
        f"{key}.mtu": switch.mtu if switch is not None else None,
        f"{key}.uplinks": _devices(network, switch.pnic) if switch is not None else None,
        f"{key}.teaming": teaming.policy if teaming is not None else None,
        f"{key}.promiscuous": security.allowPromiscuous if security is not None else None,
        f"{key}.shaping": shaping.enabled if shaping is not None else None,
    }


def _distributed(session: Session, key: str, group: Item, network: Any) -> dict[str, Fact]:  # noqa: ANN401
    rows = properties(session, (group.ref,), ("config",))
    config = rows[0]["config"] if rows else None
    facts: dict[str, Fact] = {f"{key}.kind": "distributed", f"{key}.port_group": group.name}
    if config is None:
        return facts
    switch = config.distributedVirtualSwitch
    identity = property_of(session, switch, "uuid") if switch is not None else None
    proxy = next((one for one in network.proxySwitch or () if one.dvsUuid == identity), None)
    default = config.defaultPortConfig
    vlan = getattr(default, "vlan", None)
    teaming = getattr(default, "uplinkTeamingPolicy", None)
    shaping = getattr(default, "inShapingPolicy", None)
    return facts | {
        f"{key}.vlan": _vlan(vlan),
        f"{key}.switch": proxy.dvsName if proxy is not None else None,
        f"{key}.mtu": proxy.mtu if proxy is not None else None,
        f"{key}.uplinks": _devices(network, proxy.pnic) if proxy is not None else None,
        f"{key}.teaming": _value(getattr(teaming, "policy", None)),
        f"{key}.shaping": _value(getattr(shaping, "enabled", None)),
    }


def _datastore(session: Session, places: Places, host: str) -> dict[str, Fact]:
    """The datastore for VMs. Empty when it isn't clear which: `lacks` says so."""
    try:
        store = places.datastore(host)
    except LabError:
        return {}
    summary = property_of(session, store.ref, "summary")
    if summary is None:
        return {}
    return {
        "datastore.name": store.name,
        "datastore.kind": summary.type,
        "datastore.bytes": summary.capacity,
        "datastore.free_bytes": summary.freeSpace,
        "datastore.shared": summary.multipleHostAccess,
    }


def _devices(network: Any, keys: Iterable[str] | None) -> str:  # noqa: ANN401
    """The names of physical NICs, of which others know the keys only."""
    names = {nic.key: nic.device for nic in network.pnic or ()}
    return ",".join(names.get(key, key) for key in keys or ())


def _vlan(vlan: Any) -> Fact:  # noqa: ANN401
    """A VLAN's number, or ranges of a trunk."""
    number = getattr(vlan, "vlanId", None)
    if number is None or isinstance(number, int):
        return number
    return ",".join(f"{part.start}-{part.end}" for part in number)


def _value(policy: Any) -> Fact:  # noqa: ANN401
    """What a policy says, which has its value in a field."""
    value: Fact = getattr(policy, "value", None)
    return value

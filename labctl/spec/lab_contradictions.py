"""What is well-formed in a lab file, key by key, but can't be meant together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Interface

from labctl.errors import Problem
from labctl.model.nic import Hypervisor
from labctl.model.scenario import OTHER_HOST, OWN_HOST
from labctl.spec.host_contradictions import host_problems
from labctl.spec.image_contradictions import image_problems
from labctl.spec.lab_file import LabFile, MigrationField, pairs_of, strangers
from labctl.spec.source import Document, KeyPath
from labctl.spec.values import nearest


def contradictions(spec: LabFile, document: Document) -> Iterator[Problem]:
    """Every mistake that only shows when the keys of the file are seen together."""
    yield from _no_limit(spec, document)
    if spec.embedded is not None or spec.simulated is not None:
        yield from _beside_a_section(spec, document)
        return
    yield from _missing_parts(spec, document)
    yield from _names(spec, document)
    yield from _test_network_problems(spec, document)
    yield from _network_problems(spec, document)
    yield from host_problems(spec, document)
    yield from image_problems(spec, document)
    yield from _pair_problems(spec, document)
    yield from _addresses_twice(spec, document)
    yield from _outside_network(spec, document)
    yield from _unknown_load(spec, document)


def _no_limit(spec: LabFile, document: Document) -> Iterator[Problem]:
    if spec.quiet is not None and all(limit is None for _, limit in spec.quiet):
        names = ", ".join(type(spec.quiet).model_fields)
        yield document.problem(("quiet",), "names no limit", at_key=True, allowed=names)


def _unknown_load(spec: LabFile, document: Document) -> Iterator[Problem]:
    """Quiet limits for what hypervisors don't tell of a host."""
    blind = [name for name, host in spec.hosts.items() if host.hypervisor is Hypervisor.KVM and host.ssh is None]
    other = [name for name, host in spec.hosts.items() if host.hypervisor is not Hypervisor.KVM]
    for limit in ("load", "network"):
        if spec.quiet is None or getattr(spec.quiet, limit) is None:
            continue
        if blind:
            message = f"can't be looked at on host {blind[0]}, for which there is no `ssh`"
            yield document.problem(("quiet", limit), message, at_key=True)
        elif other and limit == "load":
            kind = spec.hosts[other[0]].hypervisor
            message = f"can't be looked at on host {other[0]}: {kind} knows no load average; `cpu` says the same"
            yield document.problem(("quiet", limit), message, at_key=True)


def _beside_a_section(spec: LabFile, document: Document) -> Iterator[Problem]:
    if spec.embedded is not None and spec.simulated is not None:
        line = document.key_place(("embedded",)).line
        message = f"a lab is either embedded (line {line}) or simulated"
        yield document.problem(("simulated",), message, at_key=True)
    section = "embedded" if spec.embedded is not None else "simulated"
    for key in ("vcenters", "hosts", "machines", "networks", "images", "migration", "limits", "test_network"):
        if key in document.root.entries:
            message = f"a lab that is {section} makes its own; what can be said of it stands under `{section}`"
            yield document.problem((key,), message, at_key=True)


def _missing_parts(spec: LabFile, document: Document) -> Iterator[Problem]:
    for key, found in (("hosts", spec.hosts), ("networks", spec.networks)):
        if not found:
            path: KeyPath = (key,) if key in document.root.entries else ()
            message = f"the lab has no {key}; name at least one, or describe a lab under `embedded` or `simulated`"
            yield document.problem(path, message, at_key=True)


def _names(spec: LabFile, document: Document) -> Iterator[Problem]:
    for kind, names in (("hosts", spec.hosts), ("machines", spec.machines)):
        for name in names:
            if name in (OWN_HOST, OTHER_HOST):
                yield document.problem((kind, name), "this name has a meaning of its own (see `peer`)", at_key=True)
    for name in spec.machines:
        if name in spec.hosts:
            line = document.key_place(("hosts", name)).line
            yield document.problem(("machines", name), f"a host has this name too (line {line})", at_key=True)


def _test_network_problems(spec: LabFile, document: Document) -> Iterator[Problem]:
    names = ", ".join(spec.networks)
    if spec.test_network is None and len(spec.networks) > 1:
        yield document.problem((), "the key `test_network` is missing: there are several networks", allowed=names)
    if spec.test_network is not None and spec.networks and spec.test_network not in spec.networks:
        near = nearest(spec.test_network, spec.networks)
        yield document.problem(("test_network",), "is no network of this lab", allowed=names, nearest=near)


def _network_problems(spec: LabFile, document: Document) -> Iterator[Problem]:
    for name, network in spec.networks.items():
        path: KeyPath = ("networks", name)
        yield from _vlan(name, spec, document)
        if network.addressing == "dhcp" and any(host.hypervisor is Hypervisor.KVM for host in spec.hosts.values()):
            message = "KVM guests get their address with their kernel command line, never by DHCP"
            yield document.problem((*path, "addressing"), message, allowed="static, with `guest_range`")
        if network.addressing == "static" and network.guest_range is None:
            yield document.problem(path, "with static addressing VMs need a `guest_range`", at_key=True)
        if network.guest_range is None:
            continue
        first, last = network.guest_range
        if first > last:
            yield document.problem((*path, "guest_range"), "the first address is above the last")
        elif (
            IPv4Interface((first, network.prefix_length)).network
            != IPv4Interface((last, network.prefix_length)).network
        ):
            yield document.problem((*path, "guest_range"), f"is more than one /{network.prefix_length} network")


def _vlan(name: str, spec: LabFile, document: Document) -> Iterator[Problem]:
    """VLANs that labctl doesn't set."""
    others = [host.hypervisor for host in spec.hosts.values() if host.hypervisor is not Hypervisor.HYPERV]
    if spec.networks[name].vlan is not None and others:
        where = {Hypervisor.KVM: "a bridge", Hypervisor.VSPHERE: "a port group"}[others[0]]
        message = f"is set on adapters of Hyper-V only; on {others[0]} give {where} that is in the VLAN"
        yield document.problem(("networks", name, "vlan"), message, at_key=True)


def _pair_problems(spec: LabFile, document: Document) -> Iterator[Problem]:
    if spec.migration is None:
        return
    yield from _named_pairs(spec.migration, spec, document)
    for name in sorted({destination for _, destination in pairs_of(spec) if destination in spec.hosts}):
        host = spec.hosts[name]
        if host.hypervisor is Hypervisor.KVM and host.migration_address is None:
            message = "VMs can't be migrated to this host without its `migration_address`"
            yield document.problem(("hosts", name), message, at_key=True)


def _named_pairs(migration: MigrationField, spec: LabFile, document: Document) -> Iterator[Problem]:
    for index, pair in enumerate(migration.pairs):
        path: KeyPath = ("migration", "pairs", index)
        unknown = False
        for side, name in enumerate(pair):
            if name not in spec.hosts:
                unknown = True
                allowed, near = ", ".join(spec.hosts), nearest(name, spec.hosts)
                yield document.problem((*path, side), "is no host of this lab", allowed=allowed, nearest=near)
        if unknown:
            continue
        if pair[0] == pair[1]:
            yield document.problem(path, "a host can't migrate to itself")
        elif why := strangers(source := spec.hosts[pair[0]], destination := spec.hosts[pair[1]]):
            named = {host.vcenter for host in (source, destination) if host.hypervisor is Hypervisor.VSPHERE}
            if named <= spec.vcenters.keys():  # else that mistake is told at the host
                yield document.problem(path, why)


def _addresses(spec: LabFile) -> Iterable[tuple[IPv4Address, KeyPath]]:
    for name, host in spec.hosts.items():
        if host.address is not None:
            yield host.address.ip, ("hosts", name, "address")
        if host.migration_address is not None and (host.address is None or host.migration_address != host.address.ip):
            yield host.migration_address, ("hosts", name, "migration_address")
    for name, machine in spec.machines.items():
        yield machine.address.ip, ("machines", name, "address")


def _addresses_twice(spec: LabFile, document: Document) -> Iterator[Problem]:
    seen: dict[IPv4Address, KeyPath] = {}
    for address, path in _addresses(spec):
        if address in seen:
            line = document.place(seen[address]).line
            yield document.problem(path, f"the same address is used at line {line}")
        seen.setdefault(address, path)


def _outside_network(spec: LabFile, document: Document) -> Iterator[Problem]:
    """Test addresses that VMs of the measured network can't reach without a router."""
    network = spec.networks.get(spec.test_network or next(iter(spec.networks), ""))
    if network is None or not network.guest_range:
        return
    first, last = network.guest_range
    guests = IPv4Interface((first, network.prefix_length)).network
    named = [(host.address, ("hosts", name, "address")) for name, host in spec.hosts.items() if host.address]
    named += [(machine.address, ("machines", name, "address")) for name, machine in spec.machines.items()]
    for address, path in named:
        if address.ip not in guests:
            yield document.problem(
                path, "is outside of the network that is measured", allowed=f"an address of {guests}"
            )
        elif first <= address.ip <= last:
            yield document.problem(path, "lies in the `guest_range` that VMs take their addresses from")

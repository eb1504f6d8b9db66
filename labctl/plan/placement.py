"""Where the endpoints of a run may be: all placements that a lab offers for a scenario, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import permutations

from labctl.model.lab import Host, Lab
from labctl.model.nic import NIC_MODELS, NicModel
from labctl.model.offloads import HOST_OFFLOAD
from labctl.model.order import EndpointOrder, Placement
from labctl.model.scenario import OTHER_HOST, OWN_HOST, Scenario, Side
from labctl.model.settings import Level
from labctl.plan.hypervisors import hosts_for_vms, needs_list, why_no_host
from labctl.plan.offloads import hosts_with_offload
from labctl.spec.cross_check import endpoint_keys

FACT_PREFIX = "host."
"""Settings of this family restrict the hosts to those that declare the fact."""


def hosts_with_fact(name: str, level: object, lab: Lab) -> frozenset[str]:
    """Names of the hosts that declare the fact of this setting (`host.NAME`) with this level."""
    fact = name.removeprefix(FACT_PREFIX)
    return frozenset(host.name for host in lab.hosts.values() if host.facts.get(fact) == level)


def hosts_for(settings: Mapping[str, Level], lab: Lab) -> frozenset[str]:
    """Names of the hosts that declare every fact, and on which every offload can be set, that the settings ask for; all
    hosts when they ask for none."""
    hosts = frozenset(lab.hosts)
    for name, level in settings.items():
        if chooses_hosts(name):
            hosts &= hosts_with(name, level, lab)
    return hosts


def chooses_hosts(name: str) -> bool:
    """Whether a setting of this name restricts the hosts on which a run may be."""
    return name.startswith((FACT_PREFIX, HOST_OFFLOAD))


def hosts_with(name: str, level: Level | None, lab: Lab) -> frozenset[str]:
    """Names of the hosts to which such a setting with this level restricts runs; all hosts when it says nothing."""
    if name.startswith(FACT_PREFIX):
        return frozenset(lab.hosts) if level is None else hosts_with_fact(name, level, lab)
    return hosts_with_offload(name, level, lab)


def find_placements(
    scenario: Scenario, lab: Lab, *, hosts: frozenset[str], nic_model: str, image: str, peer: str
) -> tuple[tuple[Placement, ...], str]:
    """All placements on these hosts, and when there is none the reason in a sentence.

    The order is that of the hosts in the lab file. With hosts of several kinds, a placement takes only hosts that have
    the NIC model and boot the image, and as many devices as it needs of a passthrough model.
    """
    if not hosts:
        return (), "no host of the lab declares all the facts, and has all the offloads, that the cell asks for"
    model = NIC_MODELS[nic_model] if scenario.vms else None
    usable = [host for host in lab.hosts.values() if host.name in hosts]
    if model is not None:
        usable = list(hosts_for_vms(hosts, nic_model, image, lab))
        if not usable:
            return (), why_no_host(hosts, nic_model, image, lab)
    found = tuple(_on(scenario, usable, lab, peer))
    if not found:
        return (), _why_none(scenario, usable, lab, peer)
    most = max(_vms_on_one_host(placement) for placement in found)
    if most > lab.limits.vms_per_host:
        return (
            (),
            f"{scenario} puts {most} VMs on one host, and the lab allows {lab.limits.vms_per_host} (`vms_per_host`)",
        )
    if model is None or not model.passthrough:
        return found, ""
    enough = tuple(placement for placement in found if _enough_devices(placement, model, lab))
    return enough, "" if enough else _why_no_device(model, most)


def _on(scenario: Scenario, hosts: list[Host], lab: Lab, peer: str) -> Iterator[Placement]:
    names = [host.name for host in hosts]
    if scenario is Scenario.SAME_HOST:
        for name in names:
            yield Placement(sender=_vm(Side.SENDER, name), receiver=_vm(Side.RECEIVER, name))
    elif scenario is Scenario.CROSS_HOST:
        for first, second in permutations(names, 2):
            yield Placement(sender=_vm(Side.SENDER, first), receiver=_vm(Side.RECEIVER, second))
    elif scenario is Scenario.DURING_MIGRATION:
        for source, destination in permutations(names, 2):
            if (source, destination) in lab.migration_pairs:
                yield Placement(
                    sender=_vm(Side.SENDER, source), receiver=_vm(Side.RECEIVER, source), destination=destination
                )
    elif scenario is Scenario.VM_TO_HOST:
        for name in names:
            for host_side in _peers(name, hosts, lab, peer, Side.RECEIVER):
                yield Placement(sender=_vm(Side.SENDER, name), receiver=host_side)
    elif scenario is Scenario.HOST_TO_VM:
        for name in names:
            for host_side in _peers(name, hosts, lab, peer, Side.SENDER):
                yield Placement(sender=host_side, receiver=_vm(Side.RECEIVER, name))
    else:
        for host in _endpoints(hosts):
            sender = EndpointOrder(side=Side.SENDER, host=host.name, vm=False)
            for host_side in _peers(host.name, hosts, lab, peer, Side.RECEIVER):
                yield Placement(sender=sender, receiver=host_side)


@cache
def _vm(side: Side, host: str) -> EndpointOrder:
    return EndpointOrder(side=side, host=host, vm=True)


def _peers(own: str, hosts: list[Host], lab: Lab, peer: str, side: Side) -> Iterator[EndpointOrder]:
    """The host side of a transfer whose other side is on `own`."""
    if peer in lab.machines:
        yield EndpointOrder(side=side, host=peer, vm=False, machine=True)
        return
    for host in _endpoints(hosts):
        if (peer == OWN_HOST and host.name == own) or (peer == OTHER_HOST and host.name != own):
            yield EndpointOrder(side=side, host=host.name, vm=False)


def _endpoints(hosts: Iterable[Host]) -> list[Host]:
    """Hosts that can be endpoints themselves."""
    return [host for host in hosts if host.can_be_endpoint]


def _why_none(scenario: Scenario, hosts: list[Host], lab: Lab, peer: str) -> str:
    if scenario is Scenario.CROSS_HOST:
        return "cross-host needs two hosts, and the lab has only one that fits"
    if scenario is Scenario.DURING_MIGRATION:
        if not lab.migration_pairs:
            return "no two hosts of the lab have a migration path"
        return "no two of the hosts that fit have a migration path"
    if peer not in (OWN_HOST, OTHER_HOST) and peer not in lab.machines:
        return f"the lab has no machine named {peer}"
    if not _endpoints(hosts):
        return f"{scenario} needs a host with {endpoint_keys(hosts)}, and no host that fits has that"
    if peer == OTHER_HOST:
        return f"the peer other-host needs a second host with {endpoint_keys(hosts)}"
    return f"the lab has no hosts for {scenario}"


def _vms_on_one_host(placement: Placement) -> int:
    hosts = [side.host for side in (placement.sender, placement.receiver) if side.vm]
    return max((hosts.count(host) for host in hosts), default=0)


def _enough_devices(placement: Placement, model: NicModel, lab: Lab) -> bool:
    hosts = [side.host for side in (placement.sender, placement.receiver) if side.vm]
    return all(
        not needs_list(lab.hosts[host], model) or len(_devices(lab.hosts[host], model)) >= hosts.count(host)
        for host in hosts
    )


def _devices(host: Host, model: NicModel) -> tuple[str, ...]:
    return host.virtual_functions if model.name == "sr-iov" else host.devices


def _why_no_device(model: NicModel, needed: int) -> str:
    key = "virtual_functions" if model.name == "sr-iov" else "devices"
    if needed == 1:
        return f"{model.name} needs a PCI device on the VM's host, and no host that fits lists one under `{key}`"
    return f"{model.name} needs {needed} PCI devices on one host, and no host that fits lists so many under `{key}`"

"""Placing: creating the VMs of an attempt (or taking parked ones), and letting go of them again."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Interface

from labctl.errors import LabError
from labctl.model.lab import Image, Lab, Network
from labctl.model.nic import NIC_MODELS
from labctl.model.order import EndpointOrder, RunOrder, VmShape
from labctl.model.scenario import Side
from labctl.plan.hypervisors import needs_list
from labctl.spec.documents import to_json
from labctl.store import ClaimedAttempt, Store, VmRecord
from workers.channels.base import Channel
from workers.guard import Deadline, Guard
from workers.hypervisors.base import NAME_PREFIX, OwnershipMark, Vm, VmRequest
from workers.machines import Machines
from workers.macs import mac_of_address, mac_of_serial, serials
from workers.together import together

_LAB_NAME = 32
"""So many characters of a lab's name go into the names of its VMs."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One side of the transfer, ready to be spoken to."""

    side: Side
    subject: str
    """As facts name it: `vm:sender`, `host:a`, `machine:box`."""
    host: str
    """The host that it is on at first, or the plain machine that it is."""
    channel: Channel
    address: IPv4Address
    vm: Vm | None = None


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Both sides of the transfer."""

    sender: Endpoint
    receiver: Endpoint

    def side(self, side: Side) -> Endpoint:
        """The endpoint of a side."""
        return self.sender if side is Side.SENDER else self.receiver

    @property
    def both(self) -> tuple[Endpoint, Endpoint]:
        """Sender and receiver."""
        return self.sender, self.receiver


def place(claimed: ClaimedAttempt, machines: Machines, store: Store, guard: Guard) -> Placed:
    """Create what the order asks for, both sides at once, and wait until both answer.

    Raises `LabError` (`boot-timeout`, `name-taken`, `create-failed`, ...) after both sides have come to an end, so that
    everything that exists is recorded.
    """
    order = claimed.order

    def one(endpoint: EndpointOrder) -> Endpoint:
        if endpoint.vm:
            return _vm_endpoint(claimed, endpoint, machines, store, guard)
        return _machine_endpoint(endpoint, machines, order)

    sender, receiver = together([order.placement.sender, order.placement.receiver], one)
    return Placed(sender=sender, receiver=receiver)


def _machine_endpoint(endpoint: EndpointOrder, machines: Machines, order: RunOrder) -> Endpoint:
    lab = machines.lab
    address = (lab.machines if endpoint.machine else lab.hosts)[endpoint.host].address
    if address is None:
        raise LabError(
            f"Host {endpoint.host} can't be an endpoint.",
            kind="no-address",
            why="The lab file gives no `address` of it on the test network.",
            todo=f"Add `address` to hosts.{endpoint.host} in the lab file.",
            host=endpoint.host,
        )
    channel = machines.channel(endpoint.host)
    channel.wait_ready(timeout=order.timeouts.command)
    kind = "machine" if endpoint.machine else "host"
    subject = f"{kind}:{endpoint.host}"
    return Endpoint(side=endpoint.side, subject=subject, host=endpoint.host, channel=channel, address=address.ip)


def _vm_endpoint(
    claimed: ClaimedAttempt, endpoint: EndpointOrder, machines: Machines, store: Store, guard: Guard
) -> Endpoint:
    shape = claimed.order.vm
    assert shape is not None
    image = machines.lab.images[shape.image]
    record = _parked(claimed, endpoint, shape, store)
    if record is not None:
        vm = vm_of(record)
        machines.driver(record.host).unpause(vm)
    else:
        vm = _create(claimed, endpoint, shape, image, machines, store)
    guard.check()
    vm, channel = _reached(vm, image, machines, store, seconds=claimed.order.timeouts.boot)
    assert vm.address is not None
    return Endpoint(
        side=endpoint.side,
        subject=f"vm:{endpoint.side}",
        host=endpoint.host,
        channel=channel,
        address=vm.address.ip,
        vm=vm,
    )


def _reached(vm: Vm, image: Image, machines: Machines, store: Store, *, seconds: float) -> tuple[Vm, Channel]:
    """The VM with its address, and the channel into it, as soon as it answers.

    Raises `LabError`: `boot-timeout`, or `no-guest-address` when no DHCP server gave it one.
    """
    deadline = Deadline.after(seconds)
    driver, network = machines.driver(vm.host), machines.lab.network()
    try:
        if not network.is_static:
            found = IPv4Interface((driver.address(vm, timeout=deadline.left), network.prefix_length))
            if found != vm.address:
                store.change_vm(vm.uuid, address=str(found))
                vm = replace(vm, address=found)
        channel = driver.channel(vm, image)
        channel.wait_ready(timeout=deadline.left)
    except LabError as error:
        if error.kind == "no-guest-address":
            raise
        raise LabError(
            f"VM {vm.name} did not answer within {seconds:g} s.",
            kind="boot-timeout",
            why=_boot_reason(machines, vm, error),
            todo="See the console in the raw output; raise timeouts.boot when the host is only slow.",
            host=vm.host,
        ) from error
    return vm, channel


def _boot_reason(machines: Machines, vm: Vm, error: LabError) -> str:
    """What can be told of a VM that doesn't answer: what was waited for, and the end of its console."""
    reason = " ".join(part for part in (error.what, error.why) if part)
    with suppress(LabError):
        facts = machines.driver(vm.host).read_back(vm)
        if "console_tail" in facts:
            reason += f" The end of its console: {facts['console_tail'] or 'nothing was printed'}"
    return reason


def _parked(claimed: ClaimedAttempt, endpoint: EndpointOrder, shape: VmShape, store: Store) -> VmRecord | None:
    if not claimed.order.reuse:
        return None
    return store.take_parked(
        claimed.campaign_id, host=endpoint.host, role=endpoint.side, shape=to_json(shape), attempt_id=claimed.id
    )


def _create(
    claimed: ClaimedAttempt,
    endpoint: EndpointOrder,
    shape: VmShape,
    image: Image,
    machines: Machines,
    store: Store,
) -> Vm:
    lab = machines.lab
    network = lab.network()
    name = _name(lab, claimed, endpoint)
    vm_uuid = str(uuid.uuid4())

    def build(mac: str, address: str) -> VmRecord:
        return VmRecord(
            uuid=vm_uuid,
            name=name,
            lab=lab.name,
            host=endpoint.host,
            campaign_id=claimed.campaign_id,
            run_id=claimed.run_id,
            attempt_id=claimed.id,
            role=endpoint.side,
            mac=mac,
            address=address,
            shape=to_json(shape),
            state="live",
        )

    record = _recorded(build, claimed, endpoint, network, lab, store)
    vm = vm_of(record)
    request = VmRequest(
        name=name,
        uuid=vm_uuid,
        shape=shape,
        image=image,
        network=network,
        address=vm.address,
        mac=record.mac,
        mark=OwnershipMark(
            lab=lab.name,
            campaign=claimed.campaign_id,
            run=claimed.run_id,
            attempt=claimed.id,
            role=endpoint.side,
            store=store.identity,
        ),
        passthrough=_device(lab, endpoint, shape),
    )
    # When `create` fails the record stays: the release looks whether a VM came about all the same.
    return machines.driver(endpoint.host).create(endpoint.host, request, timeout=claimed.order.timeouts.boot)


def _name(lab: Lab, claimed: ClaimedAttempt, endpoint: EndpointOrder) -> str:
    """Names of VMs may have 80 characters in vSphere and 100 in Hyper-V; the mark has the whole name of the lab."""
    run = f"c{claimed.campaign_id}-r{claimed.run_id}-a{claimed.number}"
    return f"{NAME_PREFIX}{lab.name[:_LAB_NAME]}-{run}-{endpoint.side}"


def _recorded(
    build: Callable[[str, str], VmRecord],
    claimed: ClaimedAttempt,
    endpoint: EndpointOrder,
    network: Network,
    lab: Lab,
    store: Store,
) -> VmRecord:
    """The record of a VM that is about to be created. With DHCP it has a MAC of its own and no address yet."""
    hypervisor = lab.hosts[endpoint.host].hypervisor
    # VMs that only pretend are no loss: with the power their record may go.
    after, durable = 2 * claimed.id, lab.simulated is None
    if network.is_static:
        first, last = _guest_range(network)
        return store.record_vm(
            lambda address: build(mac_of_address(hypervisor, address), f"{address}/{network.prefix_length}"),
            first=first, last=last, after=after, durable=durable,
        )  # fmt: skip
    return store.record_vm_without_address(
        lambda serial: build(mac_of_serial(hypervisor, serial, store=store.identity), ""),
        serials=serials(hypervisor), after=after, durable=durable,
    )  # fmt: skip


def _guest_range(network: Network) -> tuple[IPv4Address, IPv4Address]:
    if network.guest_range is None:
        raise LabError(
            f"Network {network.name} has no guest addresses.",
            kind="addresses",
            todo=f"Give networks.{network.name}.guest_range in the lab file.",
        )
    return network.guest_range


def _device(lab: Lab, endpoint: EndpointOrder, shape: VmShape) -> str:
    host = lab.hosts[endpoint.host]
    devices = {"vt-d": host.devices, "sr-iov": host.virtual_functions}.get(shape.nic_model)
    if devices is None or not needs_list(host, NIC_MODELS[shape.nic_model]):
        return ""
    position = 0 if endpoint.side is Side.SENDER else len(devices) - 1
    if not devices:
        raise LabError(
            f"Host {endpoint.host} has no device for {shape.nic_model}.", kind="no-device", host=endpoint.host
        )
    return devices[position]


def _home(claimed: ClaimedAttempt, record: VmRecord) -> str:
    """The host on which the next run would look for a VM of this role. One that was migrated away is not parked."""
    placement = claimed.order.placement
    return (placement.sender if record.role == Side.SENDER else placement.receiver).host


def vm_of(record: VmRecord) -> Vm:
    """The VM that a record is about."""
    return Vm(
        name=record.name,
        uuid=record.uuid,
        host=record.host,
        mac=record.mac,
        address=IPv4Interface(record.address) if record.address else None,
    )


def release(claimed: ClaimedAttempt, machines: Machines, store: Store, *, park: bool) -> tuple[str, ...]:
    """Destroy the VMs of an attempt, or park them for reuse. Returns a sentence for each that could not be let go of.

    What could not be destroyed stays recorded, so that cleaning finds it later. Raises `AttemptCancelled` when the attempt
    was given up: its VMs are then removed by others.
    """

    def one(record: VmRecord) -> str:
        vm = vm_of(record)
        driver = machines.driver(record.host)
        try:
            if park and record.host == _home(claimed, record):
                driver.pause(vm)
                store.park_vm(vm.uuid, claimed.id)
            else:
                driver.destroy(vm)
                store.change_vm(vm.uuid, state="gone")
        except LabError as error:
            return f"VM {vm.name} could not be released: {error.what}"
        return ""

    return tuple(said for said in together(store.vms_of_attempt(claimed.id), one) if said)

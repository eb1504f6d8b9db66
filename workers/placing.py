"""Placing: creating the VMs of an attempt (or taking parked ones), and letting go of them again."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface

from labctl.errors import LabError
from labctl.model.lab import Image, Lab, Network
from labctl.model.order import EndpointOrder, RunOrder, VmShape
from labctl.model.scenario import Side
from labctl.spec.documents import to_json
from labctl.store import ClaimedAttempt, Store, VmRecord
from workers.channels.base import Channel
from workers.guard import Guard
from workers.hypervisors.base import NAME_PREFIX, OwnershipMark, Vm, VmRequest
from workers.machines import Machines
from workers.together import together


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
    channel = machines.driver(endpoint.host).channel(vm, image)
    try:
        channel.wait_ready(timeout=claimed.order.timeouts.boot)
    except LabError as error:
        raise LabError(
            f"VM {vm.name} did not answer within {claimed.order.timeouts.boot:g} s.",
            kind="boot-timeout",
            why=_boot_reason(machines, vm, error),
            todo="See the console in the raw output; raise timeouts.boot when the host is only slow.",
            host=endpoint.host,
        ) from error
    address = vm.address
    assert address is not None
    return Endpoint(
        side=endpoint.side,
        subject=f"vm:{endpoint.side}",
        host=endpoint.host,
        channel=channel,
        address=address.ip,
        vm=vm,
    )


def _boot_reason(machines: Machines, vm: Vm, error: LabError) -> str:
    """What can be told of a VM that doesn't answer: where it runs, and the end of its console."""
    reason = str(error.what)
    with suppress(LabError):
        console = machines.driver(vm.host).read_back(vm).get("console_tail")
        reason += f" The end of its console: {console or 'nothing was printed'}"
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
    name = f"{NAME_PREFIX}{lab.name}-c{claimed.campaign_id}-r{claimed.run_id}-a{claimed.number}-{endpoint.side}"
    vm_uuid = str(uuid.uuid4())

    def build(address: IPv4Address) -> VmRecord:
        return VmRecord(
            uuid=vm_uuid,
            name=name,
            lab=lab.name,
            host=endpoint.host,
            campaign_id=claimed.campaign_id,
            run_id=claimed.run_id,
            attempt_id=claimed.id,
            role=endpoint.side,
            mac=_mac(address),
            address=f"{address}/{network.prefix_length}",
            shape=to_json(shape),
            state="live",
        )

    first, last = _guest_range(network)
    # VMs that only pretend are no loss: with the power their record may go.
    durable = lab.simulated is None
    record = store.record_vm(build, first=first, last=last, after=2 * claimed.id, durable=durable)
    request = VmRequest(
        name=name,
        uuid=vm_uuid,
        shape=shape,
        image=image,
        network=network,
        address=IPv4Interface(record.address),
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


def _guest_range(network: Network) -> tuple[IPv4Address, IPv4Address]:
    if network.guest_range is None:
        raise LabError(
            f"Network {network.name} has no guest addresses.",
            kind="addresses",
            todo=f"Give networks.{network.name}.guest_range in the lab file.",
        )
    return network.guest_range


def _mac(address: IPv4Address) -> str:
    """A locally administered address of QEMU's range, unique in a lab because guest addresses are."""
    low = int(address) & 0xFFFFFF
    return f"52:54:00:{low >> 16:02x}:{(low >> 8) & 0xFF:02x}:{low & 0xFF:02x}"


def _device(lab: Lab, endpoint: EndpointOrder, shape: VmShape) -> str:
    host = lab.hosts[endpoint.host]
    devices = {"vt-d": host.devices, "sr-iov": host.virtual_functions}.get(shape.nic_model)
    if devices is None:
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
        name=record.name, uuid=record.uuid, host=record.host, mac=record.mac, address=IPv4Interface(record.address)
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

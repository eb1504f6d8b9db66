"""Requests for small guests, and a driver that ends at the test's end whatever the test created with it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import IPv4Interface

from labctl.errors import LabError
from labctl.model.lab import Image, Lab
from labctl.model.order import MigrationOrder, VmShape
from labctl.model.scenario import Side
from workers.channels.base import Channel
from workers.guard import Guard
from workers.hypervisors.base import OwnershipMark, Vm, VmRequest
from workers.hypervisors.kvm.driver import KvmDriver
from workers.hypervisors.simulated.driver import SimulatedDriver

STORE = "store-of-tests"
BOOT_SECONDS = 90.0

_numbers = itertools.count(1)


AnyDriver = KvmDriver | SimulatedDriver


def driver_of(lab: Lab, *, store: str, guard: Guard) -> AnyDriver:
    """The driver of a lab's hosts: of KVM, or of a lab that only pretends."""
    kind = SimulatedDriver if lab.simulated is not None else KvmDriver
    return kind(lab, store=store, guard=guard)


class Guests:
    """A driver of the hosts of a lab, with a record of what it was asked to create."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.guard = Guard()
        self.driver = driver_of(lab, store=STORE, guard=self.guard)
        self.made: list[Vm] = []

    def request(self, *, image: Image | None = None, passthrough: str = "", **shape: object) -> VmRequest:
        """A request for a VM of 192 MiB; keywords change its shape."""
        network = self.lab.network()
        assert network.guest_range is not None
        number = next(_numbers)
        identity = uuid.uuid4()
        values = {
            "image": "probe",
            "nic_model": "virtio",
            "vcpus": 1,
            "memory": 192 * 2**20,
            "queues": 1,
            "machine_type": "q35",
        } | shape
        return VmRequest(
            name=f"labctl-test-{identity.hex[:12]}",
            uuid=str(identity),
            shape=VmShape(**values),  # type: ignore[arg-type]
            image=image or self.lab.images["probe"],
            network=network,
            address=IPv4Interface(f"{network.guest_range[0] + number}/{network.prefix_length}"),
            mac=f"52:54:00:7e:{number >> 8:02x}:{number & 255:02x}",
            mark=OwnershipMark(lab=self.lab.name, campaign=3, run=5, attempt=7, role="sender", store=STORE),
            passthrough=passthrough,
        )

    def create(self, host: str = "a", request: VmRequest | None = None, **shape: object) -> Vm:
        """Create a VM, which is destroyed at the end of the test."""
        request = request or self.request(**shape)  # type: ignore[arg-type]
        self.expect(request, host)
        return self.driver.create(host, request, timeout=60)

    def expect(self, request: VmRequest, host: str) -> Vm:
        """A VM that may come to be, and is destroyed at the end of the test if it does."""
        vm = Vm(name=request.name, uuid=request.uuid, host=host, mac=request.mac, address=request.address)
        self.made.append(vm)
        return vm

    def boot(self, host: str = "a", request: VmRequest | None = None, **shape: object) -> tuple[Vm, Channel]:
        """Create a VM and wait until its agent answers."""
        vm = self.create(host, request, **shape)
        channel = self.driver.channel(vm, self.lab.images["probe"])
        channel.wait_ready(timeout=BOOT_SECONDS)
        return vm, channel

    def another_driver(self, *, lab: Lab | None = None, store: str = STORE) -> AnyDriver:
        """A driver that knows nothing of what this one did."""
        return driver_of(lab or self.lab, store=store, guard=Guard())


@contextmanager
def guests_of(lab: Lab) -> Iterator[Guests]:
    """`Guests` of a lab, all gone at the end."""
    guests = Guests(lab)
    try:
        yield guests
    finally:
        for vm in guests.made:
            with suppress(LabError):
                guests.driver.destroy(vm)
        left = [vm for host in lab.hosts for vm in guests.another_driver().owned(host) if vm.name in _names(guests)]
        guests.driver.close()
        assert not left, f"left behind: {left}"


def _names(guests: Guests) -> set[str]:
    return {vm.name for vm in guests.made}


def an_order(**changes: object) -> MigrationOrder:
    """A plain migration with a deadline of a minute."""
    order = MigrationOrder(
        mover=Side.RECEIVER, at=0.3, back=False, bandwidth=None, auto_converge=False, post_copy=False, deadline=60.0
    )
    return replace(order, **changes)  # type: ignore[arg-type]

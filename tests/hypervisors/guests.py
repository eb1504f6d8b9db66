"""Requests for small guests, and a driver that ends at the test's end whatever the test created with it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from ipaddress import IPv4Interface

from labctl.errors import LabError
from labctl.model.lab import Customisation, Image, Lab
from labctl.model.nic import Hypervisor
from labctl.model.order import MigrationOrder, VmShape
from labctl.model.scenario import Side
from workers.channels.base import Channel
from workers.guard import Guard
from workers.hypervisors.base import OwnershipMark, Vm, VmDriver, VmRequest
from workers.hypervisors.simulated.driver import SimulatedDriver
from workers.machines import DRIVERS

STORE = "store-of-tests"
BOOT_SECONDS = 90.0

_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How the tests' guests of one hypervisor are asked for."""

    nic_model: str
    another_nic_model: str
    never_boots: Callable[[Image], Image]
    """An image that the hypervisor starts and in which nothing ever answers at the VM's address."""
    limits_bandwidth: bool = True
    """Whether a migration can be ordered to be slow."""


HABITS = {
    Hypervisor.KVM: Habits(
        nic_model="virtio",
        another_nic_model="e1000",
        never_boots=lambda image: replace(image, initrd="", command_line=""),
    ),
    Hypervisor.VSPHERE: Habits(
        nic_model="vmxnet3",
        another_nic_model="e1000",
        never_boots=lambda image: replace(image, customisation=Customisation.NONE),
        limits_bandwidth=False,
    ),
    Hypervisor.HYPERV: Habits(
        nic_model="synthetic",
        another_nic_model="sr-iov",
        never_boots=lambda image: replace(
            image, disk=image.disk.replace("probe", "never-boots"), customisation=Customisation.NONE
        ),
    ),
}


def driver_of(lab: Lab, store: str, guard: Guard) -> VmDriver:
    """The driver of a lab's hosts, or of a lab that only pretends."""
    if lab.simulated is not None:
        return SimulatedDriver(lab, store=store, guard=guard)
    module, _, name = DRIVERS[hypervisor_of(lab)].partition(":")
    driver: VmDriver = getattr(import_module(module), name)(lab, store=store, guard=guard)
    return driver


def hypervisor_of(lab: Lab) -> Hypervisor:
    """The hypervisor of a lab's hosts."""
    (hypervisor,) = {host.hypervisor for host in lab.hosts.values()}
    return hypervisor


class Guests:
    """A driver of the hosts of a lab, with a record of what it was asked to create."""

    def __init__(
        self,
        lab: Lab,
        *,
        make: Callable[[Lab, str, Guard], VmDriver] = driver_of,
        slow_down: Callable[[], object] = lambda: None,
    ) -> None:
        """`slow_down` is called before a migration that has to take longer than an order's bandwidth would let it."""
        self.lab = lab
        self.habits = HABITS[hypervisor_of(lab)]
        self.guard = Guard()
        self._make = make
        self._slow_down = slow_down
        self.driver = make(lab, STORE, self.guard)
        self.made: list[Vm] = []

    def request(self, *, image: Image | None = None, passthrough: str = "", **shape: object) -> VmRequest:
        """A request for a VM of 192 MiB; keywords change its shape."""
        network = self.lab.network()
        assert network.guest_range is not None
        number = next(_numbers)
        first, last = network.guest_range
        # A test process asks for more VMs than a small range has addresses; those of earlier tests are free again.
        address = first + number % (int(last) - int(first) + 1)
        identity = uuid.uuid4()
        values = {
            "image": "probe",
            "nic_model": self.habits.nic_model,
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
            address=IPv4Interface(f"{address}/{network.prefix_length}"),
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

    def a_slow_order(self) -> MigrationOrder:
        """A migration that would take much longer than its deadline of a second."""
        self._slow_down()
        return an_order(bandwidth=8 * 2**20 if self.habits.limits_bandwidth else None, deadline=1.0)

    def another_driver(self, *, lab: Lab | None = None, store: str = STORE) -> VmDriver:
        """A driver that knows nothing of what this one did."""
        return self._make(lab or self.lab, store, Guard())


@contextmanager
def guests_of(
    lab: Lab,
    *,
    make: Callable[[Lab, str, Guard], VmDriver] = driver_of,
    slow_down: Callable[[], object] = lambda: None,
) -> Iterator[Guests]:
    """`Guests` of a lab, all gone at the end."""
    guests = Guests(lab, make=make, slow_down=slow_down)
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

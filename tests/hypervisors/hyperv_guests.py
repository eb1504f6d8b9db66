"""`Guests` on simulated Hyper-V hosts, with or without something running inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labctl.model.lab import Lab
from tests.hypervisors.guests import Guests, guests_of
from tests.simulators.hyperv.lab import a_datacentre, a_lab
from tests.simulators.hyperv.shell import opener
from tests.simulators.hyperv.state import Datacentre
from tests.simulators.world import GuestWorld
from workers.guard import Guard
from workers.hypervisors.base import VmDriver
from workers.hypervisors.hyperv.driver import HypervDriver


@contextmanager
def hyperv_guests(world: GuestWorld) -> Iterator[Guests]:
    """VMs on two hosts whose guests are namespaces of a world."""
    centre = a_datacentre(world=world)
    network = world.network
    lab = a_lab(
        key=world.key,
        known_hosts=world.known_hosts,
        guest_range=(str(network[20]), str(network[network.num_addresses // 2 - 1])),
    )
    try:
        with guests_of(lab, make=maker(centre), slow_down=lambda: setattr(centre, "move_seconds", 60.0)) as guests:
            yield guests
    finally:
        centre.close()


def maker(centre: Datacentre) -> Callable[[Lab, str, Guard], VmDriver]:
    """What makes drivers of these hosts, without a wire between."""

    def make(lab: Lab, store: str, guard: Guard) -> VmDriver:
        return HypervDriver(lab, store=store, guard=guard, opener=opener(centre))

    return make

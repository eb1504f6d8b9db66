"""`Guests` on simulated Hyper-V hosts, with or without something running inside, with or without a wire between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from labctl.model.lab import Lab
from tests.hypervisors.guests import Guests, guests_of
from tests.simulators.hyperv.endpoint import PASSWORD, PASSWORD_VARIABLE, access_to, endpoints_of
from tests.simulators.hyperv.lab import a_datacentre, a_lab
from tests.simulators.hyperv.shell import opener
from tests.simulators.hyperv.state import Datacentre
from tests.simulators.world import GuestWorld
from workers.guard import Guard
from workers.hypervisors.base import VmDriver
from workers.hypervisors.hyperv.driver import HypervDriver


@contextmanager
def hyperv_guests(world: GuestWorld) -> Iterator[Guests]:
    """VMs on two hosts that are reached by WinRM, with namespaces of a world as guests."""
    centre = a_datacentre(world=world)
    network = world.network
    first, last = network[20], network[network.num_addresses // 2 - 1]
    with pytest.MonkeyPatch.context() as patch, endpoints_of(centre) as endpoints:
        patch.setenv(PASSWORD_VARIABLE, PASSWORD)
        lab = a_lab(
            key=world.key,
            known_hosts=world.known_hosts,
            winrm={name: access_to(endpoint) for name, endpoint in endpoints.items()},
            guest_range=(str(first), str(last)),
        )
        try:
            with guests_of(lab, slow_down=lambda: setattr(centre, "move_seconds", 60.0)) as guests:
                yield guests
        finally:
            centre.close()


def maker(centre: Datacentre) -> Callable[[Lab, str, Guard], VmDriver]:
    """What makes drivers of these hosts, without a wire between."""

    def make(lab: Lab, store: str, guard: Guard) -> VmDriver:
        return HypervDriver(lab, store=store, guard=guard, opener=opener(centre))

    return make

"""A simulated vCenter that the tests of it share, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulators.vcenter_client import ESX1, ESX2, ESX3, Client
from tests.simulators.vcsim import Datastore, VcSim, vcsim
from tests.simulators.world import GuestWorld


@pytest.fixture(scope="session")
def vcenter_world() -> Iterator[GuestWorld]:
    with GuestWorld() as world:
        yield world


@pytest.fixture(scope="session")
def running_vcenter(vcenter_world: GuestWorld) -> Iterator[VcSim]:
    with vcsim(
        standalone=(ESX3,),
        datastores=(Datastore(name="shared", hosts=(ESX1, ESX2)), Datastore(name="local", hosts=(ESX3,))),
        networks=("Test Network",),
        portgroups=("dvpg-test", "twin", "twin"),
        machines=5000,
        functions=("0000:3b:02.0",),
        world=vcenter_world,
    ) as vc:
        yield vc


@pytest.fixture
def vc(running_vcenter: VcSim) -> Iterator[VcSim]:
    """The vCenter, whole again after the test."""
    yield running_vcenter
    running_vcenter.heal()
    running_vcenter.session_idle(0)
    running_vcenter.lack({})
    running_vcenter.pace()
    running_vcenter.honest_tools()
    for host in (ESX1, ESX2):
        running_vcenter.host(host, connection="connected", maintenance=False, incompatible=False, vmotion=True)


@pytest.fixture
def client(vc: VcSim) -> Iterator[Client]:
    client = Client(vc)
    yield client
    vc.heal()
    vc.session_idle(0)
    client.close()

"""The published experiments on Hyper-V, from the command line to the report: by WinRM to simulated hosts, with real traffic
between guests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from labctl.model.result import CampaignRecord
from tests.journeys.elsewhere import SHORT, FarDesk, a_far_desk, fact, result_of
from tests.simulators.hyperv.endpoint import PASSWORD, PASSWORD_VARIABLE, USER, scripts_of
from tests.simulators.hyperv.lab import DISK, DISK_1, STORAGE, a_datacentre
from tests.simulators.hyperv.state import Datacentre
from tests.simulators.windows import SimulatedAdapter, SimulatedWindows
from tests.simulators.winrm import Context, Run, WinrmEndpoint
from tests.simulators.world import GuestWorld
from workers.hypervisors.hyperv.connection import PACKAGE
from workers.locallab.system import run
from workers.powershell.base import Json

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

DRIVERS = {"hv1": "6.0.60.0", "hv2": "6.0.60.0", "hv3": "5.2.22.0", "hv4": "5.2.22.0"}


def lab_of(world: GuestWorld, endpoints: dict[str, WinrmEndpoint]) -> dict[str, Any]:
    """The lab file. Its images are Linux ones, as the guests of the world are; they have the names of the campaigns'. All is
    on this machine, so one run goes on at a time."""
    network = world.network
    guests = {"ssh_key": f"file:{world.key}", "known_hosts": str(world.known_hosts)}
    return {
        "lab": "hyperv",
        "hosts": {
            name: {
                "hypervisor": "hyperv",
                "winrm": {"url": endpoint.url, "user": USER, "password": f"env:{PASSWORD_VARIABLE}"},
                "storage": STORAGE,
                "address": f"{network[number]}/{network.prefixlen}",
                "machine": "here",
                "facts": {"nic_driver": DRIVERS[name]},
            }
            for number, (name, endpoint) in enumerate(endpoints.items(), start=2)
        },
        "networks": {
            "data": {
                "bridge": "data",
                "guest_range": [str(network[20]), str(network[120])],
                "prefix_length": network.prefixlen,
            }
        },
        "images": {
            "windows": {"kind": "disk", "disk": DISK} | guests,
            "generation-1": {"kind": "disk", "disk": DISK_1, "generation": 1} | guests,
        },
        "migration": "all",
    }


@pytest.fixture(scope="module")
def world() -> Iterator[GuestWorld]:
    """Guests; the parent partitions are this machine, with an address for each in the guests' network."""
    with GuestWorld() as made:
        for number in range(2, 2 + len(DRIVERS)):
            address = f"{made.network[number]}/{made.network.prefixlen}"
            run(["ip", "address", "add", address, "dev", made.bridge], what="An address of a host")
        yield made


@pytest.fixture(scope="module")
def centre(world: GuestWorld) -> Iterator[Datacentre]:
    made = a_datacentre(*DRIVERS, world=world, move_seconds=0.5)
    yield made
    made.close()


@pytest.fixture(scope="module")
def partitions(world: GuestWorld, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SimulatedWindows]:
    """What channels to the hosts themselves find there: programs of this machine, and settings of adapters."""
    made = {}
    for number, name in enumerate(DRIVERS, start=2):
        made[name] = SimulatedWindows(tmp_path_factory.mktemp(name))
        made[name].chimney = "automatic"
        made[name].adapters = [
            SimulatedAdapter(name="NIC 1", switch="data", addresses=[]),
            SimulatedAdapter(name="vEthernet (data)", addresses=[f"{world.network[number]}/{world.network.prefixlen}"]),
        ]
    return made


@contextmanager
def endpoints_to(centre: Datacentre, partitions: Mapping[str, SimulatedWindows]) -> Iterator[dict[str, WinrmEndpoint]]:
    """An endpoint for each host: what isn't a script about VMs is one of the partition itself."""

    def runner(host: str) -> Run:
        about_vms = scripts_of(centre, host)

        def run_script(name: str, document: Mapping[str, Json], context: Context) -> Json:
            of_hyperv = context.package == PACKAGE
            return (about_vms if of_hyperv else partitions[host].run)(name, document, context)

        return run_script

    with ExitStack() as stack:
        yield {
            name: stack.enter_context(WinrmEndpoint(runner(name), host=name, users={USER: PASSWORD}))
            for name in DRIVERS
        }


@pytest.fixture(scope="module")
def desk(
    world: GuestWorld,
    centre: Datacentre,
    partitions: dict[str, SimulatedWindows],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[FarDesk]:
    before = os.environ.get(PASSWORD_VARIABLE)
    os.environ[PASSWORD_VARIABLE] = PASSWORD

    def seen() -> list[str]:
        return [f"{vm.name} on {host.name}" for host in centre.hosts.values() for vm in host.vms.values()]

    with (
        endpoints_to(centre, partitions) as endpoints,
        a_far_desk(lab_of(world, endpoints), tmp_path_factory.mktemp("desk"), seen=seen) as made,
    ):
        yield made
    if before is None:
        del os.environ[PASSWORD_VARIABLE]


def placed(record: CampaignRecord, **levels: Any) -> tuple[str, ...]:
    """The hosts of the only run of a cell."""
    (cell,) = [cell for cell in record.cells if cell.levels == levels]
    (run,) = [run for run in record.runs if run.cell == cell.id]
    return run.hosts


def test_the_lab_is_checked(desk: FarDesk) -> None:
    found = {(item["name"], item["way"]): item for item in desk.check(code=0)}
    assert {name for name, way in found if way == "hypervisor"} == set(DRIVERS)
    assert all(item["lacks"] == [] for item in found.values())
    assert found["hv1", "hypervisor"]["facts"]["simulated"] is True
    assert [way for _, way in found].count("winrm") == 4
    assert len(found) == 4 + 4 + 4 * 3


def test_scenarios_of_2009(desk: FarDesk) -> None:
    """H7: the time that the VM stood still is from the log of its host."""
    record = desk.whole(desk.shortened("hyperv-scenarios-2009"))
    moved = result_of(record, {"scenario": "during-migration"})
    (migration,) = moved.migrations
    assert (migration.completed, migration.downtime_ms, migration.queued_ms) == (True, 200, 0)
    assert fact(moved, "vm:receiver", "before", "placement.host") == migration.source
    assert fact(moved, "vm:receiver", "after", "placement.host") == migration.destination
    assert fact(moved, "vm:sender", "after", "placement.host") == migration.source
    assert fact(moved, "vm:sender", "created", "nic.model") == "synthetic"
    assert fact(moved, "vm:sender", "before", "ethtool.driver") == "hv_netvsc"
    intervals = moved.transfers[-1].reading.intervals
    assert intervals is not None
    assert len(intervals) >= 29


def test_offloads_of_2009(desk: FarDesk, partitions: dict[str, SimulatedWindows]) -> None:
    """What the hosts had before is theirs again afterwards."""
    record = desk.whole(desk.shortened("hyperv-tcp-offload-2009"))
    assert len(record.cells) == 8
    for cell in record.cells:
        result = result_of(record, cell.levels)
        host = next(item.subject for item in result.facts if item.subject.startswith("host:"))
        assert fact(result, host, "before", "offload.chimney") == (
            "on" if cell.levels["host_offload.chimney"] else "off"
        )
    assert {partition.chimney for partition in partitions.values()} == {"automatic"}
    assert all(partition.processes() == [] and partition.folders() == [] for partition in partitions.values())


def test_drivers_of_2010(desk: FarDesk) -> None:
    record = desk.whole(desk.shortened("hyperv-flex10-drivers-2010"))
    for scenario in ("same-host", "cross-host"):
        for driver in ("5.2.22.0", "6.0.60.0"):
            hosts = placed(record, scenario=scenario, **{"host.nic_driver": driver})
            assert {DRIVERS[host] for host in hosts} == {driver}
            assert len(hosts) == (1 if scenario == "same-host" else 2)


def test_both_adapters_of_one_guest(desk: FarDesk) -> None:
    """H10, and addresses by DHCP, which are read from the host: legacy adapters can't be told a static one."""
    document = desk.embedded_lab()
    document |= {"lab": "hyperv-dhcp", "networks": {"data": {"bridge": "data", "addressing": "dhcp"}}}
    factors = {"nic_model": ["synthetic", "legacy"], "image": ["windows", "generation-1"]}
    record = desk.whole(
        desk.campaign("adapters.yaml", scenarios="same-host", factors=factors, settings=SHORT),
        lab=desk.file("dhcp.yaml", document),
    )
    (reason,) = [cell.reason for cell in record.cells if not cell.applicable]
    assert reason == "legacy is an adapter of VMs of generation 1, and the image windows is of generation 2"
    result = result_of(record, {"scenario": "same-host", "nic_model": "legacy", "image": "generation-1"})
    assert fact(result, "vm:sender", "created", "nic.model") == "legacy"
    assert fact(result, "vm:sender", "before", "ethtool.driver") == "tulip"
    assert fact(result, "vm:sender", "before", "address") != fact(result, "vm:receiver", "before", "address")

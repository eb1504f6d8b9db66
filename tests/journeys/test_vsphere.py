"""The published experiment on vSphere, and what else a night there brings, from the command line to the report: by pyvmomi
to a simulated vCenter, with real traffic between guests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from labctl.model.outcome import Outcome
from tests.desk import until
from tests.hypervisors.vsphere_guests import machines, somebody
from tests.journeys.elsewhere import MOVING, SHORT, FarDesk, a_far_desk, fact, result_of
from tests.simulators.vcsim import HOSTS, VM_NETWORK, VcSim, vcsim
from tests.simulators.world import GuestWorld

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

ADAPTERS = {"e1000": "e1000", "e1000e": "e1000e", "vmxnet3": "vmxnet3", "vmxnet2": "vmxnet", "pcnet32": "pcnet32"}
"""NIC models, and the drivers that guests have for them."""


def lab_of(vc: VcSim, world: GuestWorld) -> dict[str, Any]:
    """The lab file. Its images are Linux ones, as the guests of the world are; they have the names of the campaign's, and
    one is reached by VMware Tools, the other by SSH. All is on this machine, so one run goes on at a time."""
    network = world.network
    for name, secret in (("vcenter", vc.password), ("guest", vc.guest_password)):
        vc.ca_file.with_name(f"{name}.password").write_text(secret)
    guest = {"user": vc.guest_user, "password": f"file:{vc.ca_file.with_name('guest.password')}"}
    ssh = {"channel": "ssh", "ssh_key": f"file:{world.key}", "known_hosts": str(world.known_hosts)}
    template = {"kind": "template", "template": "linux-template"}
    return {
        "lab": "vsphere",
        "vcenters": {
            "vc": {
                "address": vc.address,
                "user": vc.user,
                "password": f"file:{vc.ca_file.with_name('vcenter.password')}",
                "thumbprint": vc.thumbprint,
            }
        },
        "hosts": {
            name.partition(".")[0]: {
                "hypervisor": "vsphere",
                "vcenter": "vc",
                "inventory": name,
                "datastore": "shared",
                "machine": "here",
            }
            for name in HOSTS
        },
        "networks": {
            "data": {
                "bridge": VM_NETWORK,
                "guest_range": [str(network[20]), str(network[120])],
                "prefix_length": network.prefixlen,
            }
        },
        "images": {
            "windows-2008r2": template | {"login": guest},
            "windows-2012r2": template | {"customisation": "guestinfo", "clone": "full"} | ssh,
        },
        "migration": "all",
    }


@pytest.fixture(scope="module")
def world() -> Iterator[GuestWorld]:
    with GuestWorld() as made:
        yield made


@pytest.fixture(scope="module")
def vc(world: GuestWorld) -> Iterator[VcSim]:
    with vcsim(world=world) as made:
        yield made


@pytest.fixture(scope="module")
def desk(vc: VcSim, world: GuestWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarDesk]:
    def seen() -> list[str]:
        session = somebody(vc)
        try:
            return [name for name in machines(session) if name.startswith("labctl-")]
        finally:
            session.close()

    with a_far_desk(lab_of(vc, world), tmp_path_factory.mktemp("desk"), seen=seen) as made:
        yield made


def test_the_lab_is_checked(desk: FarDesk) -> None:
    found = {(item["name"], item["way"]): item for item in desk.check(code=0)}
    assert set(found) == {
        ("esx1", "hypervisor"),
        ("esx2", "hypervisor"),
        ("esx1", "migration to esx2"),
        ("esx2", "migration to esx1"),
    }
    assert found["esx1", "hypervisor"]["facts"]["simulated"] is True


def test_a_right_that_is_missing_keeps_a_campaign_from_starting(desk: FarDesk, vc: VcSim) -> None:
    vc.lack({"Network.Assign": [VM_NETWORK]})
    try:
        found = {(item["name"], item["way"]): item for item in desk.check(code=3)}
        (lack,) = found["esx1", "hypervisor"]["lacks"]
        assert f"Network.Assign on network /dc1/network/{VM_NETWORK}" in lack["what"]
        assert lack["todo"]
        refused = desk.run(desk.shortened("vsphere-vmxnet3-e1000-2014")).wait()
        assert refused.code == 3, refused.said
        assert "Network.Assign" in refused.said.replace("\n", " ")
        assert desk.leftovers() == []
    finally:
        vc.lack({})


def test_the_experiment_of_2014(desk: FarDesk) -> None:
    record = desk.whole(desk.shortened("vsphere-vmxnet3-e1000-2014", settings={"streams": 4}))
    assert len(record.cells) == 4
    for cell in record.cells:
        result = result_of(record, cell.levels)
        model = str(cell.levels["nic_model"])
        for side in ("sender", "receiver"):
            assert fact(result, f"vm:{side}", "created", "nic.model") == model
            assert fact(result, f"vm:{side}", "before", "ethtool.driver") == ADAPTERS[model]
        assert result.transfers[-1].reading.streams == 4


def test_other_adapters_across_hosts_and_while_a_vm_moves(desk: FarDesk) -> None:
    """V5, V6, V9, V13: what a vMotion waited for its turn is no part of what it took, and a time that nobody measured is
    unknown."""
    document = {
        "scenarios": ["cross-host", "during-migration"],
        "factors": {"nic_model": ["vmxnet2", "pcnet32"]},
        "exclude": [{"scenario": "during-migration", "nic_model": "pcnet32"}],
        "settings": SHORT | {"image": "windows-2012r2"},
        "overrides": [{"when": {"scenario": "during-migration"}, "set": MOVING}],
    }
    record = desk.whole(desk.campaign("adapters.yaml", **document))
    for cell in record.cells:
        result = result_of(record, cell.levels)
        assert fact(result, "vm:sender", "before", "ethtool.driver") == ADAPTERS[str(cell.levels["nic_model"])]
        assert str(fact(result, "vm:sender", "created", "nic.mac")).startswith("00:50:56:")
    moved = result_of(record, {"scenario": "during-migration", "nic_model": "vmxnet2"})
    (migration,) = moved.migrations
    assert (migration.completed, migration.queued_ms is not None) == (True, True)
    assert (migration.downtime_ms is None) == bool(migration.no_downtime)
    assert fact(moved, "vm:receiver", "after", "placement.host") == migration.destination != migration.source


def test_a_vm_that_drs_moves_gives_no_figure(desk: FarDesk, vc: VcSim) -> None:
    """V10: the run is made anew, and the figure of the attempt that was disturbed counts nowhere."""
    settings = SHORT | {"image": "windows-2012r2", "nic_model": "vmxnet3", "seconds": 5}
    command = desk.run(desk.campaign("drs.yaml", scenarios="same-host", settings=settings, retries=1))
    desk.phase(command, "transfer")
    (sender,) = [vm for vm in desk.store.live_vms() if vm.role == "sender"]
    vc.drs_move(sender.name, next(host for host in HOSTS if not host.startswith(sender.host)))
    ended = command.wait()
    assert ended.code == 0, ended.said
    (run,) = desk.record(desk.newest()).runs
    assert run.result is not None
    assert run.result.detail.outcome is Outcome.OK
    (earlier,) = [result.detail for result in run.earlier]
    assert (earlier.outcome, earlier.kind) == (Outcome.LAB_ERROR, "disturbed")
    assert "DRS" in earlier.why


def test_a_vcenter_that_restarts_in_the_night_costs_no_run(desk: FarDesk, vc: VcSim) -> None:
    """V1, V2: sessions and tasks are unknown afterwards, and nothing is made twice."""
    settings = SHORT | {"image": "windows-2012r2", "nic_model": "vmxnet3", "seconds": 4}
    command = desk.run(desk.campaign("restart.yaml", scenarios="same-host", settings=settings, repeats=2))
    desk.phase(command, "transfer")
    vc.restart(closed=0.3)
    ended = command.wait()
    assert ended.code == 0, ended.said
    runs = desk.record(desk.newest()).runs
    assert [run.result.detail.outcome for run in runs if run.result is not None] == [Outcome.OK, Outcome.OK]
    until("all VMs are gone", lambda: not desk.leftovers(), seconds=20)

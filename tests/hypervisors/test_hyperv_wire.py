"""Hyper-V hosts behind WinRM that break on the way: nothing is done twice, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.model.lab import ChannelKind, Customisation, GuestSystem, Lab, Login, SecretRef
from labctl.model.result import MigrationSample
from tests.hypervisors.guests import Guests, an_order, guests_of
from tests.simulators.hyperv.endpoint import PASSWORD, PASSWORD_VARIABLE, Inside, access_to, endpoints_of
from tests.simulators.hyperv.lab import a_datacentre, a_lab
from tests.simulators.hyperv.state import Datacentre, SimulatedVm
from tests.simulators.windows import SimulatedWindows
from tests.simulators.winrm import WinrmEndpoint
from workers.hypervisors.hyperv import migration, moving
from workers.hypervisors.hyperv import vm as vms

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Datacentre, dict[str, WinrmEndpoint], Lab]]:
    centre = a_datacentre()
    with pytest.MonkeyPatch.context() as patch, endpoints_of(centre) as endpoints:
        patch.setenv(PASSWORD_VARIABLE, PASSWORD)
        yield centre, endpoints, a_lab(winrm={name: access_to(one) for name, one in endpoints.items()})


@pytest.fixture
def centre(hosts: tuple[Datacentre, dict[str, WinrmEndpoint], Lab]) -> Datacentre:
    return hosts[0]


@pytest.fixture
def endpoints(hosts: tuple[Datacentre, dict[str, WinrmEndpoint], Lab]) -> dict[str, WinrmEndpoint]:
    return hosts[1]


@pytest.fixture
def guests(hosts: tuple[Datacentre, dict[str, WinrmEndpoint], Lab]) -> Iterator[Guests]:
    with guests_of(hosts[2]) as made:
        yield made


def test_h2_a_vm_whose_creation_lost_its_connection_is_made_once(
    guests: Guests, centre: Datacentre, endpoints: dict[str, WinrmEndpoint]
) -> None:
    """H2: the job is found again, never started twice."""
    guests.driver.owned("a")
    before = endpoints["a"].jobs.started["create-vm"]
    endpoints["a"].mishaps.cut_receive = 1
    vm = guests.create()
    assert endpoints["a"].jobs.started["create-vm"] == before + 1
    assert [one.name for one in centre.hosts["a"].vms.values()] == [vm.name]


def test_h12_names_go_there_and_back_as_they_are(guests: Guests, centre: Datacentre) -> None:
    """H12: VMs of others may be named as they like; quotes, backticks and other alphabets break nothing."""
    names = ["ä'$(x)`", 'say "x"; rm', "東京\n2", "<Objs>&amp;"]
    others = [centre.add_vm("b", SimulatedVm(name=name, notes=name)) for name in names]
    found = vms.listing(guests.driver._connections, "b")  # type: ignore[attr-defined]
    assert [one.name for one in found] == names
    for one in others:
        del centre.hosts["b"].vms[one.id]


def test_a_host_that_restarts_in_mid_move_loses_its_job_and_its_vms(
    guests: Guests, centre: Datacentre, endpoints: dict[str, WinrmEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(moving, "WATCH_SECONDS", 0.1)
    centre.hosts["a"].faults.hang = True
    vm = guests.create()

    def restart() -> None:
        centre.restart("a", seconds=0)
        endpoints["a"].restart()

    seen: list[MigrationSample] = []

    def crash(sample: MigrationSample) -> None:
        if not seen:
            restart()
        seen.append(sample)

    outcome = guests.driver.migrate(vm, "b", an_order(), on_sample=crash)
    centre.hosts["a"].faults.hang = False
    assert (outcome.completed, outcome.error_kind) == (False, "failed")
    assert "doesn't run on its source" in outcome.error
    assert guests.driver.locate(vm) is None
    guests.driver.destroy(vm)
    assert centre.hosts["a"].vms == {}


def test_h5_a_login_that_isnt_delegated_is_told_from_the_hosts_own_error(guests: Guests, centre: Datacentre) -> None:
    """H5: a host that was set to CredSSP behind our back has no credentials of ours for the other one."""
    vm = guests.create()
    centre.hosts["a"].authentication = "credssp"
    try:
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert "credssp" in guests.driver.check_migration("a", "b")
    finally:
        centre.hosts["a"].authentication = "kerberos"
    assert (outcome.completed, outcome.error_kind) == (False, "refused")
    assert "0x8009030E" in outcome.error
    assert "constrained delegation" in outcome.error


def test_a_windows_guest_is_entered_through_the_host_that_it_runs_on(
    guests: Guests, centre: Datacentre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PowerShell Direct follows a VM that is migrated, and needs no address of it."""
    monkeypatch.setenv("LABCTL_TEST_GUEST", "guest's $ecret")
    image = replace(
        guests.lab.images["probe"],
        customisation=Customisation.NONE,
        system=GuestSystem.WINDOWS,
        channel=ChannelKind.POWERSHELL_DIRECT,
        login=Login(user="Administrator", password=SecretRef(scheme="env", locator="LABCTL_TEST_GUEST")),
    )
    vm = guests.create(request=guests.request(image=image))
    (id,) = centre.hosts["a"].vms
    inside = SimulatedWindows(tmp_path)
    centre.insides[id] = Inside(inside.run, user="Administrator", password="guest's $ecret")
    channel = guests.driver.channel(vm, image)
    channel.wait_ready(timeout=10)
    assert channel.run(["echo", "it's", "$x"], timeout=20).stdout == b"it's $x\n"
    assert guests.driver.migrate(vm, "b", an_order()).completed
    assert channel.run(["echo", "there"], timeout=20).stdout == b"there\n"
    channel.close()
    assert inside.folders() == []


def test_errors_of_scripts_name_the_host(guests: Guests, centre: Datacentre) -> None:
    centre.hosts["b"].faults.start_fails = "Ungültiger Vorgang"
    with pytest.raises(LabError) as caught:
        guests.create("b")
    centre.hosts["b"].faults.start_fails = ""
    assert (caught.value.host, caught.value.kind) == ("b", "create-failed")
    assert "Ungültiger Vorgang" in caught.value.why

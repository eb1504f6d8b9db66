"""Whether simulated Hyper-V hosts can migrate to each other, what they lack, and what is true of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.errors import LabError
from labctl.model.lab import Host, Login, MigrationAuth, SecretRef, WinrmAccess, WinrmTransport
from tests.hypervisors.guests import STORE, guests_of
from tests.hypervisors.hyperv_guests import maker
from tests.simulators.hyperv.lab import DISK, STORAGE, a_datacentre, a_lab
from tests.simulators.hyperv.state import RUNNING, Datacentre, SimulatedVm
from workers.guard import Guard
from workers.hypervisors.base import VmDriver
from workers.hypervisors.hyperv.paths import check_inventory, explained
from workers.powershell.base import ScriptError


@pytest.fixture
def centre() -> Datacentre:
    return a_datacentre()


@pytest.fixture
def driver(centre: Datacentre) -> VmDriver:
    return maker(centre)(a_lab(), STORE, Guard())


def test_h5_two_hosts_that_trust_each_other(driver: VmDriver) -> None:
    """H5: asked before anything is made."""
    assert driver.check_migration("a", "b") == ""


@pytest.mark.parametrize(
    ("host", "change", "words"),
    [
        ("a", {"migration_enabled": False}, ("not enabled", "host a", "Enable-VMMigration")),
        ("b", {"migration_enabled": False}, ("not enabled", "host b")),
        ("b", {"authentication": "credssp"}, ("host b", "credssp", "kerberos", "migration_auth")),
        ("a", {"maximum": 0}, ("MaximumVirtualMachineMigrations",)),
        ("b", {"switches": {"other": True}}, ("no virtual switch data", "Host b")),
        ("b", {"processor": "AuthenticAMD"}, ("different makers",)),
    ],
)
def test_h5_h13_what_speaks_against_it_is_said(
    driver: VmDriver, centre: Datacentre, host: str, change: dict[str, object], words: tuple[str, ...]
) -> None:
    """H5, H13: settings of either host, its switches by name, and the maker of its processor."""
    for key, value in change.items():
        setattr(centre.hosts[host], key, value)
    reason = driver.check_migration("a", "b").lower()
    assert bool(reason) is bool(words)
    assert all(word.lower() in reason for word in words)


def test_h5_credssp_needs_a_login_that_delegates() -> None:
    """H5: said from the lab file alone."""
    lab = a_lab()
    login = Login(user="x", password=SecretRef(scheme="env", locator="X"))
    plain = WinrmAccess(url="https://a:5986/wsman", login=login)
    for access, fine in ((plain, False), (replace(plain, transport=WinrmTransport.CREDSSP), True)):
        host = replace(lab.hosts["a"], migration_auth=MigrationAuth.CREDSSP, winrm=access)
        reason = check_inventory(replace(lab, hosts=lab.hosts | {"a": host}), "a", "b")
        assert ("credssp" in reason, reason == "") == (not fine, fine)


def test_the_lab_file_speaks_first(driver: VmDriver, centre: Datacentre) -> None:
    lab = a_lab()
    assert "same host" in check_inventory(lab, "a", "a")
    assert "no migration path" in check_inventory(replace(lab, migration_pairs=frozenset()), "a", "b")
    bare: Host = replace(lab.hosts["b"], storage="")
    assert "storage" in check_inventory(replace(lab, hosts=lab.hosts | {"b": bare}), "a", "b")
    assert driver.check_migration("a", "a")
    assert centre.scripts == []


def test_all_that_a_host_lacks_is_told_at_once(driver: VmDriver, centre: Datacentre) -> None:
    host = centre.hosts["a"]
    host.switches, host.migration_enabled = {"elsewhere": False}, False
    host.files = set()
    host.faults.lacks = (("rights", r"LAB\labctl", ""), ("storage", STORAGE, ""), ("module", "Hyper-V", ""))
    lacks = driver.lacks("a")
    told = "\n".join(lack.what for lack in lacks)
    for word in (
        r"LAB\labctl",
        "no virtual switch data; it has elsewhere",
        DISK,
        STORAGE,
        "module Hyper-V",
        "migration",
    ):
        assert word in told
    assert all(lack.todo for lack in lacks)
    assert driver.lacks("b") == ()


def test_h5_a_share_that_the_login_doesnt_reach_is_told_from_a_file_that_isnt_there(centre: Datacentre) -> None:
    """H5: the double hop, which a login that is delegated makes."""
    lab = a_lab()
    share = r"\\files\vms\probe.vhdx"
    lab = replace(lab, images={"probe": replace(lab.images["probe"], disk=share)})
    (lack,) = maker(centre)(lab, STORE, Guard()).lacks("a")
    assert share in lack.what
    assert "credssp" in lack.todo
    assert "cifs" in lack.todo
    with guests_of(lab, make=maker(centre)) as guests, pytest.raises(LabError) as caught:
        guests.create()
    assert (caught.value.kind, caught.value.todo) == ("create-failed", lack.todo)
    login = Login(user="x", password=SecretRef(scheme="env", locator="X"))
    access = WinrmAccess(url="https://a:5986/wsman", login=login, transport=WinrmTransport.CREDSSP)
    delegated = {"a": replace(lab.hosts["a"], winrm=access)}
    (lack,) = maker(centre)(replace(lab, hosts=lab.hosts | delegated), STORE, Guard()).lacks("a")
    assert "Copy" in lack.todo


def test_a_host_without_storage_lacks_it(centre: Datacentre) -> None:
    (lack,) = maker(centre)(a_lab(storage=""), STORE, Guard()).lacks("a")
    assert "storage" in lack.what


def test_facts_say_that_the_host_is_simulated_and_whose_vms_run(driver: VmDriver, centre: Datacentre) -> None:
    centre.add_vm("a", SimulatedVm(name="billing", state=RUNNING))
    centre.add_vm("a", SimulatedVm(name="idle"))
    key = "nic.Ethernet 1.driver_version"
    centre.hosts["a"].facts = {key: "6.0.60.0", "teaming": "hp-ncu"}
    facts = driver.host_facts("a")
    assert facts["simulated"] is True
    assert (facts["vms.running"], facts["vms.ours"], facts["vms.foreign"]) == (1, 0, 1)
    assert (facts[key], facts["teaming"]) == ("6.0.60.0", "hp-ncu")
    assert {"windows.build", "power_plan", "switch.data.type", "firmware.version"} <= set(facts)


def test_the_load_names_vms_of_others_by_their_vmid(driver: VmDriver, centre: Datacentre) -> None:
    other = centre.add_vm("a", SimulatedVm(name="billing", state=RUNNING))
    load = driver.load("a")
    assert load.running == {other.id}
    assert load.cpu == 0.1
    assert load.load is None
    assert load.network == 8 * 125_000 / 0.5


def test_a_host_that_doesnt_answer_is_named(driver: VmDriver, centre: Datacentre) -> None:
    centre.hosts["b"].unheard = True
    for call in (
        driver.host_facts,
        driver.load,
        driver.lacks,
        driver.owned,
        lambda name: driver.check_migration("a", name),
    ):
        with pytest.raises(LabError) as caught:
            call("b")
        assert (caught.value.kind, caught.value.host) == ("host-unreachable", "b")


@pytest.mark.parametrize(
    ("id", "kind"),
    [
        ("AccessDenied,Microsoft.HyperV.PowerShell.Commands.CompareVM", "no-delegation"),
        ("OperationFailed,Microsoft.HyperV.PowerShell.Commands.CompareVM", "script-failed"),
    ],
)
def test_h5_access_that_the_other_host_denies_is_a_hop_too_many(id: str, kind: str) -> None:
    """H5: told by the id of the error, because its text is in the language of Windows."""
    error = ScriptError("The script compare-vm failed.", kind="script-failed", why="Zugriff verweigert.", host="a")
    error.detail = {"id": id}
    said = explained(a_lab().hosts["a"], "b", error)
    assert said.kind == kind
    assert "Zugriff verweigert." in said.why
    assert ("Hyper-V Administrators of b" in said.todo) == (kind == "no-delegation")

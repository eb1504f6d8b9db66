"""The real scripts in a real PowerShell, against cmdlets that pretend; and that these are all that the scripts need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path

import pytest

from tests.hypervisors.guests import Guests, an_order, guests_of
from tests.powershell.grammar import Source
from tests.simulators.hyperv.cmdlets import MODULE, REAL, Cmdlets, CmdletServer
from tests.simulators.hyperv.endpoint import PASSWORD, PASSWORD_VARIABLE, USER, access_to
from tests.simulators.hyperv.lab import DISK, a_datacentre, a_lab
from tests.simulators.hyperv.operations import OPERATIONS
from tests.simulators.hyperv.state import Datacentre, Refusal
from tests.simulators.winrm import WinrmEndpoint, pwsh
from workers.hypervisors.hyperv.connection import PACKAGE, READING, script

OF_POWERSHELL = frozenset(
    {
        "ForEach-Object",
        "Get-Command",
        "New-Object",
        "Receive-Job",
        "Select-Object",
        "Sort-Object",
        "Split-Path",
        "Start-Sleep",
        "Stop-Script",
        "Wait-Job",
        "Where-Object",
        "Write-JobProgress",
    }
)
"""What the prelude has, and every PowerShell."""


def source_of(name: str) -> Source:
    return Source(script(name).text)


def functions_of(source: Source) -> set[str]:
    return set(re.findall(r"^function ([\w-]+)", source.text, re.MULTILINE))


def test_every_script_has_its_operation_and_says_whether_it_writes() -> None:
    names = {Path(file.name).stem for file in (files(PACKAGE) / "scripts").iterdir() if file.name.endswith(".ps1")}
    assert names == set(OPERATIONS)
    assert names >= READING | REAL
    changing = {"create-vm", "remove-vm", "switch-vm", "set-guest-address", "move-vm", "cancel-move"}
    assert names - READING == changing


def test_the_module_is_powershell() -> None:
    assert Source.of(MODULE).mistakes() == []


@pytest.mark.parametrize("name", sorted(REAL))
def test_the_module_has_every_cmdlet_of_a_script(name: str) -> None:
    source = source_of(name)
    used = {command for command, _ in source.commands()}
    assert used - functions_of(source) - OF_POWERSHELL <= functions_of(Source.of(MODULE))


def test_h10_a_legacy_adapter_is_of_the_parameter_sets_of_vms_only() -> None:
    """H10: as the real cmdlet has it."""
    text = Source.of(MODULE).text
    (line,) = re.findall(r"^.*\[bool\] \$IsLegacy,$", text, re.MULTILINE)
    assert set(re.findall(r"ParameterSetName = '(\w+)'", line)) == {"VMName", "VMObject"}


def test_the_simulator_does_what_the_module_asks_for() -> None:
    asked = set(re.findall(r"Invoke-Simulator '([\w-]+)'", Source.of(MODULE).text))
    (host,) = a_datacentre("a").hosts.values()
    assert asked <= Cmdlets(Datacentre(host), host).names


def test_cmdlets_make_and_remove_a_vm() -> None:
    centre = a_datacentre("a")
    host = centre.hosts["a"]
    call = Cmdlets(centre, host).call
    (vm,) = call("New-VM", {"name": "x", "memory": 1 << 29, "path": r"D:\labctl\f", "generation": 2})
    assert isinstance(vm, dict)
    with pytest.raises(Refusal, match="Generation 2"):
        call("Add-VMNetworkAdapter", {"vm": vm["VMId"], "switch": "data", "legacy": True, "mac": "024C43000001"})
    call("New-VHD", {"path": r"D:\labctl\f\disk.vhdx", "parent": DISK})
    call("Add-VMHardDiskDrive", {"vm": vm["VMId"], "path": r"D:\labctl\f\disk.vhdx"})
    call("Start-VM", {"vm": vm["VMId"]})
    assert call("Get-VHD", {"path": r"D:\labctl\f\disk.vhdx"}) == [{"ParentPath": DISK}]
    with pytest.raises(Refusal, match="in use"):
        call("Remove-VM", {"vm": vm["VMId"]})
    call("Stop-VM", {"vm": vm["VMId"], "off": True})
    call("Remove-VM", {"vm": vm["VMId"]})
    call("Remove-Item", {"path": r"D:\labctl\f"})
    assert call("Get-VM", {"name": "", "id": ""}) == []
    assert call("Test-Path", {"path": r"D:\labctl\f"}) == [{"There": False}]


@pytest.mark.parametrize("retain", [True, False])
def test_a_move_with_its_storage_takes_the_image_along_unless_the_source_is_to_retain_it(*, retain: bool) -> None:
    centre = a_datacentre("a", "b")
    host = centre.hosts["a"]
    call = Cmdlets(centre, host).call
    (vm,) = call("New-VM", {"name": "x", "memory": 1 << 29, "path": r"D:\labctl\f", "generation": 2})
    assert isinstance(vm, dict)
    call("New-VHD", {"path": r"D:\labctl\f\disk.vhdx", "parent": DISK})
    call("Add-VMHardDiskDrive", {"vm": vm["VMId"], "path": r"D:\labctl\f\disk.vhdx"})
    call("Start-VM", {"vm": vm["VMId"]})
    call("Move-VM", {"vm": vm["VMId"], "destination": "b", "storage": r"D:\labctl\f", "retain": retain})
    assert centre.exists(host, DISK) is retain


def test_move_vm_has_the_source_retain_what_a_disk_is_based_on() -> None:
    """An image is the user's: whatever moves storage asks for that, in the same branch."""
    branch = re.search(r"IncludeStorage'\] = \$true\n(.*?)\n}", source_of("move-vm").text, re.DOTALL)
    assert branch is not None
    assert "$move['RetainVhdCopiesOnSource'] = $true" in branch[1]
    assert "RetainVhdCopiesOnSource" in Source.of(MODULE).text


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Datacentre, Guests]]:
    """Guests on hosts whose scripts run in `pwsh`."""
    centre = a_datacentre()
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    with ExitStack() as stack:
        server = stack.enter_context(CmdletServer(centre))
        endpoints = {
            name: stack.enter_context(WinrmEndpoint(server.scripts_of(name), host=name, users={USER: PASSWORD}))
            for name in centre.hosts
        }
        lab = a_lab(winrm={name: access_to(one) for name, one in endpoints.items()})
        yield centre, stack.enter_context(guests_of(lab))


@pytest.mark.services
@pytest.mark.skipif(pwsh.PROGRAM is None, reason="there is no pwsh on PATH")
class TestInPowerShell:
    @pytest.mark.parametrize(("model", "image"), [("synthetic", "probe"), ("legacy", "gen1"), ("sr-iov", "iso")])
    def test_a_vm_is_made_moved_and_removed(self, real: tuple[Datacentre, Guests], model: str, image: str) -> None:
        centre, guests = real
        vm = guests.create(request=guests.request(image=guests.lab.images[image], nic_model=model))
        assert guests.driver.read_back(vm)["nic.model"] == model
        guests.driver.pause(vm)
        guests.driver.unpause(vm)
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert outcome.completed, outcome
        assert outcome.downtime_ms == 200
        assert centre.exists(centre.hosts["a"], DISK)
        guests.driver.destroy(vm)
        assert [list(host.vms) for host in centre.hosts.values()] == [[], []]

    def test_odd_characters_and_failures_are_the_scripts_own(self, real: tuple[Datacentre, Guests]) -> None:
        """H12."""
        centre, guests = real
        centre.hosts["a"].faults.start_fails = "kein `Speicher` für $(x)"
        with pytest.raises(Exception, match="could not be created") as caught:
            guests.create()
        assert "kein `Speicher` für $(x)" in str(caught.value)
        assert centre.hosts["a"].vms == {}


def test_a_vm_that_goes_while_the_host_lists_its_vms_is_no_error() -> None:
    """Hyper-V reads properties when they are asked for; only a VM that is still there may fail the whole list."""
    text = source_of("list-vms").text
    (caught,) = re.findall(r"\} catch \{\n(.*?)\n        \}\n", text, re.DOTALL)
    assert "Get-VM -Id $vm.VMId" in caught
    assert "throw" in caught
    assert text.index("try {") < text.index("$vm.Notes") < text.index("} catch {")


def test_a_destination_is_not_named_by_what_may_be_its_domain_alone() -> None:
    """`FullyQualifiedDomainName` of Get-VMHost isn't the name of the host in all versions."""
    text = source_of("migration-settings").text
    assert "FullyQualifiedDomainName" not in text
    assert "HostName" in text
    assert "DomainName" in text

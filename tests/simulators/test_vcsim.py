"""The simulated vCenter is what tests of the vSphere driver take it for, seen by a client that is not that driver."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
from typing import Any

import pytest
from pyVmomi import vim, vmodl

from tests.simulators import vcsim_program
from tests.simulators.vcenter_client import ESX1, ESX2, ESX3, Client, a_name, await_that, done
from tests.simulators.vcsim import GuestNet, VcSim
from tests.simulators.world import GuestWorld

pytestmark = pytest.mark.services


def test_a_vcsim_on_path_is_taken_when_it_has_our_extensions(monkeypatch: Any, tmp_path: Any) -> None:
    other = tmp_path / "vcsim"
    other.write_text("#!/bin/sh\nexit 2\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert vcsim_program.vcsim_program() != other
    other.write_text(f"#!/bin/sh\necho '{vcsim_program.PROTOCOL}'\n")
    assert vcsim_program.vcsim_program() == other


def test_its_source_is_formatted() -> None:
    sources = sorted(map(str, vcsim_program.SOURCES.glob("*.go")))
    unformatted = subprocess.run(["gofmt", "-l", *sources], capture_output=True, text=True, timeout=60, check=True)
    assert unformatted.stdout == ""


def test_it_proves_itself_by_its_authority_and_its_thumbprint(vc: VcSim) -> None:
    host, _, port = vc.address.rpartition(":")
    shown = ssl.get_server_certificate((host, int(port)), ca_certs=str(vc.ca_file))
    assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(shown)).hexdigest() == vc.thumbprint


def test_it_says_that_it_is_a_simulator(client: Client) -> None:
    assert "vcsim" in client.content.about.fullName


def test_hosts_share_what_they_were_given(client: Client) -> None:
    shared, local = client.find(vim.Datastore, "shared"), client.find(vim.Datastore, "local")
    assert {mount.key.name for mount in shared.host} == {ESX1, ESX2}
    assert {mount.key.name for mount in local.host} == {ESX3}
    assert {store.name for store in client.find(vim.HostSystem, ESX2).datastore} == {"shared"}
    assert {network.name for network in client.find(vim.HostSystem, ESX3).network} >= {"VM Network", "Test Network"}
    twins = [one for one in client.all(vim.dvs.DistributedVirtualPortgroup) if one.name == "twin"]
    assert len({one.config.distributedVirtualSwitch for one in twins}) == 2


def test_thousands_of_vms_are_listed_by_few_calls(client: Client) -> None:
    before = sum(client.vc.calls().values())
    whole = client.names(vim.VirtualMachine)
    assert len({name for _, name in whole}) >= 5000
    assert sum(client.vc.calls().values()) - before < 10
    pages = client.vc.calls().get("ContinueRetrievePropertiesEx", 0)
    assert {ref for ref, _ in client.names(vim.VirtualMachine, page=1000)} == {ref for ref, _ in whole}
    assert client.vc.calls()["ContinueRetrievePropertiesEx"] - pages == len(whole) // 1000
    with pytest.raises(vmodl.query.InvalidProperty):
        client.content.propertyCollector.ContinueRetrievePropertiesEx("no such token")


def test_a_clone_is_what_it_was_asked_to_be(client: Client) -> None:
    name = a_name()
    task = client.clone(name, host=ESX2)
    vm = done(task)
    try:
        assert task.info.descriptionId == "VirtualMachine.clone"
        assert (vm.name, vm.runtime.host.name, vm.config.annotation) == (name, ESX2, f"the clone {name}")
        assert (vm.config.hardware.numCPU, vm.config.hardware.memoryMB) == (2, 512)
        disk = next(one for one in vm.config.hardware.device if isinstance(one, vim.vm.device.VirtualDisk))
        assert disk.backing.parent.fileName == "[shared] linux-template/linux-template.vmdk"
        assert disk.backing.fileName != disk.backing.parent.fileName
        with pytest.raises(vim.fault.DuplicateName):
            done(client.clone(name))
    finally:
        done(vm.Destroy_Task())


def test_of_several_values_of_a_key_the_last_counts(client: Client) -> None:
    vm = done(client.clone(a_name()))
    try:
        for value in ("one", "two"):
            option = vim.option.OptionValue(key="labctl.mark", value=value)
            done(vm.ReconfigVM_Task(vim.vm.ConfigSpec(extraConfig=[option])))
        assert [option.value for option in vm.config.extraConfig if option.key == "labctl.mark"] == ["two"]
    finally:
        done(vm.Destroy_Task())


def test_a_vm_boots_a_guest_at_the_address_in_its_guestinfo(client: Client, vcenter_world: GuestWorld) -> None:
    name, address = a_name(), vcenter_world.network[20]
    vm = done(client.clone(name, address=f"{address}/24"))
    done(vm.PowerOnVM_Task())
    await_that(lambda: vm.guest.guestOperationsReady)
    told = vm.guest.net[0]
    assert (vm.guest.ipAddress, vm.guest.hostName, vm.guest.toolsRunningStatus) == (
        str(address),
        name,
        "guestToolsRunning",
    )
    assert (told.ipConfig.ipAddress[0].ipAddress, told.ipConfig.ipAddress[0].prefixLength) == (str(address), 24)
    seen = vcenter_world.root(name) / "sys/class/net/eth0/address"
    assert seen.read_text().strip() == told.macAddress
    done(vm.PowerOffVM_Task())
    assert (vm.guest.ipAddress, vm.guest.toolsRunningStatus) == (None, "guestToolsNotRunning")
    done(vm.Destroy_Task())
    await_that(lambda: name not in vcenter_world.names())


def test_a_vm_boots_a_guest_as_it_was_customised(client: Client, vcenter_world: GuestWorld) -> None:
    vm = done(client.clone(a_name()))
    kinds, address = vim.vm.customization, str(vcenter_world.network[21])
    adapter = kinds.IPSettings(ip=kinds.FixedIp(ipAddress=address), subnetMask="255.255.255.0")
    spec = kinds.Specification(
        options=kinds.LinuxOptions(),
        identity=kinds.LinuxPrep(hostName=kinds.FixedName(name="customised"), domain="lab.test", hwClockUTC=True),
        globalIPSettings=kinds.GlobalIPSettings(),
        nicSettingMap=[kinds.AdapterMapping(adapter=adapter)],
    )
    done(vm.CustomizeVM_Task(spec))
    done(vm.PowerOnVM_Task())
    await_that(lambda: vm.guest.guestOperationsReady)
    assert (vm.guest.ipAddress, vm.guest.hostName) == (address, "customised")
    done(vm.PowerOffVM_Task())
    done(vm.Destroy_Task())


def test_a_suspended_vm_goes_on_and_a_reset_one_boots_anew(client: Client, vcenter_world: GuestWorld) -> None:
    name = a_name()
    with client.guest(name) as vm:
        kept = vcenter_world.root(name) / "tmp" / "kept"
        kept.touch()
        done(vm.SuspendVM_Task())
        done(vm.PowerOnVM_Task())
        await_that(lambda: vm.guest.guestOperationsReady)
        assert kept.exists()
        done(vm.ResetVM_Task())
        await_that(lambda: name in vcenter_world.names() and not (vcenter_world.root(name) / "tmp" / "kept").exists())
        await_that(lambda: vm.guest.guestOperationsReady)


def test_programs_and_files_of_guest_operations_are_the_guests(client: Client) -> None:
    manager = client.content.guestOperationsManager
    name = a_name()
    with client.guest(name) as vm:
        folder = manager.fileManager.CreateTemporaryDirectoryInGuest(vm, client.login, "labctl", "", None)
        put(client, vm, f"{folder}/in", b"what was sent")
        program = vim.vm.guest.ProcessManager.ProgramSpec(
            programPath="/bin/sh", arguments=f"-c 'cd {folder} && hostname >out && cat in >>out; exit 3'"
        )
        pid = manager.processManager.StartProgramInGuest(vm, client.login, program)

        def told() -> Any:
            return manager.processManager.ListProcessesInGuest(vm, client.login, [pid])[0]

        await_that(lambda: told().endTime is not None)
        assert told().exitCode == 3
        assert get(client, vm, f"{folder}/out") == f"{name}\nwhat was sent".encode()
        assert {file.path for file in manager.fileManager.ListFilesInGuest(vm, client.login, folder).files} == {
            "in",
            "out",
        }
        manager.fileManager.DeleteDirectoryInGuest(vm, client.login, folder, True)
        with pytest.raises(vim.fault.FileNotFound):
            manager.fileManager.InitiateFileTransferFromGuest(vm, client.login, f"{folder}/out")


def test_a_program_can_be_ended(client: Client) -> None:
    processes = client.content.guestOperationsManager.processManager
    with client.guest(a_name()) as vm:
        sleep = vim.vm.guest.ProcessManager.ProgramSpec(programPath="/bin/sleep", arguments="1000")
        pid = processes.StartProgramInGuest(vm, client.login, sleep)
        processes.TerminateProcessInGuest(vm, client.login, pid)
        await_that(lambda: processes.ListProcessesInGuest(vm, client.login, [pid])[0].endTime is not None)
        with pytest.raises(vim.fault.GuestProcessNotFound):
            processes.TerminateProcessInGuest(vm, client.login, pid)


def test_tools_that_are_not_ready_and_wrong_logins_are_refused(client: Client) -> None:
    login = client.content.guestOperationsManager.authManager
    with client.guest(a_name()) as vm:
        login.ValidateCredentialsInGuest(vm, client.login)
        wrong = vim.vm.guest.NamePasswordAuthentication(username="root", password="guessed", interactiveSession=False)
        with pytest.raises(vim.fault.InvalidGuestLogin):
            login.ValidateCredentialsInGuest(vm, wrong)
        client.vc.tools(vm.name, state="not-ready")
        with pytest.raises(vim.fault.GuestOperationsUnavailable):
            login.ValidateCredentialsInGuest(vm, client.login)
        assert (vm.guest.toolsRunningStatus, vm.guest.guestOperationsReady) == ("guestToolsRunning", False)


def test_tools_tell_what_a_test_wants(client: Client) -> None:
    with client.guest(a_name()) as vm:
        honest = vm.guest.ipAddress
        nets = (
            GuestNet(addresses=("169.254.7.8/16", "fe80::1/64")),
            GuestNet(mac="02:42:ac:11:00:01", addresses=("172.17.0.1/16",)),
        )
        client.vc.tools(vm.name, nets=nets, address="172.17.0.1")
        assert [list(net.ipAddress) for net in vm.guest.net] == [["169.254.7.8", "fe80::1"], ["172.17.0.1"]]
        assert vm.guest.ipAddress == "172.17.0.1"
        client.vc.honest_tools(vm.name)
        assert vm.guest.ipAddress == honest


def put(client: Client, vm: Any, path: str, content: bytes) -> None:
    manager = client.content.guestOperationsManager.fileManager
    attributes = vim.vm.guest.FileManager.FileAttributes()
    url = manager.InitiateFileTransferToGuest(vm, client.login, path, attributes, len(content), True)
    assert client.exchange("PUT", url, content)[0] == 200


def get(client: Client, vm: Any, path: str) -> bytes:
    manager = client.content.guestOperationsManager.fileManager
    told = manager.InitiateFileTransferFromGuest(vm, client.login, path)
    status, content = client.exchange("GET", told.url)
    assert (status, len(content)) == (200, told.size)
    return content

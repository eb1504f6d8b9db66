"""The simulated vCenter is what tests of the vSphere driver take it for, seen by a client that is not that driver."""

from __future__ import annotations

import hashlib
import http.client
import ssl
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from pyVmomi import vim, vmodl

from tests.simulators import vcsim_program
from tests.simulators.vcenter_client import Client, await_that, done
from tests.simulators.vcsim import Datastore, GuestNet, VcSim, vcsim
from tests.simulators.world import GuestWorld

pytestmark = pytest.mark.services

ESX1, ESX2, ESX3 = "esx1.lab.test", "esx2.lab.test", "esx3.lab.test"
CONNECTION_LOST = (http.client.HTTPException, OSError)


@pytest.fixture(scope="module")
def world() -> Iterator[GuestWorld]:
    with GuestWorld() as world:
        yield world


@pytest.fixture(scope="module")
def running(world: GuestWorld) -> Iterator[VcSim]:
    with vcsim(
        standalone=(ESX3,),
        datastores=(Datastore(name="shared", hosts=(ESX1, ESX2)), Datastore(name="local", hosts=(ESX3,))),
        networks=("Test Network",),
        portgroups=("dvpg-test", "twin", "twin"),
        machines=5000,
        functions=("0000:3b:02.0",),
        world=world,
    ) as vc:
        yield vc


@pytest.fixture
def vc(running: VcSim) -> Iterator[VcSim]:
    """The vCenter, whole again after the test."""
    yield running
    running.heal()
    running.session_idle(0)
    running.lack({})
    running.pace()
    running.honest_tools()
    for host in (ESX1, ESX2):
        running.host(host, connection="connected", maintenance=False, incompatible=False, vmotion=True)


@pytest.fixture
def client(vc: VcSim) -> Iterator[Client]:
    client = Client(vc)
    yield client
    vc.heal()
    vc.session_idle(0)
    client.close()


def a_name() -> str:
    return f"labctl-{uuid.uuid4().hex[:8]}"


# --- what it is ---------------------------------------------------------------------------------------------------------


def test_a_vcsim_on_path_is_taken_when_it_has_our_extensions(monkeypatch: Any, tmp_path: Any) -> None:
    other = tmp_path / "vcsim"
    other.write_text("#!/bin/sh\nexit 2\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert vcsim_program.vcsim_program() != other
    other.write_text(f"#!/bin/sh\necho '{vcsim_program.PROTOCOL}'\n")
    assert vcsim_program.vcsim_program() == other


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
    assert len({name for _, name in client.names(vim.VirtualMachine)}) >= 5000
    assert sum(client.vc.calls().values()) - before < 10


# --- VMs ----------------------------------------------------------------------------------------------------------------


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


def test_a_vm_boots_a_guest_at_the_address_in_its_guestinfo(client: Client, world: GuestWorld) -> None:
    name, address = a_name(), world.network[20]
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
    seen = world.root(name) / "sys/class/net/eth0/address"
    assert seen.read_text().strip() == told.macAddress
    done(vm.PowerOffVM_Task())
    assert (vm.guest.ipAddress, vm.guest.toolsRunningStatus) == (None, "guestToolsNotRunning")
    done(vm.Destroy_Task())
    await_that(lambda: name not in world.names())


def test_a_vm_boots_a_guest_as_it_was_customised(client: Client, world: GuestWorld) -> None:
    vm = done(client.clone(a_name()))
    kinds, address = vim.vm.customization, str(world.network[21])
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


def test_a_suspended_vm_goes_on_and_a_reset_one_boots_anew(client: Client, world: GuestWorld) -> None:
    name = a_name()
    with client.guest(name) as vm:
        kept = world.root(name) / "tmp" / "kept"
        kept.touch()
        done(vm.SuspendVM_Task())
        done(vm.PowerOnVM_Task())
        await_that(lambda: vm.guest.guestOperationsReady)
        assert kept.exists()
        done(vm.ResetVM_Task())
        await_that(lambda: name in world.names() and not (world.root(name) / "tmp" / "kept").exists())
        await_that(lambda: vm.guest.guestOperationsReady)


# --- guest operations ---------------------------------------------------------------------------------------------------


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


# --- vMotion ------------------------------------------------------------------------------------------------------------


def test_a_vmotion_takes_its_time_and_leaves_an_event(client: Client) -> None:
    with client.guest(a_name()) as vm:
        task = client.relocate(vm, ESX2)
        seen: set[int] = set()
        await_that(lambda: seen.add(task.info.progress or 0) or task.info.state == "success")
        assert len(seen) > 2
        assert task.info.completeTime > task.info.startTime
        assert vm.runtime.host.name == ESX2
        assert vm in client.find(vim.HostSystem, ESX2).vm
        assert vm not in client.find(vim.HostSystem, ESX1).vm
        event = next(one for one in events(client, vm) if isinstance(one, vim.event.VmMigratedEvent))
        assert (event.sourceHost.name, event.host.name, event.userName) == (ESX1, ESX2, client.vc.user)


def test_a_vmotion_can_be_cancelled(client: Client) -> None:
    with client.guest(a_name()) as vm:
        client.vc.pace(seconds=60)
        task = client.relocate(vm, ESX2)
        await_that(lambda: task.info.state == "running")
        task.CancelTask()
        with pytest.raises(vmodl.fault.RequestCanceled):
            done(task)
        assert vm.runtime.host.name == ESX1
        with pytest.raises(vim.fault.InvalidState):
            task.CancelTask()


def test_more_vmotions_than_go_at_once_are_queued(client: Client) -> None:
    """V5: what is above the limit waits, and its task says when it began."""
    client.vc.pace(seconds=60, at_once=1)
    with client.guest(a_name()) as first, client.guest(a_name()) as second:
        running = client.relocate(first, ESX2)
        await_that(lambda: running.info.state == "running")
        waiting = client.relocate(second, ESX2)
        assert (waiting.info.state, waiting.info.startTime) == ("queued", None)
        running.CancelTask()
        await_that(lambda: waiting.info.state == "running")
        assert waiting.info.startTime > waiting.info.queueTime
        waiting.CancelTask()
        await_that(lambda: waiting.info.state == "error")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"maintenance": True}, vim.fault.InvalidState),
        ({"connection": "disconnected"}, vmodl.fault.HostNotConnected),
        ({"incompatible": True}, vim.fault.CpuIncompatible),
        ({"vmotion": False}, vim.fault.VMotionNotConfigured),
    ],
)
def test_what_speaks_against_a_vmotion_is_told_before_and_stops_it(
    client: Client, change: dict[str, Any], fault: type[Exception]
) -> None:
    with client.guest(a_name()) as vm:
        client.vc.host(ESX2, **change)
        spec = vim.vm.RelocateSpec(host=client.find(vim.HostSystem, ESX2))
        checked = done(client.content.vmProvisioningChecker.CheckRelocate_Task(vm, spec))
        assert [type(error) for result in checked for error in result.error] == [fault]
        with pytest.raises(fault):
            done(client.relocate(vm, ESX2))


def test_a_vmotion_needs_a_pool_and_a_datastore_of_where_it_goes(client: Client) -> None:
    """V7: across clusters the pool has to be named, and the VM's files have to be in reach."""
    with client.guest(a_name()) as vm:
        spec = vim.vm.RelocateSpec(host=client.find(vim.HostSystem, ESX3))
        checked = done(client.content.vmProvisioningChecker.CheckRelocate_Task(vm, spec))
        found = {type(error) for result in checked for error in result.error}
        assert {vmodl.fault.InvalidArgument, vim.fault.InaccessibleDatastore} <= found


def test_drs_moves_a_vm_that_nobody_asked_it_to(client: Client) -> None:
    with client.guest(a_name()) as vm:
        client.vc.drs_move(vm.name, ESX2)
        assert client.vc.vm(vm.name).host == ESX2
        event = next(one for one in events(client, vm) if isinstance(one, vim.event.DrsVmMigratedEvent))
        assert not event.userName


# --- faults -------------------------------------------------------------------------------------------------------------


def test_a_call_and_a_task_fail_as_they_are_told(client: Client) -> None:
    client.vc.fail("CurrentTime", "NotAuthenticated")
    with pytest.raises(vim.fault.NotAuthenticated):
        client.instance.CurrentTime()
    client.instance.CurrentTime()
    with client.guest(a_name()) as vm:
        client.vc.fail_task("RelocateVM_Task", "MigrationFault", at=0.5)
        task = client.relocate(vm, ESX2)
        with pytest.raises(vim.fault.MigrationFault):
            done(task)
        assert task.info.progress == 50
        assert vm.runtime.host.name == ESX1
        done(client.relocate(vm, ESX2))
    with pytest.raises(RuntimeError, match="NoSuchFault"):
        client.vc.fail("CurrentTime", "NoSuchFault")


def test_a_session_ends_at_once_and_when_it_is_idle(client: Client) -> None:
    client.vc.forget_sessions()
    with pytest.raises(vim.fault.NotAuthenticated):
        client.instance.CurrentTime()
    client.relogin()
    client.vc.session_idle(1e-9)
    with pytest.raises(vim.fault.NotAuthenticated):
        client.instance.CurrentTime()
    client.vc.session_idle(0)
    client.relogin()
    assert client.content.rootFolder.name == "Datacenters"


def test_a_restart_forgets_sessions_and_tasks_but_no_vm(client: Client) -> None:
    address, mark = client.vc.address, client.vc.thumbprint
    with client.guest(a_name()) as vm:
        client.vc.pace(seconds=0.5)
        task = client.relocate(vm, ESX2)
        await_that(lambda: task.info.state == "running")
        client.vc.restart()
        with pytest.raises(CONNECTION_LOST):
            client.instance.CurrentTime()
        with pytest.raises(vim.fault.NotAuthenticated):
            client.instance.CurrentTime()
        client.relogin()
        with pytest.raises(vmodl.fault.ManagedObjectNotFound):
            done(task)
        await_that(lambda: vm.runtime.host.name == ESX2)
        assert (client.vc.address, client.vc.thumbprint) == (address, mark)


def test_the_reply_of_a_creation_is_cut_after_it_took_effect(client: Client) -> None:
    name = a_name()
    client.vc.cut_reply("CloneVM_Task")
    with pytest.raises(CONNECTION_LOST):
        client.clone(name)
    await_that(lambda: [called for _, called in client.names(vim.VirtualMachine)].count(name) == 1)
    done(client.find(vim.VirtualMachine, name).Destroy_Task())


def test_a_call_that_hangs_is_accepted_and_never_answered(client: Client) -> None:
    client.vc.hang("CurrentTime")
    connection = client.instance._stub
    before = client.vc.calls().get("CurrentTime", 0)
    client.instance._stub.schemeArgs["timeout"] = 0.3
    connection.DropConnections()
    with pytest.raises(TimeoutError):
        client.instance.CurrentTime()
    assert client.vc.calls()["CurrentTime"] == before + 1


def test_a_full_datastore_takes_no_vm(client: Client) -> None:
    free = client.find(vim.Datastore, "shared").summary.freeSpace
    client.vc.datastore("shared", free=1024)
    with pytest.raises(vim.fault.NoDiskSpace):
        done(client.clone(a_name()))
    client.vc.datastore("shared", free=free)


def test_a_host_in_maintenance_mode_takes_no_vm(client: Client) -> None:
    client.vc.host(ESX2, maintenance=True)
    with pytest.raises(vim.fault.InvalidState):
        done(client.clone(a_name(), host=ESX2))


def test_privileges_are_missing_where_they_are_taken_away(client: Client) -> None:
    store = client.find(vim.Datastore, "shared")
    template = client.find(vim.VirtualMachine, "linux-template")
    wanted = ["Datastore.AllocateSpace", "VirtualMachine.Provisioning.DeployTemplate"]
    client.vc.lack({wanted[0]: ["shared"], wanted[1]: ["linux-template"]})
    key = client.content.sessionManager.currentSession.key
    told = client.content.authorizationManager.HasPrivilegeOnEntities([store, template], key, wanted)
    lacking = {one.entity.name: [a.privId for a in one.privAvailability if not a.isGranted] for one in told}
    assert lacking == {"shared": [wanted[0]], "linux-template": [wanted[1]]}
    with pytest.raises(vim.fault.NoPermission) as refused:
        client.clone(a_name())
    assert refused.value.privilegeId == wanted[1]
    user = client.content.authorizationManager.FetchUserPrivilegeOnEntities([store], client.vc.user)
    assert wanted[0] not in user[0].privileges
    assert "Network.Assign" in user[0].privileges


def test_somebody_else_renames_and_removes_a_vm(client: Client, world: GuestWorld) -> None:
    name = a_name()
    vm = done(client.clone(name))
    done(vm.PowerOnVM_Task())
    await_that(lambda: vm.guest.guestOperationsReady)
    client.vc.rename(name, "theirs")
    assert vm.name == "theirs"
    client.vc.remove("theirs")
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        vm.PowerOffVM_Task()
    await_that(lambda: name not in world.names())


def test_tasks_of_managers_can_be_read(client: Client) -> None:
    store = client.find(vim.Datastore, "shared")
    with pytest.raises(vim.fault.FileNotFound):
        done(store.browser.SearchDatastore_Task("[shared] no such folder", None))
    assert all(task.info.state for task in client.content.taskManager.recentTask)


def events(client: Client, vm: Any) -> list[Any]:
    by_vm = vim.event.EventFilterSpec.ByEntity(entity=vm, recursion="self")
    return list(client.content.eventManager.QueryEvents(vim.event.EventFilterSpec(entity=by_vm)))


def put(client: Client, vm: Any, path: str, content: bytes) -> None:
    manager = client.content.guestOperationsManager.fileManager
    attributes = vim.vm.guest.FileManager.FileAttributes()
    url = manager.InitiateFileTransferToGuest(vm, client.login, path, attributes, len(content), True)
    assert exchange(client, "PUT", url, content)[0] == 200


def get(client: Client, vm: Any, path: str) -> bytes:
    manager = client.content.guestOperationsManager.fileManager
    told = manager.InitiateFileTransferFromGuest(vm, client.login, path)
    status, content = exchange(client, "GET", told.url, b"")
    assert (status, len(content)) == (200, told.size)
    return content


def exchange(client: Client, method: str, url: str, content: bytes) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(client.vc.ca_file))
    connection = http.client.HTTPSConnection(client.vc.address, context=context, timeout=20)
    connection.request(method, url.removeprefix("https://*"), body=content)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read()
    finally:
        connection.close()

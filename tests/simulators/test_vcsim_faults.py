"""What goes wrong in the simulated vCenter on order."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyVmomi import vim, vmodl

from tests.simulators.vcenter_client import ESX1, ESX2, PATIENCE, Client, a_name, await_that, done
from tests.simulators.world import GuestWorld

pytestmark = pytest.mark.services

CONNECTION_LOST = (http.client.HTTPException, OSError)


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
    await_that(lambda: client.vm(name) is not None)
    assert [called for _, called in client.names(vim.VirtualMachine)].count(name) == 1
    done(client.vm(name).Destroy_Task())


def test_a_call_that_hangs_is_accepted_and_never_answered(client: Client) -> None:
    client.vc.hang("CurrentTime")
    with pytest.raises(CONNECTION_LOST):
        answer_after_healing(client)


def test_a_slow_call_is_answered_in_the_end(client: Client) -> None:
    client.vc.delay("CurrentTime", 1000)
    assert answer_after_healing(client) is not None


def answer_after_healing(client: Client) -> Any:
    """What becomes of a call that has arrived at a vCenter which is healed only then."""
    before = client.vc.calls().get("CurrentTime", 0)
    with ThreadPoolExecutor(1) as caller:
        answer = caller.submit(client.instance.CurrentTime)
        await_that(lambda: client.vc.calls().get("CurrentTime", 0) > before)
        assert not answer.done()
        client.vc.heal()
        return answer.result(PATIENCE)


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
    template = client.vm("linux-template")
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


def test_somebody_else_renames_and_removes_a_vm(client: Client, vcenter_world: GuestWorld) -> None:
    name = a_name()
    vm = done(client.clone(name))
    done(vm.PowerOnVM_Task())
    await_that(lambda: vm.guest.guestOperationsReady)
    client.vc.rename(name, "theirs")
    assert vm.name == "theirs"
    client.vc.remove("theirs")
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        vm.PowerOffVM_Task()
    await_that(lambda: name not in vcenter_world.names())


def test_tasks_of_managers_can_be_read(client: Client) -> None:
    store = client.find(vim.Datastore, "shared")
    with pytest.raises(vim.fault.FileNotFound):
        done(store.browser.SearchDatastore_Task("[shared] no such folder", None))
    assert all(task.info.state for task in client.content.taskManager.recentTask)

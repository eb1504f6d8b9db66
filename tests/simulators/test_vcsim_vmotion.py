"""Migrations in the simulated vCenter take their time, can't always be, can be cancelled, and leave their traces."""

from __future__ import annotations

from typing import Any

import pytest
from pyVmomi import vim, vmodl

from tests.simulators.vcenter_client import ESX1, ESX2, ESX3, Client, a_name, await_that, done
from workers.hypervisors.vsphere.stun import stuns

pytestmark = pytest.mark.services


def test_a_vmotion_takes_its_time_and_leaves_an_event(client: Client) -> None:
    client.vc.pace(seconds=1.0)
    with client.guest(a_name()) as vm:
        task = client.relocate(vm, ESX2)
        seen = set()
        while task.info.state in ("queued", "running"):
            seen.add(task.info.progress)
        assert len(seen) > 2
        assert task.info.completeTime > task.info.startTime
        assert vm.runtime.host.name == ESX2
        assert vm in client.find(vim.HostSystem, ESX2).vm
        assert vm not in client.find(vim.HostSystem, ESX1).vm
        folder = vm.config.files.logDirectory.removeprefix("[shared] ")
        target = f"/folder/{folder}/vmware.log?dcPath=dc1&dsName=shared"
        assert client.exchange("GET", target)[0] == 401
        status, log = client.exchange("GET", target, cookie=client.instance._stub.cookie)
        assert (status, len(stuns(log.decode()))) == (200, 1)
        event = next(one for one in client.events(vm) if isinstance(one, vim.event.VmMigratedEvent))
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
        with pytest.raises(vim.fault.TaskInProgress) as refused:
            client.relocate(second, ESX2)
        assert refused.value.task == waiting
        waiting.CancelTask()
        with pytest.raises(vmodl.fault.RequestCanceled):
            done(waiting)
        waiting = client.relocate(second, ESX2)
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
        event = next(one for one in client.events(vm) if isinstance(one, vim.event.DrsVmMigratedEvent))
        assert not event.userName

"""A client of a simulated vCenter that is nobody's driver: what a person with a script would do."""

from __future__ import annotations

import http.client
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim, vmodl

from tests.simulators.vcsim import DATACENTER, VcSim

PATIENCE = 20.0
"""Seconds until something that is waited for counts as never coming."""


ESX1, ESX2, ESX3 = "esx1.lab.test", "esx2.lab.test", "esx3.lab.test"
"""The hosts: two in a cluster, one that stands alone."""


class Client:
    """A session, and short words for what tests do with it."""

    def __init__(self, vc: VcSim) -> None:
        host, _, port = vc.address.rpartition(":")
        context = ssl.create_default_context(cafile=str(vc.ca_file))
        self.vc = vc
        self.instance = SmartConnect(
            host=host, port=int(port), user=vc.user, pwd=vc.password, sslContext=context, httpConnectionTimeout=10
        )
        self.content = self.instance.content
        self.login = vim.vm.guest.NamePasswordAuthentication(
            username=vc.guest_user, password=vc.guest_password, interactiveSession=False
        )

    def all(self, kind: Any) -> list[Any]:
        """All objects of a kind."""
        view = self.content.viewManager.CreateContainerView(self.content.rootFolder, [kind], True)
        found = list(view.view)
        view.DestroyView()
        return found

    def names(self, kind: Any, *, page: int | None = None) -> list[tuple[Any, str]]:
        """All objects of a kind with their names, by three calls, or more when they are to come in pages."""
        query = vmodl.query.PropertyCollector
        view = self.content.viewManager.CreateContainerView(self.content.rootFolder, [kind], True)
        lead = query.TraversalSpec(type=vim.view.ContainerView, path="view", skip=False)
        spec = query.FilterSpec(
            objectSet=[query.ObjectSpec(obj=view, skip=True, selectSet=[lead])],
            propSet=[query.PropertySpec(type=kind, pathSet=["name"])],
        )
        collector = self.content.propertyCollector
        answer = collector.RetrievePropertiesEx([spec], query.RetrieveOptions(maxObjects=page))
        found = list(answer.objects)
        while answer.token:
            answer = collector.ContinueRetrievePropertiesEx(answer.token)
            found += answer.objects
        view.DestroyView()
        return [(entry.obj, entry.propSet[0].val) for entry in found]

    def find(self, kind: Any, name: str) -> Any:
        """The object of a kind with this name."""
        return next(one for one, called in self.names(kind) if called == name)

    def vm(self, name: str) -> Any:
        """The VM or template of this name in the folder for VMs; None when there is none."""
        return self.content.searchIndex.FindByInventoryPath(f"{DATACENTER}/vm/{name}")

    def relogin(self) -> None:
        """Log in again in the same connection, after the session has ended."""
        self.content.sessionManager.Login(self.vc.user, self.vc.password)

    def clone(self, name: str, *, host: str = "esx1.lab.test", address: str = "") -> Any:
        """The task of a linked clone of `linux-template`."""
        at = self.find(vim.HostSystem, host)
        template = self.vm("linux-template")
        options = [vim.option.OptionValue(key="guestinfo.labctl.address", value=address)] if address else []
        spec = vim.vm.CloneSpec(
            location=vim.vm.RelocateSpec(
                host=at,
                pool=at.parent.resourcePool,
                datastore=self.find(vim.Datastore, "shared"),
                diskMoveType="createNewChildDiskBacking",
            ),
            snapshot=template.snapshot.currentSnapshot,
            powerOn=False,
            template=False,
            config=vim.vm.ConfigSpec(numCPUs=2, memoryMB=512, annotation=f"the clone {name}", extraConfig=options),
        )
        return template.CloneVM_Task(folder=template.parent, name=name, spec=spec)

    def relocate(self, vm: Any, host: str) -> Any:
        """The task of a vMotion."""
        at = self.find(vim.HostSystem, host)
        return vm.RelocateVM_Task(vim.vm.RelocateSpec(host=at, pool=at.parent.resourcePool), "defaultPriority")

    @contextmanager
    def guest(self, name: str, **where: str) -> Iterator[Any]:
        """A VM whose guest has booted; gone at the end."""
        vm = done(self.clone(name, **where))
        done(vm.PowerOnVM_Task())
        try:
            await_that(lambda: vm.guest.guestOperationsReady)
            yield vm
        finally:
            done(vm.PowerOffVM_Task())
            done(vm.Destroy_Task())

    def exchange(self, method: str, target: str, content: bytes = b"", *, cookie: str = "") -> tuple[int, bytes]:
        """Status and content of an answer to plain HTTPS, for files of guests and datastores."""
        context = ssl.create_default_context(cafile=str(self.vc.ca_file))
        connection = http.client.HTTPSConnection(self.vc.address, context=context, timeout=PATIENCE)
        connection.request(method, target.removeprefix("https://*"), body=content, headers={"Cookie": cookie})
        answer = connection.getresponse()
        try:
            return answer.status, answer.read()
        finally:
            connection.close()

    def events(self, vm: Any) -> list[Any]:
        """What the vCenter remembers of a VM."""
        by_vm = vim.event.EventFilterSpec.ByEntity(entity=vm, recursion="self")
        return list(self.content.eventManager.QueryEvents(vim.event.EventFilterSpec(entity=by_vm)))

    def close(self) -> None:
        """Log out."""
        Disconnect(self.instance)


def done(task: Any) -> Any:
    """The result of a task, or its fault raised."""
    await_that(lambda: task.info.state in ("success", "error"))
    if task.info.state == "error":
        raise task.info.error
    return task.info.result


def await_that(what: Callable[[], Any]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not what():
        if time.monotonic() > end:
            raise TimeoutError("it never came")
        time.sleep(0.01)


def a_name() -> str:
    """A name for a VM that no other has."""
    return f"labctl-{uuid.uuid4().hex[:8]}"

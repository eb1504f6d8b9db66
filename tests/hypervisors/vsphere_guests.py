"""A lab on a simulated vCenter, and `Guests` on it, with or without something running inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

from pyVmomi import vim

from labctl.model.lab import (
    ChannelKind,
    Customisation,
    Host,
    Image,
    ImageKind,
    Lab,
    Limits,
    Login,
    Network,
    SecretRef,
    VCenter,
)
from labctl.model.nic import Hypervisor
from tests.hypervisors.guests import STORE, Guests, guests_of
from tests.simulators.vcsim import CLUSTER, HOSTS, LINUX, VM_NETWORK, VcSim
from tests.simulators.world import GuestWorld
from workers.guard import Deadline, Guard
from workers.hypervisors.vsphere import tasks
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.driver import VsphereDriver
from workers.hypervisors.vsphere.inventory import listing

PROBE = Image(
    name="probe",
    kind=ImageKind.TEMPLATE,
    template=LINUX.name,
    channel=ChannelKind.SSH,
    customisation=Customisation.GUESTINFO,
)


def vsphere_lab(vc: VcSim, **changes: Any) -> Lab:
    """Hosts `a` and `b` of a simulated vCenter, whose password is in the file that the lab names."""
    hosts = {
        name: Host(
            name=name,
            hypervisor=Hypervisor.VSPHERE,
            uri="",
            machine=name,
            vcenter="vc",
            inventory=inventory,
            datastore="shared",
        )
        for name, inventory in zip("ab", HOSTS, strict=True)
    }
    network = Network(
        name="data",
        bridge=VM_NETWORK,
        guest_range=(IPv4Address("198.51.100.10"), IPv4Address("198.51.100.250")),
    )
    lab = Lab(
        name="vsphere-tests",
        site="tests",
        hosts=hosts,
        machines={},
        networks={"data": network},
        images={"probe": PROBE},
        migration_pairs=frozenset({("a", "b"), ("b", "a")}),
        test_network="data",
        limits=Limits(),
        vcenters={"vc": vcenter_of(vc)},
    )
    return replace(lab, **changes)


def vcenter_of(vc: VcSim) -> VCenter:
    """The simulated vCenter as a lab file has it."""
    password = vc.ca_file.with_name("password")
    password.write_text(f"{vc.password}\n")
    return VCenter(
        name="vc",
        address=vc.address,
        login=Login(user=vc.user, password=SecretRef(scheme="file", locator=str(password))),
        ca_file=str(vc.ca_file),
    )


def driver_of(vc: VcSim, *, store: str = STORE, guard: Guard | None = None, **changes: Any) -> VsphereDriver:
    """A driver of the lab, with changes to it."""
    return VsphereDriver(vsphere_lab(vc, **changes), store=store, guard=guard or Guard())


def somebody(vc: VcSim) -> Session:
    """A session of somebody else's with the vCenter, who does things there by hand."""
    return Session(vcenter_of(vc))


def named(session: Session, kind: type[Any], name: str) -> Any:
    """The object of a kind with this name, by hand."""
    rows = listing(session, session.content.rootFolder, {kind: ("name",)})
    (found,) = [row.ref for row in rows if row["name"] == name]
    return found


def machines(session: Session) -> list[str]:
    """The names of all VMs and templates."""
    rows = listing(session, session.content.rootFolder, {vim.VirtualMachine: ("name",)})
    return sorted(str(row["name"]) for row in rows)


def clone_by_hand(session: Session, name: str) -> Any:
    """The task by which somebody clones the Linux template."""
    template = named(session, vim.VirtualMachine, LINUX.name)
    location = vim.vm.RelocateSpec(
        pool=named(session, vim.ClusterComputeResource, CLUSTER).resourcePool,
        host=named(session, vim.HostSystem, HOSTS[0]),
        datastore=named(session, vim.Datastore, "shared"),
    )
    spec = vim.vm.CloneSpec(location=location, powerOn=False, template=False)
    return template.CloneVM_Task(folder=template.parent, name=name, spec=spec)


def done(session: Session, task: Any) -> Any:
    """What a task that somebody has begun results in."""
    return tasks.require(session, task, operation="by hand", deadline=Deadline.after(30)).result


@contextmanager
def vsphere_guests(vc: VcSim, world: GuestWorld) -> Iterator[Guests]:
    """VMs on two ESXi hosts whose guests are namespaces of a world."""
    try:
        with guests_of(lab_of_world(vc, world), slow_down=lambda: vc.pace(seconds=60.0)) as guests:
            yield guests
    finally:
        vc.pace()


def lab_of_world(vc: VcSim, world: GuestWorld) -> Lab:
    """The lab with guests that SSH reaches."""
    lab = vsphere_lab(vc)
    network = world.network
    image = replace(
        PROBE,
        ssh_key=SecretRef(scheme="file", locator=str(world.key)),
        known_hosts=str(world.known_hosts),
    )
    data = replace(
        lab.network(),
        guest_range=(network[20], network[network.num_addresses // 2 - 1]),
        prefix_length=network.prefixlen,
    )
    return replace(lab, images={"probe": image}, networks={"data": data})

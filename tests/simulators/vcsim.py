"""A vCenter Server that is a simulator: `with vcsim(...) as vc:` starts one, and `vc` breaks it on order.

It listens on 127.0.0.1, on a port of its own, by TLS with a certificate of an authority of its own. The datacenter is
`dc1`, with the cluster `cluster1`; names of hosts, datastores, networks and templates are the caller's to choose.

    with vcsim(world=world) as vc:
        vc.address, vc.user, vc.password, vc.ca_file, vc.thumbprint     # what a lab file's vCenter needs
        vc.fail_task("RelocateVM_Task", "MigrationFault", at=0.5)       # the next vMotion fails half-way
        vc.restart(closed=0.5)                                          # all sessions and tasks are unknown then

With a world (`tests.simulators.world.GuestWorld`), a VM that is powered on boots a guest there: its name is the VM's
`guestinfo.labctl.hostname`, else that of its customisation spec, else the VM's; its address `guestinfo.labctl.address`
(`198.18.4.10/24`), else that of its customisation spec, else one of the world's DHCP. Guest operations of VMware Tools are
carried out in it, as root, whatever guest the template says it is.

Where the simulator is of no help, `tests` may also change the vCenter with a session of their own, as another user would.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from tests.certificates import make_certificates
from tests.simulators.base import Guest
from tests.simulators.vcsim_link import Link
from tests.simulators.vcsim_program import vcsim_program
from tests.simulators.world import GuestWorld

DATACENTER = "dc1"
CLUSTER = "cluster1"
VM_NETWORK = "VM Network"
"""The standard network that every host has."""

DIRECTORY = "labctl-vcsim-"
"""Temporary directories of simulators: this, the id of the process that made it, and a random part."""

HOSTS = ("esx1.lab.test", "esx2.lab.test")


@dataclass(frozen=True, kw_only=True)
class Datastore:
    """A datastore. Without hosts it is mounted on all of them."""

    name: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Template:
    """A template, or with `is_vm` a VM that is powered off. It has one NIC on `VM Network` and one disk of 1 MiB."""

    name: str
    guest_id: str = "debian11_64Guest"
    datastore: str = "shared"
    nic: str = "vmxnet3"
    """As govmomi names them: `vmxnet3`, `e1000`, `e1000e`, `vmxnet2`, `pcnet32`, `sriov`."""
    snapshot: str = "base"
    """The snapshot that linked clones are made from; empty: it has none."""
    is_vm: bool = False


LINUX = Template(name="linux-template")
WINDOWS = Template(name="windows-template", guest_id="windows9Server64Guest")


@dataclass(frozen=True, kw_only=True)
class GuestNet:
    """An adapter as VMware Tools tell of it. Without `mac` it is the VM's first one."""

    addresses: tuple[str, ...]
    """With the lengths of their prefixes: `169.254.3.4/16`, `fe80::1/64`."""
    mac: str = ""
    network: str = ""


@dataclass(frozen=True, kw_only=True)
class VmState:
    """What the vCenter knows of a VM."""

    id: str
    """The value of its reference: `vm-57`."""
    host: str
    power: str
    """`poweredOn`, `poweredOff`, `suspended`."""
    address: str
    """`guest.ipAddress`."""


class VcSim:
    """A running vCenter. Made by `vcsim`."""

    def __init__(self, link: Link, *, directory: Path, user: str, password: str, guest: tuple[str, str]) -> None:
        self._link = link
        self.address: str = link.ready["address"]
        """Host and port, `127.0.0.1:41234`."""
        self.user = user
        self.password = password
        self.guest_user, self.guest_password = guest
        """Who may log in to guests through VMware Tools."""
        self.ca_file = directory / "ca.pem"
        self.thumbprint = thumbprint(directory / "server.pem")
        """SHA-256 of its certificate, 64 hexadecimal digits."""
        self.log = directory / "log"
        """What the simulator says, for people."""

    # --- calls that go wrong ------------------------------------------------------------------------------------------

    def fail(self, method: str, fault: str, *, message: str = "", times: int = 1) -> None:
        """Have the next calls of a method (`CreateVM_Task`; `*`: any) answered with a fault (`NotAuthenticated`,
        `NoPermission`, `ManagedObjectNotFound`, ...) and not carried out. `times` 0: until `heal`."""
        self._rule(method=method, fault=fault, message=message or f"{fault} on order", times=times, at=-1)

    def fail_task(self, method: str, fault: str, *, at: float = 0.5, seconds: float = 0.2, times: int = 1) -> None:
        """Have the next tasks of a method (`RelocateVM_Task`) fail when they have done a share of their work, which for the
        whole would take so many seconds. Nothing is left of what they did. Faults for a full datastore are
        `NoDiskSpace` and `InsufficientDisks`."""
        self._rule(method=method, fault=fault, at=at, seconds=seconds, times=times)

    def delay(self, method: str, seconds: float, *, times: int = 0) -> None:
        """Have calls of a method (`*`: any) wait before they are carried out, until `heal`."""
        self._rule(method=method, delay=seconds, times=times)

    def hang(self, method: str = "*", *, times: int = 0) -> None:
        """Have calls accepted and never answered, until `heal`."""
        self._rule(method=method, hang=True, times=times)

    def cut_reply(self, method: str, *, times: int = 1) -> None:
        """Have calls of a method carried out, and the connection closed instead of an answer."""
        self._rule(method=method, cut=True, times=times)

    def heal(self) -> None:
        """Take back all of the above. Calls that hang then lose their connection, calls that wait are answered."""
        self._link.ask("clear")

    def _rule(self, **what: Any) -> None:
        self._link.ask("rule", what)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def forget_sessions(self) -> None:
        """End all sessions: every call but a login is answered with `NotAuthenticated`."""
        self._link.ask("forget_sessions")

    def session_idle(self, seconds: float) -> None:
        """End each session that is not used for so long; 0: never, as at the start."""
        self._link.ask("session_idle", seconds)

    def restart(self, *, closed: float = 0.0) -> None:
        """Restart the vCenter: connections are cut, and refused for so many seconds (the call takes that long), then
        sessions and tasks are unknown. Port, certificate and inventory stay; a vMotion goes on on the hosts."""
        self._link.ask("restart", closed)

    # --- what happens in the inventory --------------------------------------------------------------------------------

    def lack(self, missing: Mapping[str, Sequence[str]]) -> None:
        """Take privileges away (`Resource.HotMigrate`), each on objects by their names, `*` for every object: they are
        missing where the user's are asked for, and calls that need them are refused (`NoPermission`). Not mentioned is
        granted."""
        self._link.ask("rights", {privilege: list(objects) for privilege, objects in missing.items()})

    def host(
        self,
        name: str,
        *,
        connection: str = "",
        maintenance: bool | None = None,
        incompatible: bool | None = None,
        vmotion: bool | None = None,
    ) -> None:
        """Change a host: its connection (`connected`, `disconnected`, `notResponding`), maintenance mode, whether its
        processors are of another kind than those of other hosts, whether it has an interface for vMotion."""
        self._link.ask(
            "host",
            {
                "name": name,
                "connection": connection,
                "maintenance": maintenance,
                "incompatible": incompatible,
                "vmotion": vmotion,
            },
        )

    def datastore(self, name: str, *, free: int) -> None:
        """Set what is free on a datastore, in bytes. A VM that doesn't fit is refused with `NoDiskSpace`."""
        self._link.ask("datastore", {"name": name, "free": free})

    def pace(self, *, seconds: float = 0.3, stun: float = 0.02, at_once: int = 4) -> None:
        """Set how migrations go that begin from now on: how long they take, how long the guest stands still at the end, and
        how many go at once (the others are queued)."""
        self._link.ask("pace", {"seconds": seconds, "stun": stun, "at_once": at_once})

    def drs_move(self, vm: str, host: str) -> None:
        """Move a VM as DRS does: at once, without having been asked."""
        self._link.ask("drs", {"vm": vm, "host": host})

    def rename(self, vm: str, name: str) -> None:
        """Rename a VM, as somebody else does."""
        self._link.ask("rename", {"vm": vm, "name": name})

    def remove(self, vm: str) -> None:
        """Have a VM be gone, running or not, as when somebody else removes it."""
        self._link.ask("remove", vm)

    def vm(self, name: str) -> VmState:
        """What the vCenter knows of a VM. `RuntimeError` when there is none of the name."""
        return VmState(**self._link.ask("vm", name))

    def tools(
        self, vm: str = "*", *, state: str = "", nets: Sequence[GuestNet] | None = None, address: str = ""
    ) -> None:
        """Have VMware Tools of a VM (`*`: of all, also those to come) tell something else than the truth: that they are
        `not-running` or `not-ready`, adapters and addresses (`guest.net`), the first address (`guest.ipAddress`)."""
        told: dict[str, Any] = {"tools": state, "first": address}
        if nets is not None:
            told["nets"] = [asdict(net) for net in nets]
        self._link.ask("guest", {"vm": vm, "told": told})

    def honest_tools(self, vm: str = "*") -> None:
        """Have them tell the truth again."""
        self._link.ask("guest", {"vm": vm, "told": None})

    def calls(self) -> Mapping[str, int]:
        """How often each method has been called since the start."""
        counts: dict[str, int] = self._link.ask("calls")
        return counts


@contextmanager
def vcsim(
    *,
    hosts: Sequence[str] = HOSTS,
    standalone: Sequence[str] = (),
    datastores: Sequence[Datastore] = (Datastore(name="shared"),),
    networks: Sequence[str] = (),
    portgroups: Sequence[str] = ("dvpg-test",),
    pools: Sequence[str] = (),
    folders: Sequence[str] = (),
    templates: Sequence[Template] = (LINUX, WINDOWS),
    machines: int = 0,
    devices: Sequence[str] = (),
    functions: Sequence[str] = (),
    world: GuestWorld | None = None,
    user: str = "labctl@vsphere.local",
    password: str = "secret of vCenter",
) -> Iterator[VcSim]:
    """A vCenter with this inventory.

    `hosts` are those of the cluster (`cluster1`), `standalone` others. `networks` are standard networks beside
    `VM Network`, `portgroups` distributed ones: a name given twice is in two switches. `pools` are resource pools in the
    cluster, `folders` folders of VMs, `machines` the number of VMs of somebody else's (`other-0`, ...; up to thousands).
    `devices` are PCI addresses that can be passed through on every host, `functions` those of virtual functions.
    """
    directory = _own_directory()
    try:
        make_certificates(directory)
        guest = ("root", "secret of the guest")
        settings = {
            "address": "127.0.0.1:0",
            "certificate": str(directory / "server.pem"),
            "key": str(directory / "server.key"),
            "user": user,
            "password": password,
            "guest_user": guest[0],
            "guest_password": guest[1],
            "world": world is not None,
            "inventory": {
                "datacenter": DATACENTER,
                "cluster": CLUSTER,
                "hosts": list(hosts),
                "standalone": list(standalone),
                "datastores": [asdict(datastore) for datastore in datastores],
                "networks": list(networks),
                "portgroups": list(portgroups),
                "pools": list(pools),
                "folders": list(folders),
                "templates": [asdict(template) for template in templates],
                "machines": machines,
                "devices": list(devices),
                "functions": list(functions),
                "directory": str(directory / "datastores"),
            },
        }
        with Link(vcsim_program(), settings, log=directory / "log", serve=_served_by(world)) as link:
            yield VcSim(link, directory=directory, user=user, password=password, guest=guest)
    finally:
        shutil.rmtree(directory)


def _own_directory() -> Path:
    """A new temporary directory. Those of processes that were killed are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{DIRECTORY}*-*"):
        maker = left.name.removeprefix(DIRECTORY).partition("-")[0]
        if maker.isdigit() and not Path(f"/proc/{maker}").exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{DIRECTORY}{os.getpid()}-"))


def _served_by(world: GuestWorld | None) -> Mapping[str, Callable[[Any], Any]]:
    """What the simulator asks of the world of its guests."""
    if world is None:
        return {}

    def boot(asked: Mapping[str, str]) -> Mapping[str, Any]:
        name, text = asked["name"], asked["address"]
        length = world.network.prefixlen
        address = IPv4Interface(text if "/" in text else f"{text}/{length}") if text else None
        given = world.boot(Guest(name=name, mac=asked["mac"], nic_model=asked["nic_model"], address=address))
        return {"name": name, "address": str(given), "enter": world.enter(name), "root": str(world.root(name))}

    return {
        "boot": boot,
        "stop": world.stop,
        "pause": world.pause,
        "resume": world.resume,
        "stun": lambda asked: world.stun(asked["name"], asked["seconds"]),
    }


def thumbprint(certificate: Path) -> str:
    """SHA-256 of a certificate in PEM, as 64 hexadecimal digits."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()

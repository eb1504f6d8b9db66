"""A vCenter Server that is a simulator: `with vcsim(...) as vc:` starts one, and `vc` breaks it on order.

It listens on 127.0.0.1, on a port of its own, by TLS with a certificate of an authority of its own. The datacenter is
`dc1`, with the cluster `cluster1`; names of hosts, datastores, networks and templates are the caller's to choose.

    with vcsim(world=world) as vc:
        vc.address, vc.user, vc.password, vc.ca_file, vc.thumbprint     # what a lab file's vCenter needs
        vc.fail_task("RelocateVM_Task", "MigrationFault", at=0.5)       # the next vMotion fails half-way
        vc.restart(closed=0.5)                                          # all sessions and tasks are unknown then

With a world (`tests.simulators.world.GuestWorld`), a VM that is powered on boots a guest there: its name is the VM's
`guestinfo.labctl.name`, else that of its customisation spec, else the VM's; its address `guestinfo.labctl.address`
(`198.18.4.10/24`), else that of its customisation spec, else one of the world's DHCP.
"""

from __future__ import annotations

import hashlib
import shutil
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.certificates import make_certificates
from tests.simulators.base import World
from tests.simulators.vcsim_link import Link
from tests.simulators.vcsim_program import vcsim_program

DATACENTER = "dc1"
CLUSTER = "cluster1"
VM_NETWORK = "VM Network"
"""The standard network that every host has."""

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
        """Take back all of the above. Calls that hang then lose their connection."""
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
    world: World | None = None,
    user: str = "labctl@vsphere.local",
    password: str = "secret of vCenter",
) -> Iterator[VcSim]:
    """A vCenter with this inventory.

    `hosts` are those of the cluster (`cluster1`), `standalone` others. `networks` are standard networks beside
    `VM Network`, `portgroups` distributed ones: a name given twice is in two switches. `pools` are resource pools in the
    cluster, `folders` folders of VMs, `machines` the number of VMs of somebody else's (`other-0`, ...; up to thousands).
    """
    directory = Path(tempfile.mkdtemp(prefix="labctl-vcsim-"))
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
                "directory": str(directory / "datastores"),
            },
        }
        with Link(vcsim_program(), settings, log=directory / "log", serve={}) as link:
            yield VcSim(link, directory=directory, user=user, password=password, guest=guest)
    finally:
        shutil.rmtree(directory)


def thumbprint(certificate: Path) -> str:
    """SHA-256 of a certificate in PEM, as 64 hexadecimal digits."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()

"""What there is on simulated Hyper-V hosts: switches, files, VMs with their adapters, logs; and what goes wrong on order."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING

from tests.simulators.base import Guest, World
from workers.powershell.base import Json

if TYPE_CHECKING:
    from tests.simulators.hyperv.endpoint import Inside
    from tests.simulators.hyperv.moves import Move
    from tests.simulators.winrm import Run

RUNNING, OFF, PAUSED = "Running", "Off", "Paused"

OF_ADDRESS = "024C43"
"""What MAC addresses begin with that end as their VM's address does (`workers.macs`)."""


class Refusal(Exception):
    """What a script ends with when it tells of an error."""

    def __init__(self, kind: str, message: str, **detail: Json) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.detail = detail


@dataclass
class Adapter:
    """An adapter of a VM. `mac` as Hyper-V writes it: without separators, in capitals."""

    mac: str
    switch: str
    legacy: bool = False
    vlan: int | None = None
    iov_weight: int = 0
    vmq_weight: int = 100
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass
class SimulatedVm:
    """A VM. `name` is unique for nobody."""

    name: str
    generation: int = 2
    vcpus: int = 1
    memory: int = 1 << 30
    path: str = ""
    notes: str = ""
    state: str = OFF
    adapters: list[Adapter] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    disk: tuple[str, str] | None = None
    """Path, and the path of what it is based on."""
    iso: str = ""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    boots: bool = True
    address: IPv4Interface | None = None
    """What its guest has. None: it has not booted yet."""

    def adapter(self, mac: str) -> Adapter | None:
        """The adapter with this MAC address."""
        return next((one for one in self.adapters if one.mac == mac), None)


@dataclass(frozen=True)
class Event:
    """An entry of a log. `at` by the monotonic clock."""

    id: int
    properties: tuple[str, ...]
    at: float


@dataclass
class Faults:
    """What goes wrong on a host, until it is set otherwise."""

    no_delegation: str = ""
    """The code of the security packages that logging in to another host ends with, such as `0x8009030E`."""
    surplus: int = 0
    """So many moves find that others have taken all slots, although there was one a moment ago."""
    hang: bool = False
    """Moves never end by themselves."""
    deaf: bool = False
    """A move that hangs can't even be cancelled."""
    no_exchange: bool = False
    """Guests lack the daemon of the key-value exchange."""
    no_neighbours: bool = False
    """The host has not seen the adapters of guests."""
    link_local: bool = False
    """No DHCP server answers."""
    no_blackout: bool = False
    """The logs say nothing of moves."""
    no_functions: bool = False
    """SR-IOV is on, but no virtual function is left: adapters go on without, silently."""
    leaves_folder: bool = False
    """Moves leave a folder behind."""
    start_fails: str = ""
    """What Start-VM says when it fails."""
    lacks: tuple[tuple[str, str, str], ...] = ()
    """What `host-lacks` says besides: word, object, detail."""


@dataclass
class SimulatedHost:
    """A host with Hyper-V. Files are paths of Windows; those on shares belong to all hosts."""

    name: str
    switches: dict[str, bool] = field(default_factory=lambda: {"data": True})
    """Names, and whether SR-IOV is on."""
    files: set[PureWindowsPath] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    """Location paths of devices that the host has for itself."""
    vms: dict[str, SimulatedVm] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    moves: dict[str, Move] = field(default_factory=dict)
    """Moves that cmdlets watch, by VMId."""
    parents: dict[str, str] = field(default_factory=dict)
    """What disks are based on that no VM has yet."""
    faults: Faults = field(default_factory=Faults)
    facts: dict[str, Json] = field(default_factory=dict)
    """Facts that differ from what every simulated host says."""
    migration_enabled: bool = True
    authentication: str = "kerberos"
    maximum: int = 2
    moving: int = 0
    """Moves in progress."""
    processor: str = "GenuineIntel"
    separator: str = "."
    """The decimal point of the language that its logs are in."""
    down_until: float = 0.0
    unheard: bool = False
    """It works, but nobody hears of it."""

    @property
    def down(self) -> bool:
        """Whether it doesn't answer anybody at the moment."""
        return time.monotonic() < self.down_until


class Datacentre:
    """All simulated hosts of a test, and the guests of their VMs. Safe to use from several threads."""

    def __init__(self, *hosts: SimulatedHost, world: World | None = None, move_seconds: float = 0.5) -> None:
        self.lock = threading.RLock()
        self.hosts = {host.name: host for host in hosts}
        self.world = world
        self.move_seconds = move_seconds
        self.shared: set[PureWindowsPath] = set()
        """Files on shares."""
        self.scripts: list[tuple[str, str, Mapping[str, Json]]] = []
        """What was run: host, script, document."""
        self.partitions: dict[str, Run] = {}
        """What the Windows of hosts runs besides, by their names."""
        self.insides: dict[str, Inside] = {}
        """The insides of VMs with Windows, by VMId."""
        self.ended: set[str] = set()
        """VMIds of VMs whose moves were asked to end."""

    def host(self, name: str) -> SimulatedHost:
        """A host by its name, or by its whole name in the domain."""
        return self.hosts[name.partition(".")[0]]

    def add_vm(self, host: str, vm: SimulatedVm) -> SimulatedVm:
        """A VM that somebody else has made."""
        with self.lock:
            self.hosts[host].vms[vm.id] = vm
        return vm

    def files_of(self, host: SimulatedHost, path: str) -> set[PureWindowsPath]:
        """The files that this one is among: the host's own, or those of all."""
        return self.shared if path.startswith("\\\\") else host.files

    def exists(self, host: SimulatedHost, path: str) -> bool:
        """Whether there is a file, or a folder with files in it."""
        wanted = PureWindowsPath(path)
        return any(wanted == one or wanted in one.parents for one in self.files_of(host, path))

    def make(self, host: SimulatedHost, path: str) -> None:
        """Make a file."""
        self.files_of(host, path).add(PureWindowsPath(path))

    def remove_folder(self, host: SimulatedHost, path: str) -> None:
        """Remove a folder with all that is in it."""
        files, folder = self.files_of(host, path), PureWindowsPath(path)
        for one in [one for one in files if folder == one or folder in one.parents]:
            files.discard(one)

    def start(self, host: SimulatedHost, vm: SimulatedVm) -> None:
        """Start a VM."""
        if host.faults.start_fails:
            raise Refusal("script-failed", host.faults.start_fails)
        vm.state = RUNNING
        for adapter in vm.adapters:
            own = self._own_address(adapter)
            if own is not None:
                self.boot(vm, adapter, own)

    def _own_address(self, adapter: Adapter) -> IPv4Interface | None:
        """The static address of a guest whose image sets itself up, which it makes of its MAC address."""
        network = getattr(self.world, "network", None)
        if not isinstance(network, IPv4Network) or not adapter.mac.startswith(OF_ADDRESS):
            return None
        wanted = int(adapter.mac[len(OF_ADDRESS) :], 16)
        return next(
            (IPv4Interface((one, network.prefixlen)) for one in network.hosts() if int(one) & 0xFFFFFF == wanted), None
        )

    def boot(self, vm: SimulatedVm, adapter: Adapter, address: IPv4Interface | None) -> None:
        """Let the guest come up, once its address is known or asked for: nobody can tell when it did before that."""
        if vm.address is not None or vm.state != RUNNING or not vm.boots:
            return
        if self.world is None:
            vm.address = address or IPv4Interface("192.0.2.99/24")
            return
        mac = ":".join(adapter.mac[at : at + 2].lower() for at in range(0, 12, 2))
        model = "legacy" if adapter.legacy else ("sr-iov" if adapter.iov_weight else "synthetic")
        vm.address = self.world.boot(Guest(name=vm.name, mac=mac, nic_model=model, address=address))

    def stop(self, vm: SimulatedVm) -> None:
        """Turn a VM off."""
        if self.world is not None and vm.address is not None:
            self.world.stop(vm.name)
        vm.state, vm.address = OFF, None

    def set_paused(self, vm: SimulatedVm, *, paused: bool) -> None:
        """Freeze a VM, or let it go on."""
        if self.world is not None and vm.address is not None:
            (self.world.pause if paused else self.world.resume)(vm.name)
        vm.state = PAUSED if paused else RUNNING

    def restart(self, name: str, *, seconds: float) -> None:
        """A host restarts: for so long nobody hears of it, and its VMs are off afterwards (AutomaticStartAction Nothing)."""
        host = self.hosts[name]
        with self.lock:
            host.down_until = time.monotonic() + seconds
            host.moving = 0
            for vm in host.vms.values():
                self.stop(vm)

    def close(self) -> None:
        """End all guests."""
        with self.lock:
            for host in self.hosts.values():
                for vm in host.vms.values():
                    self.stop(vm)

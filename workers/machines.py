"""The machines of a lab as an attempt sees them: drivers of VMs, channels to hosts and plain machines."""

from __future__ import annotations

import contextlib
import threading
from importlib import import_module

from labctl.errors import LabError
from labctl.model.lab import Lab, SshAccess
from labctl.model.nic import Hypervisor
from workers.channels.base import Channel
from workers.channels.ssh import SshChannel
from workers.channels.winrm import winrm_channel
from workers.guard import Guard
from workers.hypervisors.base import VmDriver
from workers.hypervisors.fenced import fenced
from workers.hypervisors.simulated.driver import SimulatedDriver

DRIVERS = {
    Hypervisor.KVM: "workers.hypervisors.kvm.driver:KvmDriver",
    Hypervisor.VSPHERE: "workers.hypervisors.vsphere.driver:VsphereDriver",
    Hypervisor.HYPERV: "workers.hypervisors.hyperv.driver:HypervDriver",
}
"""Where each driver is. They are imported when first used, so that a worker needs only the libraries of its lab."""


class Machines:
    """Everything of a lab that can be touched, connected when first used."""

    def __init__(self, lab: Lab, *, store: str, guard: Guard) -> None:
        self.lab = lab
        self._store = store
        self._guard = guard
        self._making = threading.Lock()
        self._drivers: dict[Hypervisor, VmDriver] = {}
        self._channels: dict[str, Channel] = {}
        self._simulated = SimulatedDriver(lab, store=store, guard=guard) if lab.simulated is not None else None

    def driver(self, host: str) -> VmDriver:
        """The driver of a host's hypervisor, or of a lab that only pretends. Raises `LabError` (`no-driver`) when there
        is none."""
        if self._simulated is not None:
            return fenced(self._simulated, self._guard)
        kind = self.lab.hosts[host].hypervisor
        with self._making:
            if kind not in self._drivers:
                if kind not in DRIVERS:
                    raise LabError(f"There is no driver for {kind} yet.", kind="no-driver", host=host)
                module, _, name = DRIVERS[kind].partition(":")
                make = getattr(import_module(module), name)
                self._drivers[kind] = fenced(make(self.lab, store=self._store, guard=self._guard), self._guard)
            return self._drivers[kind]

    def channel(self, name: str) -> Channel:
        """The channel to a host or a plain machine itself. Raises `LabError` (`no-channel`) when the lab names none."""
        if self._simulated is not None:
            return self._simulated.machine_channel(name)
        with self._making:
            if name not in self._channels:
                self._channels[name] = self._open(name)
            return self._channels[name]

    def _open(self, name: str) -> Channel:
        """Hosts that have `winrm` are Windows, all else speaks SSH."""
        access = self.lab.hosts[name].winrm if name in self.lab.hosts else None
        if access is not None:
            return winrm_channel(access, endpoint=f"host {name}", guard=self._guard, host=name)
        return SshChannel(
            endpoint=f"{'host' if name in self.lab.hosts else 'machine'} {name}",
            access=self._access(name),
            guard=self._guard,
        )

    def _access(self, name: str) -> SshAccess:
        access = self.lab.hosts[name].ssh if name in self.lab.hosts else self.lab.machines[name].ssh
        if access is None:
            raise LabError(
                f"Host {name} can't be an endpoint.",
                kind="no-channel",
                why="The lab file gives no `ssh` for it.",
                todo=f"Add `ssh` to hosts.{name} in the lab file, or leave out scenarios that use the host itself.",
                host=name,
            )
        return access

    def close(self) -> None:
        """Close all connections; an error while closing hides no other."""
        closes = [channel.close for channel in self._channels.values()] + [
            driver.close for driver in self._drivers.values()
        ]
        for close in closes:
            with contextlib.suppress(LabError):
                close()
        self._channels.clear()
        self._drivers.clear()

"""Live migration between simulated hosts: it belongs to the source's management service, whoever watches it."""

from __future__ import annotations

import threading
import time
from pathlib import PureWindowsPath

from tests.simulators.hyperv.state import OFF, RUNNING, Datacentre, Event, Refusal, SimulatedHost, SimulatedVm
from workers.powershell.base import Json

STUN_SECONDS = 0.2
"""The blackout at the end of a move."""

_STEP = 0.02

_NO_SLOT = "The maximum number of simultaneous live migrations has been reached."


def incompatibilities(centre: Datacentre, vm: SimulatedVm, there: SimulatedHost) -> list[Json]:
    """What Compare-VM finds: numbers are Hyper-V's own (33012 the switch, 24006 the processor)."""
    found: list[Json] = []
    for adapter in vm.adapters:
        if adapter.switch not in there.switches:
            found.append({"id": 33012, "message": f"Could not find Ethernet switch '{adapter.switch}'."})
    if any(there.processor != host.processor for host in centre.hosts.values() if vm.id in host.vms):
        found.append(
            {"id": 24006, "message": "The virtual machine is using processor-specific features not supported."}
        )
    return found


def log_in(here: SimulatedHost, there: SimulatedHost, *, delegated: bool) -> None:
    """Raise what Hyper-V says when the one host may not log in to the other."""
    code = here.faults.no_delegation
    if here.authentication == "credssp" and not delegated:
        code = "0x8009030E"
    if code:
        raise Refusal(
            "script-failed",
            f"Virtual machine migration operation failed at migration source '{here.name.upper()}'. The Virtual Machine "
            f"Management Service failed to establish a connection for a Virtual Machine migration with host '{there.name}': "
            f"No credentials are available in the security package ({code}).",
        )
    if there.down:
        raise Refusal(
            "script-failed", f"The operation failed because host '{there.name}' can't be reached (0x80072AF9)."
        )


class Move:
    """One Move-VM, in a thread of the source's."""

    def __init__(
        self,
        centre: Datacentre,
        here: SimulatedHost,
        there: SimulatedHost,
        vm: SimulatedVm,
        storage: str,
        *,
        delegated: bool,
        retains: bool = True,
    ) -> None:
        """`retains`: whether the source keeps what the disk is based on (`-RetainVhdCopiesOnSource`)."""
        self._centre = centre
        self._here = here
        self._there = there
        self._vm = vm
        self._storage = storage
        self._delegated = delegated
        self._retains = retains
        self.percent = 0
        self.state = 2
        """As `Msvm_MigrationJob.JobState`: 2 new, 4 running."""
        self.error: Refusal | None = None
        self.done = threading.Event()
        threading.Thread(target=self._run, name=f"move-{vm.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            log_in(self._here, self._there, delegated=self._delegated)
            self._take_slot()
            try:
                self._copy()
                self._hand_over()
            finally:
                with self._centre.lock:
                    self._here.moving = max(0, self._here.moving - 1)
        except Refusal as refusal:
            self.error = refusal
        finally:
            self.done.set()

    def _take_slot(self) -> None:
        """The surplus waits, and then fails."""
        until = time.monotonic() + self._centre.move_seconds
        while True:
            with self._centre.lock:
                if self._here.faults.surplus:
                    self._here.faults.surplus -= 1
                    raise Refusal("script-failed", _NO_SLOT, active=self._here.maximum)
                if self._here.moving < self._here.maximum:
                    self._here.moving += 1
                    self.state = 4
                    return
            if time.monotonic() > until:
                raise Refusal("script-failed", _NO_SLOT)
            time.sleep(_STEP)

    def _copy(self) -> None:
        begun = time.monotonic()
        if self._storage:
            with self._centre.lock:
                self._centre.make(self._there, str(PureWindowsPath(self._storage) / "planned.vmcx"))
        while self.percent < 99:
            self._check()
            share = (time.monotonic() - begun) / max(self._centre.move_seconds, _STEP)
            self.percent = min(40 if self._here.faults.hang else 99, round(100 * share))
            time.sleep(_STEP)

    def _check(self) -> None:
        if self._vm.id in self._centre.ended and not self._here.faults.deaf:
            self._leave()
            raise Refusal("script-failed", "The virtual machine migration operation was cancelled (0x800704C7).")
        if self._here.down or self._there.down or self._vm.state == OFF:
            self._leave()
            raise Refusal("script-failed", "The connection to the other host was lost (0x80072746).")

    def _leave(self) -> None:
        """What a move that failed leaves at its destination."""
        with self._centre.lock:
            if not self._there.faults.leaves_folder and self._storage:
                self._centre.remove_folder(self._there, self._storage)

    def _hand_over(self) -> None:
        centre, vm = self._centre, self._vm
        if centre.world is not None and vm.address is not None:
            centre.world.stun(vm.name, STUN_SECONDS)
        with centre.lock:
            del self._here.vms[vm.id]
            self._there.vms[vm.id] = vm
            vm.state = RUNNING
            if self._storage:
                self._move_files()
            if not self._here.faults.no_blackout:
                blackout = f"{STUN_SECONDS:.1f}".replace(".", self._here.separator)
                self._here.events.append(Event(20415, (vm.name, vm.id.upper(), blackout), time.monotonic()))
        self.percent = 100

    def _move_files(self) -> None:
        """Configuration and disk; what the disk is based on is copied along. It stays on the source where that was asked
        for."""
        centre, vm, old = self._centre, self._vm, self._vm.path
        vm.path = self._storage
        if vm.disk is not None:
            disk = str(PureWindowsPath(self._storage) / PureWindowsPath(vm.disk[0]).name)
            parent = str(PureWindowsPath(self._storage) / PureWindowsPath(vm.disk[1]).name)
            if not self._retains:
                centre.remove_folder(self._here, vm.disk[1])
            vm.disk = (disk, parent)
            centre.make(self._there, disk)
            centre.make(self._there, parent)
        if not self._here.faults.leaves_folder:
            centre.remove_folder(self._here, old)


def wait(move: Move) -> tuple[int, int]:
    """What `move-vm.ps1` does while a move goes on: (milliseconds that it waited, milliseconds in all)."""
    begun, queued = time.monotonic(), 0
    while not move.done.wait(_STEP):
        if move.state != 4:
            queued = round((time.monotonic() - begun) * 1000)
    return queued, round((time.monotonic() - begun) * 1000)


def watch(host: SimulatedHost, vm_id: str, seconds: float) -> Json:
    """What `await-move.ps1` does."""
    until, seen = time.monotonic() + seconds, []
    while (move := host.moves.get(vm_id)) is not None and not move.done.is_set():
        seen.append((move.percent, time.monotonic()))
        if time.monotonic() >= until:
            break
        time.sleep(2 * _STEP)
    now = time.monotonic()
    samples: list[Json] = [{"percent": percent, "agoMs": round((now - at) * 1000)} for percent, at in seen]
    return {"active": move is not None and not move.done.is_set(), "samples": samples}

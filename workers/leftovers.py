"""Leftovers: VMs of ours that are still on a host though no attempt in progress uses them, and who may remove them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from labctl.errors import LabError
from labctl.store import Store, VmRecord
from workers.hypervisors.base import OwnedVm, Vm
from workers.machines import Machines

PROBE = "probe"
"""The role of a VM by which a driver finds out what a host can do. Its record is that of the attempt that its mark names."""


class Whose(StrEnum):
    """What the mark of a VM on a host and the records of this store say together."""

    IN_USE = "in use"
    """An attempt in progress uses it."""
    PARKED = "parked"
    """It is paused and waits for the next run of a campaign that may go on."""
    LEFT = "left behind"
    """Nobody uses it any more: mark and record permit removing it."""
    UNRECORDED = "not recorded"
    """Its mark names this store, which knows nothing of it. It is not touched."""
    ANOTHER_STORE = "of another store"
    """Another labctl's. It is not touched."""
    ANOTHER_LAB = "of another lab"
    """This store's, for a lab of another name that has the same host. It is that lab's to remove."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A VM with a mark on a host, its record, and whose it is. Its record is None for a probe."""

    vm: OwnedVm
    record: VmRecord | None
    whose: Whose


def on_host(machines: Machines, store: Store, host: str, *, besides: int | None = None) -> tuple[Found, ...]:
    """All VMs with a mark of ours on a host, but for those of one attempt. Raises `LabError` when it can't be asked."""
    mine = (store.identity, besides)
    owned = [vm for vm in machines.driver(host).owned(host) if (vm.mark.store, vm.mark.attempt) != mine]
    if not owned:
        return ()
    active = frozenset(sign.attempt_id for sign in store.signs())
    return tuple(_found(vm, machines, store, active) for vm in owned)


def remove(found: Found, machines: Machines, store: Store) -> bool:
    """Remove a VM that was left behind from its host. False when an attempt has taken it meanwhile. Raises `LabError` when
    it can't be removed."""
    vm, record = found.vm, found.record
    if record is not None and record.state != "gone" and not store.take_idle(vm.uuid):
        return False
    machines.driver(vm.host).destroy(Vm(name=vm.name, uuid=vm.uuid, host=vm.host, mac="", address=None))
    if record is not None:
        store.change_vm(vm.uuid, state="gone")
    return True


def _found(vm: OwnedVm, machines: Machines, store: Store, active: frozenset[int]) -> Found:
    record = store.vm(vm.uuid) if vm.mark.store == store.identity else None
    return Found(vm=vm, record=record, whose=_whose(vm, record, machines, store, active))


def _whose(vm: OwnedVm, record: VmRecord | None, machines: Machines, store: Store, active: frozenset[int]) -> Whose:
    if vm.mark.store != store.identity:
        return Whose.ANOTHER_STORE
    if vm.mark.lab != machines.lab.name:
        return Whose.ANOTHER_LAB
    if record is None:
        if vm.mark.role != PROBE or not store.knows_attempt(vm.mark.campaign, vm.mark.attempt):
            return Whose.UNRECORDED
        return Whose.IN_USE if vm.mark.attempt in active else Whose.LEFT
    if record.state == "parked":
        return Whose.LEFT if store.state(record.campaign_id).ended else Whose.PARKED
    return Whose.IN_USE if record.state != "gone" and record.attempt_id in active else Whose.LEFT


def strange(vm: OwnedVm, host: str) -> LabError:
    """What to say of a VM that keeps a host from being measured and is not ours to remove. It runs on that host, or on
    another one of the same physical machine."""
    return LabError(
        f"The VM {vm.name} is on host {vm.host}, and nothing is known of it.",
        kind="leftovers",
        why=f"Its mark says that this store made it for campaign {vm.mark.campaign}, but the store has no record of it.",
        todo="Remove it by hand if it is not needed any more.",
        host=host,
    )

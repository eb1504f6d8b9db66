"""The reaper: what labctl made and lost is found on every host of a lab, and removed; nothing else is touched."""

from __future__ import annotations

from dataclasses import dataclass, replace

from labctl import clock
from labctl.errors import LabError, SpecError
from labctl.model.lab import Lab
from labctl.store import Adjustment, Store, VmRecord
from workers import leftovers
from workers.cleaning import free_hosts
from workers.guard import Guard
from workers.leftovers import Found, Whose
from workers.machines import Machines
from workers.stack.hosts import restore_left

_NOT_IN_LAB = "The lab has no such host, though a VM was recorded there."


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What there is of ours in a lab. `unreachable` says of each host that could not be asked why."""

    lab: str
    vms: tuple[Found, ...]
    """All VMs with a mark, on whichever host. One that was in the middle of a migration may be on two."""
    gone: tuple[VmRecord, ...]
    """VMs that by their records should be there and are not, on no host that they could be on."""
    lost: tuple[int, ...]
    """Attempts that were given up, or left something behind, and keep their hosts for that."""
    changed: tuple[Adjustment, ...]
    """Settings of hosts that attempts have left changed."""
    unreachable: dict[str, str]

    @property
    def left(self) -> tuple[Found, ...]:
        """The VMs that are to be removed."""
        return tuple(found for found in self.vms if found.whose is Whose.LEFT)

    @property
    def reported(self) -> tuple[Found, ...]:
        """The VMs that only a person can judge."""
        strange = (Whose.UNRECORDED, Whose.ANOTHER_STORE, Whose.ANOTHER_LAB)
        return tuple(found for found in self.vms if found.whose in strange)

    @property
    def clean(self) -> bool:
        """Whether nothing of ours is left, as far as could be seen, and all could be seen."""
        return not (self.left or self.gone or self.lost or self.changed or self.unreachable)


@dataclass(frozen=True, kw_only=True)
class Reaped:
    """What became of what was found. `failed` are sentences."""

    removed: tuple[str, ...]
    """Names of the VMs that are removed."""
    restored: tuple[str, ...]
    """Host, adapter and name of the settings that are what they were before."""
    gone: tuple[str, ...]
    """Names of the VMs of which only a record was there."""
    freed: tuple[int, ...]
    """Attempts whose hosts are free now."""
    failed: tuple[str, ...]


def lab_of(store: Store, name: str) -> Lab:
    """A lab as its newest campaign has it, and with the hosts of earlier ones on which VMs are still recorded. Raises
    `SpecError` when no campaign was ever submitted for it."""
    labs = store.labs()
    if name not in labs:
        raise SpecError(
            f"There is no lab file {name}, and no campaign was ever submitted for a lab of this name.",
            why=f"Labs of this store: {', '.join(labs) or 'none'}.",
        )
    lab = store.head(labs[name]).lab
    hosts = dict(lab.hosts)
    for record in store.live_vms(name):
        theirs = store.head(record.campaign_id).lab.hosts
        if record.host not in hosts and record.host in theirs:
            hosts[record.host] = theirs[record.host]
    return replace(lab, hosts=hosts)


def find(lab: Lab, store: Store) -> Sight:
    """Look at every host of a lab. Changes nothing."""
    with clock.working(f"finding in {lab.name}"):
        machines = Machines(lab, store=store.identity, guard=Guard())
        try:
            return _find(lab, machines, store)
        finally:
            machines.close()


def reap(lab: Lab, store: Store) -> Reaped:
    """Remove what is left behind in a lab and free the hosts that are kept for it. What an attempt takes meanwhile is its."""
    with clock.working(f"reaping in {lab.name}"):
        machines = Machines(lab, store=store.identity, guard=Guard())
        try:
            return _reap(_find(lab, machines, store), machines, store)
        finally:
            machines.close()


def _find(lab: Lab, machines: Machines, store: Store) -> Sight:
    # Records first: a VM that is recorded and created after this look is none of those that are missed.
    recorded = store.live_vms(lab.name)
    vms: list[Found] = []
    unreachable: dict[str, str] = {}
    for host in lab.hosts:
        try:
            vms += leftovers.on_host(machines, store, host)
        except LabError as error:
            unreachable[host] = error.what
    seen = {found.vm.uuid for found in vms}
    missed = [record for record in recorded if record.uuid not in seen]
    unreachable |= {record.host: _NOT_IN_LAB for record in missed if record.host not in lab.hosts}
    return Sight(
        lab=lab.name,
        vms=tuple(vms),
        gone=tuple(
            record for record in missed if _is_idle(record, store) and not _may_be_on(lab, record) & unreachable.keys()
        ),
        lost=store.lost_attempts(lab=lab.name),
        changed=store.idle_adjustments(lab.name),
        unreachable=unreachable,
    )


def _may_be_on(lab: Lab, record: VmRecord) -> set[str]:
    """The hosts that a VM may be on: where it was put, and wherever it may have been migrated to in the middle of which its
    worker died."""
    return {record.host} | {to for start, to in lab.migration_pairs if start == record.host}


def _is_idle(record: VmRecord, store: Store) -> bool:
    """Whether no attempt in progress has the VM: one that has may be about to create it."""
    return any(idle.uuid == record.uuid for idle in store.idle_vms(record.campaign_id))


def _reap(sight: Sight, machines: Machines, store: Store) -> Reaped:
    removed: list[str] = []
    failed: list[str] = []
    for found in sight.left:
        try:
            if leftovers.remove(found, machines, store):
                removed.append(found.vm.name)
        except LabError as error:
            failed.append(f"{found.vm.name} on host {found.vm.host}: {error.what}")
    gone = [record for record in sight.gone if store.take_idle(record.uuid)]
    for record in gone:
        store.change_vm(record.uuid, state="gone")
    for campaign_id in dict.fromkeys(store.standing(attempt_id).campaign_id for attempt_id in sight.lost):
        free_hosts(store, machines, campaign_id)
    # Also of hosts that were let go in quarantine, which no lease tells of any more.
    restore_left(store.idle_adjustments(sight.lab), machines, store)
    still = store.lost_attempts(lab=sight.lab)
    failed += [f"host {host}: {why}" for host, why in sight.unreachable.items()]
    failed += [f"attempt {attempt_id} still keeps its hosts" for attempt_id in still]
    open_still = store.idle_adjustments(sight.lab)
    failed += [f"host {item.host}: {item.sentence}" for item in open_still]
    kept = {item.id for item in open_still}
    return Reaped(
        restored=tuple(f"{item.host} {item.adapter} {item.name}" for item in sight.changed if item.id not in kept),
        removed=tuple(dict.fromkeys(removed)),
        gone=tuple(record.name for record in gone),
        freed=tuple(attempt_id for attempt_id in sight.lost if attempt_id not in still),
        failed=tuple(failed),
    )

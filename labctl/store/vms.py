"""VMs: recorded before they are created, marked gone after they were destroyed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address
from typing import Any

from sqlalchemy import Connection, Float, Row, String, and_, bindparam, case, func, insert, or_, select, update

from labctl import clock
from labctl.errors import LabError
from labctl.model.outcome import AttemptState
from labctl.store.room import IN_PROGRESS, Room, require_claimed
from labctl.store.tables import THERE, attempts, vms
from labctl.store.values import VmRecord

_CREATE = insert(vms)
_TAKEN = select(vms.c.address).where(vms.c.lab == bindparam("lab"), THERE)
_IS_TAKEN = _TAKEN.where(
    or_(vms.c.address == bindparam("bare"), vms.c.address.like(bindparam("with_prefix_length")))
).limit(1)
_MACS = select(vms.c.mac).where(THERE)
_CHANGE = (
    update(vms)
    .where(vms.c.uuid == bindparam("vm"))
    .values(
        state=func.coalesce(bindparam("new_state", type_=String), vms.c.state),
        gone=case((bindparam("new_state", type_=String) == "gone", bindparam("now", type_=Float)), else_=vms.c.gone),
        host=func.coalesce(bindparam("new_host", type_=String), vms.c.host),
        address=func.coalesce(bindparam("new_address", type_=String), vms.c.address),
        migrations=vms.c.migrations + bindparam("more"),
    )
)
_FITS = (
    select(vms)
    .where(
        vms.c.campaign_id == bindparam("campaign"),
        THERE,
        vms.c.state == "parked",
        vms.c.host == bindparam("on_host"),
        vms.c.role == bindparam("in_role"),
        vms.c.shape == bindparam("of_shape"),
    )
    .limit(1)
)
_TAKE = (
    update(vms)
    .where(vms.c.uuid == bindparam("vm"), vms.c.state == "parked")
    .values(state="live", attempt_id=bindparam("by_attempt"))
)
_OF_ATTEMPT = select(vms).where(vms.c.attempt_id == bindparam("attempt"), THERE)
_NOBODY_USES = (vms.c.state == "parked") | vms.c.attempt_id.not_in(
    select(attempts.c.id).where(attempts.c.state.in_(IN_PROGRESS))
)
_TRIED_ALONE = 3
"""How many addresses are tried one by one before all that are taken are read."""


class Vms(Room):
    """The part of the store that is about VMs."""

    def record_vm(
        self,
        build: Callable[[IPv4Address], VmRecord],
        *,
        first: IPv4Address,
        last: IPv4Address,
        after: int,
        durable: bool = True,
    ) -> VmRecord:
        """Record a VM that is about to be created, with a free address of the range, searched from position `after` on.

        An address is free when no VM of the lab has it that may still exist. A `durable` record outlives a loss of power
        of the machine, as the VM on its host would. Raises `LabError` (`addresses`) when the
        range is used up.
        """
        size = int(last) - int(first) + 1
        record = build(first + after % size)
        with self._db.writing(durable=durable) as db:
            require_claimed(db, record.attempt_id)
            address = _free_address(db, record.lab, (first + (after + offset) % size for offset in range(size)))
            if address is not None:
                record = build(address)
                db.execute(_CREATE, record.__dict__ | {"created": clock.now()})
                return record
        raise LabError(
            f"No free guest address between {first} and {last}.",
            kind="addresses",
            todo="Widen `guest_range` of the test network in the lab file, or resume the campaign that left its VMs behind.",
        )

    def record_vm_without_address(
        self, build: Callable[[int], VmRecord], *, serials: int, after: int, durable: bool = True
    ) -> VmRecord:
        """Record a VM that is about to be created and will get its address from a DHCP server.

        `build` makes the record with one of so many serial numbers, which are searched from `after` on for one whose MAC no
        VM has that may still exist. `durable` is as for `record_vm`. Raises `LabError` (`addresses`) when none is free.
        """
        record = build(after % serials)
        with self._db.writing(durable=durable) as db:
            require_claimed(db, record.attempt_id)
            taken = set(db.execute(_MACS).scalars())
            for offset in range(min(serials, len(taken) + 1)):
                record = build((after + offset) % serials)
                if record.mac not in taken:
                    db.execute(_CREATE, record.__dict__ | {"created": clock.now()})
                    return record
        raise LabError(
            "No free MAC address is left for another VM.",
            kind="addresses",
            todo="Resume the campaign that left its VMs behind, or see `labctl reap`.",
        )

    def change_vm(
        self,
        vm_uuid: str,
        *,
        state: str | None = None,
        host: str | None = None,
        address: str | None = None,
        migrated: bool = False,
    ) -> None:
        """Record what became of a VM: parked, gone, on another host, with the address that it got, migrated once more."""
        change: dict[str, str | float | None] = {"vm": vm_uuid, "more": int(migrated), "now": clock.now()}
        change |= {"new_state": state, "new_host": host, "new_address": address}
        with self._db.writing(alone=False) as db:
            db.execute(_CHANGE, change)

    def take_parked(self, campaign_id: int, *, host: str, role: str, shape: str, attempt_id: int) -> VmRecord | None:
        """A parked VM of the campaign that fits, made live and this attempt's; None when there is none."""
        wanted = {"campaign": campaign_id, "on_host": host, "in_role": role, "of_shape": shape}
        with self._db.writing() as db:
            require_claimed(db, attempt_id)
            row = db.execute(_FITS, wanted).first()
            if row is None:
                return None
            db.execute(_TAKE, {"vm": row.uuid, "by_attempt": attempt_id})
        return _vm(row, state="live", attempt_id=attempt_id)

    def park_vm(self, vm_uuid: str, attempt_id: int) -> bool:
        """Leave a VM of an attempt to the next run that it fits. False when the attempt was given up: its VMs are then
        being removed."""
        claimed = select(attempts.c.id).where(attempts.c.id == attempt_id, attempts.c.state == AttemptState.CLAIMED)
        mine = vms.c.uuid == vm_uuid, vms.c.attempt_id.in_(claimed), vms.c.state == "live"
        with self._db.writing() as db:
            return db.execute(update(vms).where(*mine).values(state="parked")).rowcount == 1

    def take_idle(self, vm_uuid: str) -> bool:
        """Make a VM that no attempt in progress uses one that is being removed, so that no attempt can take it any more.
        False when an attempt has it now."""
        idle = vms.c.uuid == vm_uuid, THERE, _NOBODY_USES
        with self._db.writing() as db:
            return db.execute(update(vms).where(*idle).values(state="live")).rowcount == 1

    def has_had_vms(self, attempt_id: int) -> bool:
        """Whether any VM was ever recorded for an attempt: without one it has never touched a hypervisor."""
        with self._db.reading() as db:
            return db.execute(select(vms.c.uuid).where(vms.c.attempt_id == attempt_id).limit(1)).first() is not None

    def vms_of_attempt(self, attempt_id: int) -> tuple[VmRecord, ...]:
        """VMs of an attempt that may still exist."""
        with self._db.reading() as db:
            return tuple(_vm(row) for row in db.execute(_OF_ATTEMPT, {"attempt": attempt_id}))

    def idle_vms(self, campaign_id: int) -> tuple[VmRecord, ...]:
        """VMs of a campaign that may still exist and that no attempt in progress uses."""
        return self._vms(and_(vms.c.campaign_id == campaign_id, THERE, _NOBODY_USES))

    def live_vms(self, lab: str | None = None) -> tuple[VmRecord, ...]:
        """VMs of a lab, or of all labs, that may still exist."""
        return self._vms(THERE if lab is None else and_(vms.c.lab == lab, THERE))

    def vm(self, vm_uuid: str) -> VmRecord | None:
        """The record of a VM, whatever became of it."""
        found = self._vms(vms.c.uuid == vm_uuid)
        return found[0] if found else None

    def span(self, campaign_id: int) -> tuple[float, float]:
        """When the first VM of a campaign was created and when its last attempt ended."""
        with self._db.reading() as db:
            first = db.execute(select(func.min(vms.c.created)).where(vms.c.campaign_id == campaign_id)).scalar()
            last = db.execute(select(func.max(attempts.c.ended)).where(attempts.c.campaign_id == campaign_id)).scalar()
        return first or 0.0, last or 0.0

    def _vms(self, condition: Any) -> tuple[VmRecord, ...]:  # noqa: ANN401 - an SQL expression
        with self._db.reading() as db:
            return tuple(_vm(row) for row in db.execute(select(vms).where(condition)).all())


def _free_address(db: Connection, lab: str, candidates: Iterable[IPv4Address]) -> IPv4Address | None:
    """The first address that no VM of the lab has. Records have it with the length of its network's prefix, which may have
    been changed in the lab file since."""
    taken: set[str] | None = None
    for tried, candidate in enumerate(candidates):
        if tried == _TRIED_ALONE:
            taken = {address.partition("/")[0] for address in db.execute(_TAKEN, {"lab": lab}).scalars()}
        if taken is not None:
            free = str(candidate) not in taken
        else:
            written = {"lab": lab, "bare": str(candidate), "with_prefix_length": f"{candidate}/%"}
            free = db.execute(_IS_TAKEN, written).first() is None
        if free:
            return candidate
    return None


def _vm(row: Row[Any], **changed: Any) -> VmRecord:  # noqa: ANN401 - values of the record
    return VmRecord(**({name: getattr(row, name) for name in VmRecord.__dataclass_fields__} | changed))

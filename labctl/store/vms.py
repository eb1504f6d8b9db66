"""VMs: recorded before they are created, marked gone after they were destroyed."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

from sqlalchemy import Row, and_, func, insert, select, update

from labctl import clock
from labctl.errors import LabError
from labctl.model.outcome import AttemptState
from labctl.store.database import reading, writing
from labctl.store.room import IN_PROGRESS, Room, require_claimed
from labctl.store.tables import attempts, vms
from labctl.store.values import VmRecord


class Vms(Room):
    """The part of the store that is about VMs."""

    def record_vm(
        self, build: Callable[[IPv4Address], VmRecord], *, first: IPv4Address, last: IPv4Address, after: int
    ) -> VmRecord:
        """Record a VM that is about to be created, with a free address of the range, searched from position `after` on.

        An address is free when no VM of the lab has it that may still exist. Raises `LabError` (`addresses`) when the
        range is used up.
        """
        size = int(last) - int(first) + 1
        with writing(self._engine) as db:
            record = build(first)
            require_claimed(db, record.attempt_id)
            live = select(vms.c.address).where(vms.c.lab == record.lab, vms.c.state.in_(("live", "parked")))
            taken = {address.partition("/")[0] for address in db.execute(live).scalars()}
            for offset in range(size):
                candidate = first + (after + offset) % size
                if str(candidate) not in taken:
                    record = build(candidate)
                    db.execute(insert(vms).values(**record.__dict__, created=clock.now()))
                    return record
        raise LabError(
            f"No free guest address between {first} and {last}.",
            kind="addresses",
            todo="Widen `guest_range` of the test network in the lab file, or resume the campaign that left its VMs behind.",
        )

    def change_vm(
        self, vm_uuid: str, *, state: str | None = None, host: str | None = None, migrated: bool = False
    ) -> None:
        """Record what became of a VM: parked, gone, on another host, migrated once more."""
        values: dict[Any, Any] = {}
        if state is not None:
            values["state"] = state
            if state == "gone":
                values["gone"] = clock.now()
        if host is not None:
            values["host"] = host
        if migrated:
            values["migrations"] = vms.c.migrations + 1
        with writing(self._engine) as db:
            db.execute(update(vms).where(vms.c.uuid == vm_uuid).values(**values))

    def take_parked(self, campaign_id: int, *, host: str, role: str, shape: str, attempt_id: int) -> VmRecord | None:
        """A parked VM of the campaign that fits, made live and this attempt's; None when there is none."""
        fits = and_(
            vms.c.campaign_id == campaign_id,
            vms.c.state == "parked",
            vms.c.host == host,
            vms.c.role == role,
            vms.c.shape == shape,
        )
        with writing(self._engine) as db:
            require_claimed(db, attempt_id)
            row = db.execute(select(vms).where(fits).limit(1)).first()
            if row is None:
                return None
            taken = db.execute(
                update(vms)
                .where(vms.c.uuid == row.uuid, vms.c.state == "parked")
                .values(state="live", attempt_id=attempt_id)
            )
        return _vm(row, state="live") if taken.rowcount == 1 else None

    def park_vm(self, vm_uuid: str, attempt_id: int) -> bool:
        """Leave a VM of an attempt to the next run that it fits. False when the attempt was given up: its VMs are then
        being removed."""
        claimed = select(attempts.c.id).where(attempts.c.id == attempt_id, attempts.c.state == AttemptState.CLAIMED)
        mine = vms.c.uuid == vm_uuid, vms.c.attempt_id.in_(claimed), vms.c.state == "live"
        with writing(self._engine) as db:
            return db.execute(update(vms).where(*mine).values(state="parked")).rowcount == 1

    def take_idle(self, vm_uuid: str) -> bool:
        """Make a VM that no attempt in progress uses one that is being removed, so that no attempt can take it any more.
        False when an attempt has it now."""
        with writing(self._engine) as db:
            busy = select(attempts.c.id).where(attempts.c.state.in_(IN_PROGRESS))
            idle = (vms.c.state == "parked") | vms.c.attempt_id.not_in(busy)
            taken = db.execute(
                update(vms).where(vms.c.uuid == vm_uuid, vms.c.state != "gone", idle).values(state="live")
            )
        return taken.rowcount == 1

    def vms_of_attempt(self, attempt_id: int) -> tuple[VmRecord, ...]:
        """VMs of an attempt that may still exist."""
        return self._vms(and_(vms.c.attempt_id == attempt_id, vms.c.state != "gone"))

    def idle_vms(self, campaign_id: int) -> tuple[VmRecord, ...]:
        """VMs of a campaign that may still exist and that no attempt in progress uses."""
        busy = select(attempts.c.id).where(attempts.c.state.in_(IN_PROGRESS))
        idle = (vms.c.state == "parked") | vms.c.attempt_id.not_in(busy)
        return self._vms(and_(vms.c.campaign_id == campaign_id, vms.c.state != "gone", idle))

    def live_vms(self, lab: str | None = None) -> tuple[VmRecord, ...]:
        """VMs of a lab, or of all labs, that may still exist."""
        there = vms.c.state.in_(("live", "parked"))
        return self._vms(there if lab is None else and_(vms.c.lab == lab, there))

    def vm(self, vm_uuid: str) -> VmRecord | None:
        """The record of a VM, whatever became of it."""
        found = self._vms(vms.c.uuid == vm_uuid)
        return found[0] if found else None

    def span(self, campaign_id: int) -> tuple[float, float]:
        """When the first VM of a campaign was created and when its last attempt ended."""
        with reading(self._engine) as db:
            first = db.execute(select(func.min(vms.c.created)).where(vms.c.campaign_id == campaign_id)).scalar()
            last = db.execute(select(func.max(attempts.c.ended)).where(attempts.c.campaign_id == campaign_id)).scalar()
        return first or 0.0, last or 0.0

    def _vms(self, condition: Any) -> tuple[VmRecord, ...]:  # noqa: ANN401 - an SQL expression
        with reading(self._engine) as db:
            return tuple(_vm(row) for row in db.execute(select(vms).where(condition)).all())


def _vm(row: Row[Any], *, state: str | None = None) -> VmRecord:
    values = {name: getattr(row, name) for name in VmRecord.__dataclass_fields__}
    return VmRecord(**(values | ({"state": state} if state else {})))

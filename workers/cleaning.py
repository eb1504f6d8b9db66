"""Cleaning: what lost attempts and ended campaigns left behind is removed, by its record and its mark, and settings of hosts
that they changed are restored."""

from __future__ import annotations

import logging

from labctl import clock
from labctl.campaign import judgement
from labctl.errors import LabError
from labctl.model.outcome import CampaignState, HostState
from labctl.model.patience import patience
from labctl.store import Standing, Store, VmRecord
from workers import leftovers
from workers.guard import Guard
from workers.leftovers import Whose
from workers.machines import Machines
from workers.owner import owner_wants_parking
from workers.placing import vm_of
from workers.stack.hosts import BUSY, restore_left
from workers.transferring import job_seconds

log = logging.getLogger(__name__)

_known_since: dict[int, float] = {}
"""Since when this process knows of lost attempts that may still load hosts, by a clock that nobody sets back."""


def clean_campaign(store: Store, campaign_id: int) -> None:
    """Destroy the VMs of a campaign that no attempt in progress uses, but for those parked for its next runs; then free
    the hosts of its lost attempts.

    It may be done twice at once or late: what an attempt uses is not touched. What can't be removed stays recorded, and its
    attempt keeps its hosts, because nothing is measured on a host that may not be clean.
    """
    head = store.head(campaign_id)
    machines = Machines(head.lab, store=store.identity, guard=Guard())
    goes_on = head.state is CampaignState.ACTIVE and owner_wants_parking()
    with clock.working(f"cleaning {campaign_id}"):
        try:
            for record in store.idle_vms(campaign_id):
                if not (goes_on and record.state == "parked"):
                    _destroy(record, machines, store)
            free_hosts(store, machines, campaign_id)
        finally:
            machines.close()


def free_hosts(store: Store, machines: Machines, campaign_id: int) -> None:
    """Free the hosts of a campaign's lost attempts on which nothing of them is left and all settings are what they were
    before; count it against a host when that can't be seen to."""
    for attempt_id in store.lost_attempts(lab=machines.lab.name):
        standing = store.standing(attempt_id)
        if standing.campaign_id != campaign_id:
            continue
        dirty = _remove_all(attempt_id, standing, machines, store) if store.has_had_vms(attempt_id) else {}
        dirty |= restore_left(store.adjustments_of(attempt_id), machines, store)
        if _may_be_let_go(standing, dirty, store) and not _may_still_load_hosts(store, attempt_id):
            judgement.cleaned(store, attempt_id)
        else:
            for host, error in dirty.items():
                if error.kind != BUSY:
                    judgement.unclean(store, attempt_id, host, error)


def _remove_all(attempt_id: int, standing: Standing, machines: Machines, store: Store) -> dict[str, LabError]:
    """Remove from the hosts of an attempt whatever its mark or a record says is left of it, wherever it went. Returns the
    hosts on which something may still be, each with the reason."""
    dirty: dict[str, LabError] = {}
    for host in (name for name in standing.hosts if name in machines.lab.hosts):
        try:
            for found in leftovers.on_host(machines, store, host):
                mine = attempt_id in (found.vm.mark.attempt, found.record.attempt_id if found.record else None)
                if mine and found.whose is Whose.LEFT:
                    leftovers.remove(found, machines, store)
        except LabError as error:
            log.warning("what attempt %s left on host %s could not be removed: %s", attempt_id, host, error)
            dirty[host] = error
    if not dirty:
        # It was looked for everywhere it could be.
        for record in store.vms_of_attempt(attempt_id):
            store.change_vm(record.uuid, state="gone")
    return dirty


def _may_be_let_go(standing: Standing, dirty: dict[str, LabError], store: Store) -> bool:
    """Whether all hosts are clean on which something could be measured: one in quarantine is given no runs but its health
    check, which removes first what it finds."""
    good = {record.host: record.state is HostState.GOOD for record in store.hosts(standing.lab.name)}
    return not any(good.get(host, True) for host in dirty)


def _may_still_load_hosts(store: Store, attempt_id: int) -> bool:
    """Whether processes that a lost attempt started on hosts or plain machines may still move data there.

    Those in its VMs are gone with the VMs; those on a host end by themselves when their lifetime is over.
    """
    order, seen = store.last_sign_of_life(attempt_id)
    if order.placement.sender.vm and order.placement.receiver.vm:
        return False
    longest = patience().beat + max(job_seconds(order, order.transfer), job_seconds(order, order.warmup))
    known = _known_since.setdefault(attempt_id, clock.monotonic())
    return clock.now() < seen + longest and clock.monotonic() < known + longest


def _destroy(record: VmRecord, machines: Machines, store: Store) -> None:
    if not store.take_idle(record.uuid):
        return
    try:
        machines.driver(record.host).destroy(vm_of(record))
    except LabError as error:
        log.warning("VM %s could not be removed: %s", record.name, error)
    else:
        store.change_vm(record.uuid, state="gone")

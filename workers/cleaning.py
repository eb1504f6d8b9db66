"""Cleaning: what lost attempts and ended campaigns left behind is removed, by its record and its mark."""

from __future__ import annotations

import logging

from labctl import clock
from labctl.campaign import judgement
from labctl.errors import LabError
from labctl.store import Store, VmRecord
from workers.guard import Guard
from workers.heartbeat import BEAT_SECONDS
from workers.machines import Machines
from workers.placing import vm_of
from workers.transferring import job_seconds

log = logging.getLogger(__name__)


def clean_campaign(store: Store, campaign_id: int) -> None:
    """Destroy the VMs of a campaign that no attempt in progress uses; then free the hosts of its lost attempts.

    A VM that can't be destroyed now stays recorded, and its lost attempt keeps its hosts: nothing is measured on a host
    that may not be clean.
    """
    lab = store.head(campaign_id).lab
    machines = Machines(lab, store=store.identity, guard=Guard())
    with clock.working(f"cleaning {campaign_id}"):
        try:
            for record in store.idle_vms(campaign_id):
                _destroy(record, machines, store)
        finally:
            machines.close()
    for attempt_id in store.lost_attempts(lab=lab.name):
        if not store.vms_of_attempt(attempt_id) and not _may_still_load_hosts(store, attempt_id):
            judgement.cleaned(store, attempt_id)


def _may_still_load_hosts(store: Store, attempt_id: int) -> bool:
    """Whether processes that a lost attempt started on hosts or plain machines may still move data there.

    Those in its VMs are gone with the VMs; those on a host end by themselves when their lifetime is over.
    """
    order, seen = store.last_sign_of_life(attempt_id)
    if order.placement.sender.vm and order.placement.receiver.vm:
        return False
    longest = max(job_seconds(order, order.transfer), job_seconds(order, order.warmup))
    return clock.now() < seen + BEAT_SECONDS + longest


def _destroy(record: VmRecord, machines: Machines, store: Store) -> None:
    try:
        machines.driver(record.host).destroy(vm_of(record))
    except LabError as error:
        log.warning("VM %s could not be removed: %s", record.name, error)
    else:
        store.change_vm(record.uuid, state="gone")

"""Tasks: from a message to an attempt, and from the attempt to the store. Nothing is decided here."""

from __future__ import annotations

import logging
import time

from labctl.campaign import judgement, unstored
from labctl.campaign.dispatch import TASK_ATTEMPT, TASK_CLEAN
from labctl.campaign.processes import this_process
from labctl.errors import LabError
from labctl.model.result import AttemptResult
from labctl.store import AttemptHandle, Store
from workers.app import app
from workers.attempt import Attempt
from workers.cleaning import clean_campaign
from workers.fence import Fence, real_seconds
from workers.guard import Deadline, Guard
from workers.heartbeat import heartbeat
from workers.owner import owner_lives, owner_wants_an_end
from workers.process import process_store
from workers.versioning import is_of_another_version

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 600.0
RETRY_SECONDS = 2.0


@app.task(name=TASK_ATTEMPT)  # type: ignore[untyped-decorator]
def attempt(*, attempt_id: int, token: str, version: str = "") -> None:
    """Carry out an attempt, if its message is the first and its token is still good."""
    store: Store = process_store()
    if is_of_another_version(store, attempt_id, version):
        return
    handle = AttemptHandle(id=attempt_id, token=token)
    asked = real_seconds()
    claimed = store.claim(handle, worker=this_process())
    if claimed is None:
        log.warning("attempt %s: claimed before, or its token is void; nothing was touched", attempt_id)
        return
    guard = Guard(Fence.of(store, handle, claimed=asked))
    work = Attempt(claimed, store=store, guard=guard)
    with heartbeat(store, handle, guard, work.phase):
        result = work.carry_out()
        if not _accepted(store, handle, result):
            log.warning("attempt %s: its token became void; its result was dropped", attempt_id)


def _accepted(store: Store, handle: AttemptHandle, result: AttemptResult) -> bool:
    """Hand the result in, patiently: hours of work are in it, and the store may be full or locked for a while. When that
    takes too long, or the worker has to end, it is kept for an engine to hand it in."""
    deadline = Deadline.after(PATIENCE_SECONDS)
    while True:
        try:
            return judgement.accept(store, handle, result)
        except LabError as error:
            if deadline.passed or owner_wants_an_end() or not owner_lives():
                _keep(store, handle, result, error)
                return True
            log.warning("attempt %s: its result could not be stored yet: %s", handle.id, error)
            time.sleep(RETRY_SECONDS)


def _keep(store: Store, handle: AttemptHandle, result: AttemptResult, error: LabError) -> None:
    """Keep a result that the store won't take in a file, as the last resort; an engine hands it in later."""
    directory = unstored.directory_of(store)
    if directory is None:
        raise error
    try:
        path = unstored.keep(directory, store.identity, handle, result)
    except OSError as no_room:
        raise error from no_room
    log.error("attempt %s: the store does not take its result, which is kept in %s: %s", handle.id, path, error)


@app.task(name=TASK_CLEAN)  # type: ignore[untyped-decorator]
def clean(*, campaign_id: int) -> None:
    """Remove the VMs of a campaign that no attempt in progress uses, and free the hosts of its lost attempts."""
    clean_campaign(process_store(), campaign_id)

"""Working a campaign off to its end from one process: what `labctl run` does between submit and report."""

from __future__ import annotations

import fcntl
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labctl.campaign import commands, liveness, scheduler
from labctl.campaign.progress import Progress, progress
from labctl.campaign.session import Session, session
from labctl.errors import LabError
from labctl.model.outcome import AttemptState, CampaignState
from labctl.plan.resources import machines_of
from labctl.store import ENGINE_GONE, ActiveAttempt, CampaignHead, LeaseLine, Store

_STEP_SECONDS = 0.1
_LOOK_SECONDS = 1.0
_END_SECONDS = 45.0
"""How long an interrupted campaign waits for its attempts to end and its VMs to be gone."""
_AGAIN_SECONDS = 10.0


class View:
    """What a person is shown while a campaign is worked off. The base shows nothing."""

    def show(self, now: Progress, waiting: tuple[LeaseLine, ...]) -> None:
        """The state now. `waiting` names leases of others that keep this campaign from starting anything."""

    def say(self, text: str) -> None:
        """One line that stays."""


def work_off(
    store: Store, campaign_id: int, *, state: Path, store_url: str, view: View, stop: threading.Event
) -> CampaignState:
    """Work a campaign off, also a paused one, until it is done, paused or cancelled by somebody, or until `stop` is set.

    With `stop` the campaign is paused, its attempts are ended and cleaned up after, and it can be resumed. Raises
    `SpecError` when the campaign has ended already, and `LabError` when another engine works on it or this one can't go
    on; the campaign is then paused too, if the store can still be written.
    """
    head = store.head(campaign_id)
    with (
        only_engine(state, campaign_id),
        session(head.lab, state=state, store_url=store_url, slots=machines_of(head.lab)) as running,
    ):
        try:
            commands.resume(store, campaign_id)
            _clean(store, head, running)
            reached = _loop(store, head, running, view, stop)
        except BaseException:
            # When the store or the broker is the error, they can't be used to clean up either: ending the session tells
            # the worker past them, and waits until it has removed its VMs.
            with suppress(LabError):
                commands.interrupt(store, campaign_id)
                _settle(store, head, running, view)
            raise
        if reached is CampaignState.ACTIVE:
            view.say("Stopping: ending the attempts in progress and removing their VMs ...")
            commands.interrupt(store, campaign_id)
            reached = CampaignState.PAUSED
        _settle(store, head, running, view)
        return reached


def _loop(store: Store, head: CampaignHead, running: Session, view: View, stop: threading.Event) -> CampaignState:
    """Advance until there is nothing to do any more. Returns ACTIVE when it was `stop` that ended it.

    The store is asked whether anything has changed, which costs next to nothing, ten times a second; all the rest is done
    only when something has, or once a second, so that watching disturbs no measurement on this machine.
    """
    watch = liveness.Watch()
    seen, looked, asked = -1, 0.0, time.monotonic()
    while not stop.is_set():
        running.check()
        version, now = store.version(), time.monotonic()
        if version == seen and now - looked < _LOOK_SECONDS:
            stop.wait(_STEP_SECONDS)
            continue
        seen, looked = version, now
        liveness.give_up_dead(store, head, _dead(store, head), running.dispatcher)
        if now - asked >= _AGAIN_SECONDS:
            liveness.clean_lost(store, head.lab, running.dispatcher)
            asked = now
        liveness.give_up_lost(store, watch, head.lab, running.dispatcher)
        reached = scheduler.advance(store, head, running.dispatcher)
        view.show(progress(store, head), _others(store, head))
        if reached is not CampaignState.ACTIVE:
            return reached
        stop.wait(_STEP_SECONDS)
    return CampaignState.ACTIVE


def _others(store: Store, head: CampaignHead) -> tuple[LeaseLine, ...]:
    return tuple(line for line in store.leases(head.lab.name) if line.campaign_id != head.id)


def _clean(store: Store, head: CampaignHead, running: Session) -> None:
    """Before anything starts: what an earlier, killed engine left of this campaign is given up and cleaned.

    This engine is the only one of its campaign and its broker is new, so attempts that nobody has claimed have no message.
    """
    liveness.give_up_lost(store, liveness.Watch(), head.lab, running.dispatcher)
    liveness.withdraw_unclaimed(store, head.id)
    store.lose_attempts(_dead(store, head), ENGINE_GONE)
    if store.idle_vms(head.id) or store.lost_attempts(lab=head.lab.name):
        running.dispatcher.clean(head.lab, head.id)


def _dead(store: Store, head: CampaignHead) -> list[int]:
    """Claimed attempts of the campaign whose process on this machine is gone, so that no heartbeat needs to be awaited."""
    claimed = (item for item in store.active_attempts(head.id) if item.state is AttemptState.CLAIMED)
    return [item.id for item in claimed if not _worker_lives(item)]


def _worker_lives(attempt: ActiveAttempt) -> bool:
    machine, _, pid = attempt.worker.rpartition(":")
    return machine != socket.gethostname() or Path(f"/proc/{pid}").exists()


@contextmanager
def only_engine(state: Path, campaign_id: int) -> Iterator[None]:
    """Be the only engine of a campaign on this machine. Raises `LabError` (`busy`) when another one works on it."""
    path = state / "locks" / f"campaign-{campaign_id}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LabError(
                f"Another `labctl run` works on campaign {campaign_id} now.",
                kind="busy",
                todo="Watch it with `labctl status`, or wait until it has ended.",
            ) from error
        yield


def _settle(store: Store, head: CampaignHead, running: Session, view: View) -> None:
    """Wait until no attempt of the campaign is in progress and none of its VMs is left, asking for it as often as needed."""
    if running.worker.poll() is not None:
        view.say("The worker is gone; what it left is cleaned by the next `labctl run --resume`.")
        return
    broker_gone = running.redis.poll() is not None
    if broker_gone:
        liveness.withdraw_unclaimed(store, head.id)
    deadline = time.monotonic() + _END_SECONDS
    asked = 0.0
    while time.monotonic() < deadline:
        active = store.active_attempts(head.id)
        left = store.idle_vms(head.id)
        if not active and (broker_gone or not left):
            break
        if left and not broker_gone and time.monotonic() - asked > _AGAIN_SECONDS:
            running.dispatcher.clean(head.lab, head.id)
            asked = time.monotonic()
        time.sleep(_STEP_SECONDS)
    if not active and not left:
        return
    names = ", ".join(vm.name for vm in store.idle_vms(head.id)) or "an attempt in progress"
    view.say(f"Not everything could be removed: {names}. `labctl run --resume {head.id}` tries again.")

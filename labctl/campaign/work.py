"""Working a campaign off to its end from one process: what `labctl run` does between submit and report."""

from __future__ import annotations

import fcntl
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labctl.campaign import engine
from labctl.campaign.progress import Progress, progress
from labctl.campaign.session import Session, session
from labctl.errors import LabError
from labctl.model.lab import Lab
from labctl.model.outcome import AttemptState, CampaignState
from labctl.store import ActiveAttempt, CampaignHead, LeaseLine, Store

_STEP_SECONDS = 0.1
_SHOW_SECONDS = 0.5
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
    """Work a campaign off until it is done, paused or cancelled by somebody, or until `stop` is set.

    With `stop` the campaign is paused, its attempts are ended and cleaned up after, and it can be resumed. Raises
    `LabError` when the engine itself can't go on; the campaign is then paused too.
    """
    head = store.head(campaign_id)
    with (
        only_engine(state, campaign_id),
        session(head.lab, state=state, store_url=store_url, slots=_slots(head.lab)) as running,
    ):
        try:
            _clean(store, head, running)
            reached = _loop(store, head, running, view, stop)
        except BaseException:
            engine.interrupt(store, campaign_id)
            _settle(store, head, running, view)
            raise
        if reached is CampaignState.ACTIVE:
            view.say("Stopping: ending the attempts in progress and removing their VMs ...")
            engine.interrupt(store, campaign_id)
            reached = CampaignState.PAUSED
        _settle(store, head, running, view)
        return reached


def _slots(lab: Lab) -> int:
    """As many attempts at once as there are physical machines with hosts: no machine ever works on two."""
    return max(1, len({host.machine for host in lab.hosts.values()}))


def _loop(store: Store, head: CampaignHead, running: Session, view: View, stop: threading.Event) -> CampaignState:
    """Advance until there is nothing to do any more. Returns ACTIVE when it was `stop` that ended it."""
    shown = 0.0
    while not stop.is_set():
        running.check()
        reached = engine.advance(store, head, running.dispatcher)
        if time.monotonic() - shown >= _SHOW_SECONDS or reached is not CampaignState.ACTIVE:
            view.show(progress(store, head), _others(store, head))
            shown = time.monotonic()
        if reached is not CampaignState.ACTIVE:
            return reached
        stop.wait(_STEP_SECONDS)
    return CampaignState.ACTIVE


def _others(store: Store, head: CampaignHead) -> tuple[LeaseLine, ...]:
    return tuple(line for line in store.leases(head.lab.name) if line.campaign_id != head.id)


def _clean(store: Store, head: CampaignHead, running: Session) -> None:
    """Before anything starts: what an earlier, killed engine left of this campaign is given up and cleaned."""
    engine.give_up_lost(store, head.lab, running.dispatcher)
    store.lose_attempts([item.id for item in store.active_attempts(head.id) if not _worker_lives(item)])
    if store.idle_vms(head.id) or store.lost_attempts(lab=head.lab.name):
        running.dispatcher.clean(head.lab, head.id)


def _worker_lives(attempt: ActiveAttempt) -> bool:
    """Whether somebody may still work on an attempt. This engine is the only one of its campaign and its broker is new,
    so an attempt that nobody has claimed has no message any more; a claimed one lives as long as its process does."""
    if attempt.state is AttemptState.SENT:
        return False
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
    deadline = time.monotonic() + _END_SECONDS
    asked = 0.0
    while time.monotonic() < deadline:
        active = store.active_attempts(head.id)
        left = store.idle_vms(head.id)
        if not active and not left:
            return
        if left and time.monotonic() - asked > _AGAIN_SECONDS:
            running.dispatcher.clean(head.lab, head.id)
            asked = time.monotonic()
        time.sleep(_STEP_SECONDS)
    names = ", ".join(vm.name for vm in store.idle_vms(head.id)) or "an attempt in progress"
    view.say(
        f"Not everything could be removed in {_END_SECONDS:g} s: {names}. The next `labctl run --resume` tries again."
    )

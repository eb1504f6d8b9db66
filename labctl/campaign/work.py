"""Working one campaign off to its end: what `labctl run` does between submit and report."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labctl.campaign import commands, liveness
from labctl.campaign.progress import Meter
from labctl.campaign.registration import other_engines
from labctl.campaign.reports import ReportWriter
from labctl.campaign.service import Asked, serve
from labctl.campaign.serving import Serving
from labctl.campaign.session import Session
from labctl.campaign.view import View
from labctl.errors import LabError
from labctl.model.outcome import AttemptState, CampaignState
from labctl.store import CampaignHead, Store

_STEP_SECONDS = 0.1
_END_SECONDS = 45.0
"""How long an interrupted campaign waits for its attempts to end and its VMs to be gone."""
_AGAIN_SECONDS = 10.0


def work_off(
    store: Store, campaign_id: int, *, serving: Serving, view: View, stop: threading.Event, write_report: ReportWriter
) -> CampaignState:
    """Work a campaign off, also a paused one, until it has ended, is paused by somebody, or until `stop` is set.

    With `stop` the campaign is paused, its attempts are ended and cleaned up after, and it can be resumed. Raises
    `SpecError` when the campaign has ended already, and `LabError` when another `labctl run` works on it or this one can't
    go on; the campaign is then paused too, if the store can still be written.
    """
    head = store.head(campaign_id)
    meter = Meter(store, campaign_id)

    def show() -> None:
        view.show(meter.look())

    def at_end(running: Session) -> None:
        # When the store or the broker is the error, they can't be used to clean up either: ending the session tells the
        # worker past them, and waits until it has removed its VMs.
        with suppress(LabError):
            if store.state(campaign_id) is CampaignState.ACTIVE:
                view.say("Stopping: ending the attempts in progress and removing their VMs ...")
                commands.interrupt(store, campaign_id)
            _settle(store, head, running, view)

    with only_one(serving.state, campaign_id):
        commands.resume(store, campaign_id)
        _withdraw_unclaimed(store, campaign_id)
        serve(
            store, serving, asked=Asked(end=stop), say=view.say, write_report=write_report, on_look=show, at_end=at_end
        )
    return store.state(campaign_id)


def _withdraw_unclaimed(store: Store, campaign_id: int) -> None:
    """Before anything starts: attempts whose messages were lost with the broker of a killed command go back at once."""
    if not other_engines(store):
        active = store.active_attempts(campaign_id)
        liveness.withdraw(store, [item.id for item in active if item.state is AttemptState.SENT])


@contextmanager
def only_one(state: Path, campaign_id: int) -> Iterator[None]:
    """Be the only `labctl run` of a campaign on this machine. Raises `LabError` (`busy`) when there is another one."""
    path = state / "locks" / f"campaign-{campaign_id}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LabError(
                f"Another `labctl run` works on campaign {campaign_id} now.",
                kind="busy",
                todo="Watch it with `labctl watch`, or wait until it has ended.",
            ) from error
        yield


def _settle(store: Store, head: CampaignHead, running: Session, view: View) -> None:
    """Wait until no attempt of the campaign is in progress and none of its VMs is left, asking for it as often as needed.
    Raises `LabError` when the store, the broker or the worker can't be used."""
    liveness.withdraw(store, running.dispatcher.sent)
    deadline = time.monotonic() + _END_SECONDS
    asked = 0.0
    while time.monotonic() < deadline:
        running.look()
        active = store.active_attempts(head.id)
        left = store.idle_vms(head.id)
        if not active and not left:
            return
        if left and time.monotonic() - asked > _AGAIN_SECONDS:
            asked = time.monotonic()
            with suppress(LabError):
                running.dispatcher.clean(head.lab, head.id)
        time.sleep(_STEP_SECONDS)
    names = ", ".join(vm.name for vm in store.idle_vms(head.id)) or "an attempt in progress"
    view.say(f"Not everything could be removed: {names}. `labctl run --resume {head.id}` tries again.")

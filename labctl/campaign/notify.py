"""News: what happens in the night is told to those who asked for it (`notify` of a campaign), and to nobody twice.

An event is taken from the store by one engine, which then tells it. When that engine dies in between, nobody is told:
news may get lost, the events themselves stay in the store.
"""

from __future__ import annotations

import logging
import time

from labctl import clock
from labctl.campaign.delivery import Delivery, Message
from labctl.campaign.reports import Reports, ReportWriter
from labctl.model.lab import SecretRef
from labctl.model.outcome import CampaignState
from labctl.store import Event, Store

TOLD = {
    "started": ("has started", "info"),
    "first-failure": ("has a first failure", "warning"),
    "quarantine": ("has a host in quarantine", "warning"),
    "host-out": ("has a host that is out", "failure"),
    "campaign-stopped": ("was stopped", "failure"),
    "disk": ("waits for disk space", "warning"),
    "finished": ("has ended", "success"),
}
"""The kinds of events that people are told of, in words, and how urgent that is. The others only stay in the store."""

MISSED_SECONDS = 86_400.0
"""How long after its end a campaign is still told of, when no engine was there to do it at once."""
CLOSE_SECONDS = 20.0

log = logging.getLogger(__name__)


class News:
    """Tells what has happened in a store. Every engine has one and asks it to `send` again and again."""

    def __init__(self, write_report: ReportWriter, *, delivery: Delivery | None = None) -> None:
        self._reports = Reports(write_report)
        self._delivery = delivery or Delivery()
        self._finished: dict[int, float] = {}
        """Campaigns whose ends are told, and when those were."""

    def send(self, store: Store, *, seconds: float = 0.0) -> None:
        """Write the reports of campaigns that have ended, and have everything told that nobody has been told of.

        Waits for nobody but, at most so many seconds, for reports: these and messages have threads of their own.
        """
        self._tell_ends(store)
        deadline, waited = time.monotonic() + seconds, None
        while (thread := self._reports.thread) is not None and thread is not waited:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                break
            waited = thread
            self._tell_ends(store)
        for event in store.untold():
            if store.take_event(event.id) and event.kind in TOLD:
                for place in places_of(store, event):
                    self._delivery.put(place, message_of(store, event))

    def _tell_ends(self, store: Store) -> None:
        """Keep as events what campaigns have ended, and have their reports written first."""
        for campaign_id, ended in store.ended_since(clock.now() - MISSED_SECONDS).items():
            if self._finished.get(campaign_id) != ended and _finish(store, campaign_id, self._reports):
                self._finished[campaign_id] = ended

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until everything is sent, at most so long."""
        if not self._delivery.close(seconds):
            log.warning("Some news could not be sent in time.")


def places_of(store: Store, event: Event) -> tuple[SecretRef, ...]:
    """Who is told: those who asked to hear of the campaign, or of any active campaign of the lab."""
    ids = [event.campaign_id] if event.campaign_id is not None else []
    if event.scope.startswith("lab-"):
        ids += [item.id for item in store.queue() if f"lab-{item.lab}" == event.scope]
    places = (place for campaign_id in ids for place in store.head(campaign_id).campaign.notify)
    return tuple(dict.fromkeys(places))


def message_of(store: Store, event: Event) -> Message:
    """What people are told of an event."""
    words, urgency = TOLD[event.kind]
    if event.scope.startswith("lab-") or event.campaign_id is None:
        who = event.scope.replace("-", " ", 1)
    else:
        who = f"campaign {event.campaign_id} ({store.head(event.campaign_id).name})"
    return Message(title=f"labctl: {who} {words}", text=event.what, urgency=urgency)


def _finish(store: Store, campaign_id: int, reports: Reports) -> bool:
    """Have the report of a campaign written that has ended, and keep its end as an event, once for each of its ends.

    Nothing is told of one that was cancelled: a person did that. False when attempts of it are still in progress, or its
    report is not written yet.
    """
    head = store.head(campaign_id)
    if head.ended is None or head.state not in (CampaignState.DONE, CampaignState.STOPPED):
        return True
    key = f"finished-{head.ended:.3f}"
    if any(event.key == key for event in store.events(campaign_id)):
        return True
    if store.active_attempts(campaign_id):
        return False
    report = reports.text(campaign_id, head.ended)
    if report is None:
        return False
    event = Event(
        scope=f"campaign-{campaign_id}",
        key=key,
        kind="finished",
        what=f"{_result(store, campaign_id)}\n{report}",
        at=clock.now(),
        campaign_id=campaign_id,
    )
    store.tell(event)
    return True


def _result(store: Store, campaign_id: int) -> str:
    """How its runs ended, and why it did before they all had."""
    head, counts = store.head(campaign_id), store.run_counts(campaign_id)
    runs = ", ".join(f"{count} {word}" for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    stopped = f" It was stopped: {head.why}" if head.state is CampaignState.STOPPED else ""
    return f"Runs: {runs or 'none'}.{stopped}"

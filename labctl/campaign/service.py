"""The service: one loop that keeps everything alive and the campaigns going. `labctl worker` and `labctl run` are it.

What it does, over and over: look after the worker and Redis, give up what has died, have it cleaned, check hosts, start
what can be started, tell people. All of it is idempotent, so any number of services may work on one store at once.

It costs next to nothing, so that it disturbs no measurement on its machine: ten times a second it asks whether its processes
live and whether anything in the store has changed, and it does the rest only when something has, or once a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from labctl import clock
from labctl.campaign import health, judgement, liveness, scheduler
from labctl.campaign.housekeeping import Housekeeping
from labctl.campaign.mishaps import Mishaps
from labctl.campaign.notify import News
from labctl.campaign.queues import queue_of
from labctl.campaign.registration import Registration, other_engines
from labctl.campaign.reports import ReportWriter
from labctl.campaign.serving import Served, Serving
from labctl.campaign.session import Session, session
from labctl.campaign.versions import untested
from labctl.errors import LabError
from labctl.model.outcome import AttemptState, CampaignState
from labctl.store import Store

STEP_SECONDS = 0.1
LOOK_SECONDS = 1.0
REVIEW_SECONDS = 5.0
_STORE_PAUSE_SECONDS = 2.0
_PARKED_SECONDS = 30.0
"""How long the last service waits at its end until VMs that were kept for reuse are gone."""

_REPORT_SECONDS = 30.0
"""How long a service waits at its end for reports that are being written."""

Say = Callable[[str], None]
Work = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person asks of a running service: to end, and then not to wait for attempts to finish."""

    end: threading.Event = field(default_factory=threading.Event)
    at_once: threading.Event = field(default_factory=threading.Event)


def serve(
    store: Store,
    serving: Serving,
    *,
    asked: Asked,
    say: Say,
    write_report: ReportWriter,
    on_up: Callable[[Session], None] = lambda _: None,
    on_look: Callable[[], None] = lambda: None,
    at_end: Callable[[Session], None] | None = None,
) -> None:
    """Serve until it is asked to end, or until the only campaign is no longer active.

    `on_up` is called once the worker takes messages, `on_look` whenever something may have changed, or once a second;
    `at_end` while everything still runs, also after an error.

    Raises `LabError` when the worker or Redis can't be started at first, its program is missing, or the worker is of another
    version; with `only` also when either can't be started later, or the store can't be used: that ends `labctl run`, which
    a person looks at, but no service that is left alone. Bugs end `labctl run` when they come again and again.
    """
    store.work_here()
    for warning in untested():
        say(warning)
    served = Served(store, serving)
    with session(
        state=serving.state, store_url=serving.store_url, broker=serving.broker, wanted=served.wanted(), say=say,
        grace=serving.grace, at_once=asked.at_once.is_set, stopped=asked.end.is_set, app=serving.app,
        for_ever=serving.only is None,
    ) as running:  # fmt: skip
        service = _Service(store, serving, served, running, asked, say, write_report)
        if running.kept.up:
            on_up(running)
        try:
            service.loop(on_look)
        finally:
            service.end()
            (at_end or service.remove_parked)(running)


class _Service:
    """A service in progress."""

    def __init__(
        self,
        store: Store,
        serving: Serving,
        served: Served,
        running: Session,
        asked: Asked,
        say: Say,
        write_report: ReportWriter,
    ) -> None:
        self._store = store
        self._serving = serving
        self._served = served
        self._running = running
        self._asked = asked
        self._say = say
        self._registration = Registration(store, schedules=serving.schedules, only=serving.only)
        self._housekeeping = Housekeeping(store, serving.state, keep_raw=serving.keep_raw, tells=serving.schedules)
        self._news = News(write_report)
        self._mishaps = Mishaps(say, patient=serving.only is None)
        self._watch = liveness.Watch()
        self._cleaning = liveness.Cleaning()
        self._generation = running.broker_generation
        self._seen = -1
        self._looked = self._reviewed = 0.0
        self._next_look: float | None = None
        self._hold = ""
        self._ill_store = False

    def loop(self, on_look: Callable[[], None]) -> None:
        """Look, and look again."""
        while not self._asked.end.is_set():
            with self._mishaps.passed_over("looking after the worker and the broker"):
                self._running.look()
            if self._has_to_look():
                if self._over():
                    return
                self._step(on_look)
            self._asked.end.wait(STEP_SECONDS)

    def end(self) -> None:
        """Say that nothing is started here any more, and send what there is to tell."""
        self._registration.end()
        if self._serving.schedules:
            with suppress(LabError), self._mishaps.passed_over("telling the news"):
                self._news.send(self._store, seconds=0.0 if self._asked.at_once.is_set() else _REPORT_SECONDS)
        self._news.close()

    def remove_parked(self, running: Session) -> None:
        """When nobody else goes on with the campaigns, VMs that are kept for their next runs are removed."""
        if not self._serving.schedules:
            return
        with suppress(LabError):
            liveness.withdraw(self._store, running.dispatcher.sent)
            if other_engines(self._store, of_all=True):
                return
            running.worker.files.park_no_more()
            idle = {vm.campaign_id for vm in self._store.live_vms() if vm.state == "parked"}
            liveness.ask_to_clean(self._store, running.dispatcher, idle)
            deadline = time.monotonic() + _PARKED_SECONDS
            while time.monotonic() < deadline and not self._asked.at_once.is_set():
                if not any(vm.state == "parked" for vm in self._store.live_vms()):
                    return
                running.look()
                time.sleep(STEP_SECONDS)

    def _has_to_look(self) -> bool:
        """Whether something in the store has changed, some time has passed, or a moment has come that was waited for."""
        with suppress(LabError):
            before, self._seen = self._seen, self._store.version()
            due = self._next_look is not None and clock.now() >= self._next_look
            return self._seen != before or due or time.monotonic() - self._looked >= LOOK_SECONDS
        return True

    def _over(self) -> bool:
        only = self._serving.only
        return only is not None and self._store.state(only) is not CampaignState.ACTIVE

    def _step(self, on_look: Work) -> None:
        """All that is due. What goes wrong is said, and the work goes on."""
        try:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look_after()
            if self._serving.schedules:
                self._do("starting runs", self._advance)
            self._do("showing what is going on", on_look)
        except LabError as error:
            if error.kind != "store" or self._serving.only is not None:
                raise
            if not self._ill_store:
                self._say(str(error))
            self._ill_store = True
            # Nobody could give a sign of life meanwhile.
            self._watch = liveness.Watch()
            self._asked.end.wait(_STORE_PAUSE_SECONDS)
        else:
            self._ill_store = False

    def _do(self, name: str, work: Work) -> None:
        """Do a piece of work, which a failure must not keep the others from. Raises `LabError` when the store is to blame
        and, with `only`, when anything but the broker is."""
        try:
            with self._mishaps.passed_over(name):
                work()
        except LabError as error:
            if error.kind == "broker":
                self._running.note(error)
            elif error.kind == "store" or self._serving.only is not None:
                raise
            else:
                self._mishaps.note(name, error)

    def _advance(self) -> None:
        """Start what can be started. When that goes wrong with all campaigns together, each is tried by itself, so that
        one keeps no other from going on."""
        self._next_look = None
        only = self._serving.only
        try:
            self._next_look = self._start_runs(only)
        except LabError:
            raise
        except Exception:
            if only is None:
                for queued in self._store.queue():
                    self._do(f"starting runs of campaign {queued.id}", partial(self._start_runs, queued.id))
            raise

    def _start_runs(self, only: int | None) -> float | None:
        """Start runs, of all campaigns or of one. Returns when to look again."""
        hold = self._hold or self._running.trouble
        return scheduler.advance(self._store, self._running.dispatcher, only=only, hold=hold).next_look

    def _look_after(self) -> None:
        """What is done once a second."""
        self._looked = time.monotonic()
        self._do("keeping house", self._keep_house)
        self._do("serving what there is", lambda: self._running.worker.serve(self._served.wanted()))
        self._do("saying what is done here", lambda: self._registration.look(self._running))
        if not self._serving.schedules:
            return
        self._do("looking for forgotten messages", self._withdraw_forgotten)
        self._do("looking for signs of life", self._give_up_lost)
        self._do("asking for cleaning", lambda: self._cleaning.look(self._store, self._running.dispatcher))
        self._do("checking hosts", lambda: health.due(self._store))
        if self._looked - self._reviewed >= REVIEW_SECONDS:
            self._reviewed = self._looked
            for queued in self._store.queue():
                self._do(f"judging campaign {queued.id}", partial(judgement.review, self._store, queued.id))
        self._do("telling the news", lambda: self._news.send(self._store))

    def _keep_house(self) -> None:
        self._hold = self._housekeeping.look()

    def _give_up_lost(self) -> None:
        liveness.give_up_lost(self._store, self._watch, self._running.dispatcher, still_waiting=self._still_waiting)

    def _still_waiting(self, attempt_ids: tuple[int, ...]) -> frozenset[int]:
        """Which of the attempts have messages that wait in the queues of their labs, whoever serves these. Raises `LabError`
        (`broker`)."""
        campaigns = {self._store.tries(attempt_id)[0] for attempt_id in attempt_ids}
        queues = {queue_of(self._store.head(campaign_id).lab) for campaign_id in campaigns}
        return self._running.still_waiting(attempt_ids, tuple(sorted(queues)))

    def _withdraw_forgotten(self) -> None:
        """A private Redis that was started anew has forgotten its messages: attempts that wait for them go back."""
        sent = self._running.dispatcher.sent
        sent &= {sign.attempt_id for sign in self._store.signs() if sign.state is AttemptState.SENT}
        if self._running.broker_generation != self._generation and not self._running.trouble:
            self._generation = self._running.broker_generation
            liveness.withdraw(self._store, sent - self._still_waiting(tuple(sent)))

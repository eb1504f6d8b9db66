"""The pace of a rehearsal: its clock goes on as soon as everybody waits, and not before.

A service pauses between two looks at its store. In a rehearsal these pauses are turns of the clock: `Pace` stands in for the
event that ends the service, and whoever waits for it lets time go on. It goes on to the earliest moment that anybody waits
for: an attempt inside its worker, the engine for the opening of a window or the end of a back-off, the rehearsal for an
incident. It stands still while a worker works, while a message is on its way, and while the engine has not seen the newest
change in the store.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from labctl import clock
from labctl.campaign.incidents import Incidents
from labctl.conductor import Conductor
from labctl.model.outcome import AttemptState, HostState
from labctl.plan.windows import next_opening
from labctl.store import ActiveAttempt, Store

_STUCK_SECONDS = 60.0
"""Real seconds in which nothing changes although something is left to be done, after which a rehearsal is stuck."""
_IDLE_SECONDS = 2.5
"""Real seconds after which nothing more happens by itself: the service has looked at everything twice."""
_LULL_SECONDS, _LULL = 0.3, 30.0
"""While nobody waits for time to pass, but something is tried again in real seconds (the cleaning of a host that is lost), so
much of it passes in so many real ones."""
_LOOK_SECONDS = 1.2
"""Real seconds within which a service has looked at everything, whatever happens."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """One attempt as it went by: what it was, on which hosts, from when to when, in seconds since the rehearsal began."""

    attempt: int
    campaign: int
    run: int
    hosts: tuple[str, ...]
    began: float
    ended: float


class Pace(threading.Event):
    """The event that ends a service, and the clock's turn for as long as it is waited for."""

    def __init__(self, store: Store, conductor: Conductor, incidents: Incidents, *, slots: int) -> None:
        super().__init__()
        self._store = store
        self._conductor = conductor
        self._incidents = incidents
        self._slots = slots
        self._version: int | None = None
        self._active: dict[int, ActiveAttempt] = {}
        self._began: dict[int, float] = {}
        self._engine_wants: tuple[float, ...] = ()
        self._still_since = time.monotonic()
        self._looks = 0
        self._looks_first = 0
        self._wait_until = 0.0
        self._lulled = 0.0
        self.shifts: list[Shift] = []
        self.stuck = False
        """Whether nothing went on any more although something was left to be done."""

    def looked(self) -> None:
        """The service has looked at its store, and started what could be started."""
        self._looks += 1

    def wait(self, timeout: float | None = None) -> bool:
        """Let time go on, for one step at the most; then the service looks at its store again."""
        if not self.is_set():
            self._turn(timeout or 0.0)
        return self.is_set()

    def _turn(self, seconds: float) -> None:
        while self._conductor.hear(0.0):
            pass
        if self._changed():
            return
        if self._somebody_works():
            self._conductor.hear(seconds)
            return
        engine = self._engine_moment()
        known = (self._conductor.earliest, engine, *self._incidents.moments())
        moment = min((one for one in known if one is not None), default=None)
        if moment is None:
            self._stand_still(seconds)
            return
        self._conductor.go_on(moment)
        self._still_since = time.monotonic()
        if moment == engine:
            # The engine must have looked before time goes on: what it has been waiting for may not be seen again.
            self._looks_first, self._wait_until = self._looks + 1, time.monotonic() + self._patience()
            self._engine_wants = self._engine_moments(clock.now())
        self._incidents.happen(self._conductor)

    def _changed(self) -> bool:
        """Whether the store has changed since the service last looked; what has is noted."""
        version = self._store.version()
        if version == self._version:
            return False
        self._version = version
        self._still_since = time.monotonic()
        self._note({item.id: item for item in self._store.active_attempts()})
        self._engine_wants = self._engine_moments(clock.now())
        return True

    def _note(self, active: dict[int, ActiveAttempt]) -> None:
        """Keep what has ended as a shift. The clock stands still from a change in the store until it is noted."""
        moment = self._conductor.moment
        for item in self._active.values():
            if item.id not in active:
                began = self._began.pop(item.id)
                self.shifts.append(
                    Shift(
                        attempt=item.id,
                        campaign=item.campaign_id,
                        run=item.run_id,
                        hosts=item.hosts,
                        began=began,
                        ended=moment,
                    )
                )
        self._began = {attempt_id: self._began.get(attempt_id, moment) for attempt_id in active}
        self._active = active

    def _somebody_works(self) -> bool:
        """Whether a worker is busy, or will be as soon as it has taken a message or handed in a result."""
        conductor = self._conductor
        if conductor.busy or self._looks < self._looks_first or time.monotonic() < self._wait_until:
            return True
        states = [item.state for item in self._active.values()]
        on_its_way = AttemptState.SENT in states and conductor.at_work < self._slots
        claimed = {f"attempt {item.id}" for item in self._active.values() if item.state is AttemptState.CLAIMED}
        return on_its_way or not claimed <= conductor.working

    def _engine_moment(self) -> float | None:
        """When the engine next has something to do of its own accord, in seconds of monotonic time."""
        ahead = min(self._engine_wants, default=None)
        return None if ahead is None else self._conductor.moment + max(0.0, ahead - clock.now())

    def _engine_moments(self, now: float) -> tuple[float, ...]:
        """What the engine waits for, in wall time: openings of windows, ends of back-offs, checks of hosts."""
        wanted: list[float | None] = []
        for queued in self._store.queue():
            opening = next_opening(self._store.head(queued.id).campaign.windows, now)
            wanted += [opening.start if opening is not None else None, self._store.next_not_before(queued.id)]
        wanted += self._checks()
        return tuple(one for one in wanted if one is not None and one > now)

    def _checks(self) -> list[float]:
        return [host.next_check for host in self._store.hosts() if host.state is HostState.QUARANTINED]

    def _patience(self) -> float:
        """How long, in real seconds, the engine may take to see to what is due: checks of hosts it sees to but once a
        second."""
        due = any(check <= clock.now() for check in self._checks())
        return _LOOK_SECONDS if due else 0.0

    def _stand_still(self, seconds: float) -> None:
        """Nobody waits for any moment: what is left to be done is tried again by the service, and if there is nothing left,
        that's all."""
        if self._conductor.hear(min(seconds, _LULL_SECONDS)):
            return
        still = time.monotonic() - self._still_since
        left = bool(self._active or self._store.leases() or self._store.live_vms())
        self.stuck = left and still > _STUCK_SECONDS
        if self.stuck or (not left and still > _IDLE_SECONDS):
            self.set()
        elif left and time.monotonic() - self._lulled > _LULL_SECONDS:
            self._lulled = time.monotonic()
            self._conductor.go_on(self._conductor.moment + _LULL)

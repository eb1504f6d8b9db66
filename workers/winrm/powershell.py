"""PowerShell on a Windows machine by WinRM: calls, and jobs for what takes longer than a call may."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from labctl import clock
from labctl.errors import LabError
from labctl.model.lab import WinrmAccess
from workers.guard import Deadline
from workers.powershell import envelope, jobs
from workers.powershell.base import Job, Json, Script
from workers.powershell.envelope import Output, Request
from workers.winrm.failures import Broken
from workers.winrm.lane import Lane
from workers.winrm.session import Session

LANES = 3
"""Requests to one machine at once. Each lane has a shell; the second is opened when the first is busy."""

PAUSES_WHEN_STALE = (0.0, 0.0)
"""Seconds before each further try when a session or a shell had become too old, so two more tries."""

PAUSES_WHEN_FULL = (1.0, 2.0, 4.0, 8.0)
"""The same when a quota is used up: shells of others are closed, operations end."""

CLOSING_SECONDS = 5.0


class WinrmPowerShell:
    """The `PowerShell` of a machine. Connects when it is used; safe to use from several threads."""

    def __init__(self, *, where: str, access: WinrmAccess, host: str = "") -> None:
        """`where` says whose inside this is, for messages; `host` is the lab's host that errors are about."""
        self._where = where
        self._access = access
        self._host = host
        self._changed = threading.Condition()
        self._idle: list[Lane] = []
        self._busy = 0
        self._closings = 0

    @property
    def where(self) -> str:
        """Whose inside this is, for messages."""
        return self._where

    def call(self, script: Script, document: Mapping[str, Json], *, timeout: float) -> Json:
        """Run a script that ends soon and return its answer. See `workers.powershell.base.PowerShell`."""
        request = envelope.request_for(script, document)
        output = self._run(request, Deadline.after(timeout), repeatable=not script.writes)
        return envelope.read_answer(request, output, where=self._where, host=self._host)

    def job(self, script: Script, document: Mapping[str, Json], *, name: str, timeout: float) -> Job:
        """Start a script that takes long, or find it. See `workers.powershell.base.PowerShell`."""
        return jobs.start(self, script, document, name=name, timeout=timeout, host=self._host)

    def close(self) -> None:
        """Close what is open; a lane that is busy is closed when its call has ended. A later call opens one again."""
        with self._changed:
            self._closings += 1
            lanes, self._idle = self._idle, []
        for lane in lanes:
            lane.close(Deadline.after(CLOSING_SECONDS))

    def _run(self, request: Request, deadline: Deadline, *, repeatable: bool) -> Output:
        """Run a request; again, where that does no harm and may help."""
        stale, full = iter(PAUSES_WHEN_STALE), iter(PAUSES_WHEN_FULL)
        while True:
            try:
                with self._lane(deadline) as lane:
                    return lane.run(request, deadline)
            except Broken as broken:
                pause: float | None = None
                if broken.error.kind == "quota":
                    pause = next(full, None)
                elif broken.stale or broken.shell_gone:
                    pause = next(stale, None)
                if pause is None or pause >= deadline.left or (broken.begun and not repeatable):
                    raise _told(broken) from broken
            clock.sleep(pause)

    @contextmanager
    def _lane(self, deadline: Deadline) -> Iterator[Lane]:
        """A lane for one request."""
        lane = self._take(deadline)
        closings = self._closings
        try:
            yield lane
        finally:
            with self._changed:
                keep = closings == self._closings
                if keep:
                    self._idle.append(lane)
                self._busy -= 1
                self._changed.notify()
            if not keep:
                lane.close(Deadline.after(CLOSING_SECONDS))

    def _take(self, deadline: Deadline) -> Lane:
        with self._changed:
            while not self._idle and self._busy >= LANES:
                if not self._changed.wait(deadline.left):
                    raise self._all_busy()
            self._busy += 1
            if self._idle:
                return self._idle.pop()
        session = Session(self._access, where=self._where, host=self._host)
        return Lane(session, where=self._where, host=self._host)

    def _all_busy(self) -> LabError:
        return LabError(
            f"WinRM on {self._where} was busy with other calls for too long.",
            kind="timeout",
            why=f"{LANES} calls at once go to one machine.",
            todo="Look at the load of that machine.",
            host=self._host,
        )


def _told(broken: Broken) -> LabError:
    """The error of a request; whether the script has acted is part of what happened."""
    if broken.begun:
        broken.error.why += " The script may have begun; what it has done is not known."
    return broken.error

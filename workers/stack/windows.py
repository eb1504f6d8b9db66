"""The network stack of a Windows host or guest: settings of drivers by the registry, TCP chimney, MTU.

A driver reads its settings when its adapter starts, so setting one restarts the adapter, and that cuts the connections which
go through it; it may be the one that we come by. So it is done by a job, which is asked for its end until it can be.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from labctl.errors import LabError
from workers.guard import Deadline, Guard
from workers.powershell.base import PowerShell, ScriptError
from workers.stack.adapters import CHIMNEY, SET, System, changes_of, read_system
from workers.stack.base import Knob, Reading

CALL_SECONDS = 30.0
SET_SECONDS = 120.0
"""How long it may take until adapters that were restarted are up, and we are let in again."""
LOOK_SECONDS = 1.0


class WindowsStack:
    """A `Stack` by a place where scripts run: the adapters of a host under a virtual switch, and with its address."""

    def __init__(self, powershell: PowerShell, *, bridge: str, address: str) -> None:
        self._powershell = powershell
        self._switch = bridge
        self._address = address or None
        self._system: System | None = None

    def adapters(self) -> tuple[str, ...]:
        """See `Stack.adapters`."""
        return tuple(adapter.name for adapter in self._seen.adapters)

    def look(self) -> None:
        """See `Stack.look`."""
        self._system = read_system(self._powershell, switch=self._switch, address=self._address)

    def readings(self, offload: str) -> tuple[Reading, ...]:
        """See `Stack.readings`."""
        return self._seen.readings(offload)

    def value(self, adapter: str, name: str) -> str | None:
        """See `Stack.value`."""
        if name == CHIMNEY:
            return self._seen.chimney
        return next((each.settings.get(name) for each in self._seen.adapters if each.name == adapter), None)

    def set(self, knobs: Sequence[Knob]) -> str:
        """See `Stack.set`."""
        return set_knobs(self._powershell, knobs)

    @property
    def _seen(self) -> System:
        assert self._system is not None, "look first"
        return self._system


def set_knobs(powershell: PowerShell, knobs: Sequence[Knob]) -> str:
    """Set knobs, and wait until that is done and the adapters are up again. Returns what Windows said to it.

    Not to be interrupted: what is half set is worse than a wait. Raises `LabError` of the last kind that asking for the end
    has met, when there is none in time.
    """
    job = powershell.job(SET, changes_of(knobs), name=f"stack-{secrets.token_hex(8)}", timeout=CALL_SECONDS)
    deadline, waiting = Deadline.after(SET_SECONDS), Guard()
    while True:
        answer, unheard = None, None
        try:
            answer = job.poll(timeout=CALL_SECONDS)
        except ScriptError:
            raise
        except LabError as error:
            unheard = error
        if answer is not None:
            break
        if deadline.passed:
            raise unheard or LabError(
                f"Settings of adapters on {powershell.where} were not set within {SET_SECONDS:g} s.", kind="timeout"
            )
        waiting.sleep(LOOK_SECONDS)
    with suppress(LabError):
        job.cancel(timeout=CALL_SECONDS)
    return "; ".join(cast("dict[str, Any]", answer)["failed"])

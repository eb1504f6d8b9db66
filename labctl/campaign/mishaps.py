"""Mishaps: what goes wrong with a piece of the service's work that nobody thought of.

A bug in one piece must not end a night: it is logged with where it came from, and the next piece is done. Of a campaign that
a person watches the contrary holds: when the same piece goes wrong again and again, its command ends and says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from labctl.errors import LabError

IN_A_ROW = 5
"""So many times in a row the same piece of work may go wrong while somebody watches."""

log = logging.getLogger(__name__)


class Mishaps:
    """Passes over what goes wrong, and says it once until it goes well again. One that isn't `patient` raises it after
    `IN_A_ROW` times."""

    def __init__(self, say: Callable[[str], None], *, patient: bool) -> None:
        self._say = say
        self._patient = patient
        self._going_on: dict[str, tuple[str, int]] = {}
        """What goes wrong with which piece of work, and how many times in a row."""

    @contextmanager
    def passed_over(self, work: str) -> Iterator[None]:
        """Do a piece of work. Raises the `LabError`s of it: who must act on them is known."""
        try:
            yield
        except LabError:
            raise
        except Exception as error:
            if self._is_new(work, f"{type(error).__name__}: {error}"):
                log.exception("a bug of labctl: %s went wrong; it is tried again, and all else goes on", work)
            if not self._patient and self._going_on[work][1] >= IN_A_ROW:
                raise
        else:
            self._going_on.pop(work, None)

    def note(self, work: str, error: LabError) -> None:
        """Say what keeps a piece of work from being done, once until it has been done."""
        if self._is_new(work, str(error)):
            self._say(f"{work} went wrong; it is tried again. {error}")

    def _is_new(self, work: str, what: str) -> bool:
        before, times = self._going_on.get(work, ("", 0))
        self._going_on[work] = what, times + 1
        return what != before

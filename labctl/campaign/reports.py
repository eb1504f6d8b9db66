"""Reports of campaigns that have ended are written beside the service's other work: one with charts takes seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

ReportWriter = Callable[[int], str]
"""Writes the report of a campaign, and returns what news of its end say of it: the answer, and where the page is. It is called
in a thread of its own, so it opens a store of its own."""

log = logging.getLogger(__name__)


class Reports:
    """Writes reports, one at a time. Asked by one thread."""

    def __init__(self, write: ReportWriter) -> None:
        self._write = write
        self._thread: threading.Thread | None = None
        self._written: dict[tuple[int, float], str] = {}
        """What the last one says, by its campaign and when that ended."""

    @property
    def thread(self) -> threading.Thread | None:
        """The thread of the last one that was begun."""
        return self._thread

    def text(self, campaign_id: int, ended: float) -> str | None:
        """What the report says of a campaign that ended then. None while it is not written: it is begun if no other one is
        being written, so it is asked for again and again."""
        if self._thread is not None and self._thread.is_alive():
            return None
        written, self._written = self._written, {}
        if (campaign_id, ended) in written:
            return written[campaign_id, ended]
        self._thread = threading.Thread(target=self._run, args=(campaign_id, ended), name="report", daemon=True)
        self._thread.start()
        return None

    def _run(self, campaign_id: int, ended: float) -> None:
        try:
            text = self._write(campaign_id)
        except Exception:
            # People want to hear of the end all the same.
            log.exception("the report of campaign %s could not be written", campaign_id)
            text = f"Its report could not be written; `labctl report {campaign_id}` says why."
        self._written = {(campaign_id, ended): text}

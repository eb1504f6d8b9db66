"""Delivering messages to people: mail, chat, webhooks, whatever apprise (https://github.com/caronc/apprise) has a URL for.

A URL holds passwords and tokens, so it is a secret: it is looked up when a message is sent, and neither it nor any part
of it is ever logged. What apprise says itself may hold it, so that is heard here and goes no further.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

import apprise

from labctl.errors import LabError
from labctl.model.lab import SecretRef
from labctl.secrets import resolve

SEND_SECONDS = 60.0
"""Deadline of one try. apprise waits for 4 to 15 s for each answer of a server; some need several."""
WAITS = (5.0, 30.0, 120.0)
"""Seconds before a message is tried again; after as many tries and one it is given up."""
_SHORTEST_SECRET = 3
"""Shorter parts of a URL (a port, the name of a parameter) are no secrets."""

log = logging.getLogger(__name__)

_apprise_log = logging.getLogger("apprise")
_apprise_log.propagate = False
_apprise_log.addHandler(logging.NullHandler())
logging.getLogger("urllib3").setLevel(logging.INFO)


@dataclass(frozen=True, kw_only=True)
class Message:
    """What people are told. `urgency` is one of apprise's: `info`, `success`, `warning`, `failure`."""

    title: str
    text: str
    urgency: str = "info"


def send_now(place: SecretRef, message: Message, *, seconds: float = SEND_SECONDS) -> None:
    """Send one message and wait until it was taken, at most so long.

    Raises `LabError`: `secret-unavailable`, `notify-url` (apprise can't do anything with what the reference leads to),
    `notify-failed` (the other side doesn't take it, or not in time).
    """
    url = resolve(place).text.strip()
    service = apprise.Apprise.instantiate(url, asset=apprise.AppriseAsset(app_id="labctl", app_desc="labctl"))
    if service is None:
        raise LabError(
            f"What {place} holds is no URL that messages can be sent to.",
            kind="notify-url",
            why="apprise doesn't know such a URL, or a part of it is missing.",
            todo="See https://appriseit.com/services/ for the URLs of mail, chats and webhooks.",
        )
    taken: list[bool] = []
    with _heard() as said:

        def send() -> None:
            said.thread = threading.get_ident()
            try:
                taken.append(service.notify(title=message.title, body=message.text, notify_type=message.urgency))
            except Exception as error:
                said.lines.append(f"apprise failed: {type(error).__name__}")

        thread = threading.Thread(target=send, name="notify-send", daemon=True)
        thread.start()
        thread.join(seconds)
    if taken != [True]:
        late = [f"There was no answer within {seconds:g} s."] if thread.is_alive() else []
        raise LabError(
            f"The message could not be sent to {place}.",
            kind="notify-failed",
            why=" ".join(late + [_without(url, line) for line in said.lines]),
            todo="See whether its server is there and takes the password or token.",
        )


class Delivery:
    """Sends messages in threads of its own, one for each place, so that nobody waits for a server that is dead.

    Messages to one place keep their order. One that can't be sent after several tries is logged and dropped.
    """

    def __init__(self, *, waits: Sequence[float] = WAITS, seconds: float = SEND_SECONDS) -> None:
        self._waits = tuple(waits)
        self._seconds = seconds
        self._queues: dict[SecretRef, deque[Message]] = {}
        self._changed = threading.Condition()
        self._ending = threading.Event()

    def put(self, place: SecretRef, message: Message) -> None:
        """Have a message sent. Returns at once and never raises."""
        with self._changed:
            queue = self._queues.get(place)
            if queue is not None:
                queue.append(message)
                return
            self._queues[place] = deque([message])
        threading.Thread(target=self._serve, args=(place,), name="notify", daemon=True).start()

    def close(self, seconds: float) -> bool:
        """Wait until everything was sent or given up, at most so long; what failed so far is tried only once more.
        Returns whether nothing is left."""
        self._ending.set()
        with self._changed:
            return self._changed.wait_for(lambda: not self._queues, seconds)

    def _serve(self, place: SecretRef) -> None:
        while True:
            with self._changed:
                queue = self._queues[place]
                if not queue:
                    del self._queues[place]
                    self._changed.notify_all()
                    return
                message = queue.popleft()
            self._deliver(place, message)

    def _deliver(self, place: SecretRef, message: Message) -> None:
        for wait in (*self._waits, None):
            last = wait is None or self._ending.is_set()
            try:
                send_now(place, message, seconds=self._seconds)
            except LabError as error:
                if last or error.kind != "notify-failed":
                    log.warning("%r was not told: %s %s", message.title, error.what, error.why)
                    return
                self._ending.wait(wait)
            else:
                return


class _Heard(logging.Handler):
    """The warnings that apprise logs in one thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.thread = 0
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self.thread:
            self.lines.append(record.getMessage())


@contextmanager
def _heard() -> Iterator[_Heard]:
    handler = _Heard()
    _apprise_log.addHandler(handler)
    try:
        yield handler
    finally:
        _apprise_log.removeHandler(handler)


def _without(url: str, line: str) -> str:
    """The line without anything that stands in the URL after its scheme."""
    words = {word for text in (url, unquote(url)) for word in re.split(r"[/@:?&=#,\s]+", text.partition("://")[2])}
    for word in sorted(words, key=len, reverse=True):
        if len(word) >= _SHORTEST_SECRET:
            line = line.replace(word, "***")
    return line

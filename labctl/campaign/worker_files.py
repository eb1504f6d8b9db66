"""What a service and the worker that it has started tell each other: small files in a directory of theirs.

Files, because they also work when neither the store nor the broker can be used, and because Celery's remote control goes
over the broker, loses messages whenever the worker is reconnecting, and keeps a queue of its own there.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

OWNER_VARIABLE = "LABCTL_OWNER"
"""Environment variable with the name of the process (`processes.process_name`) of the service that started a worker."""
DIRECTORY_VARIABLE = "LABCTL_WORKER_DIRECTORY"
"""Environment variable with the directory of the files of this start of the worker."""
_PULSE_BYTES = 128


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """What the main process of a worker says about once a second, from when it consumes on."""

    beats: int
    busy: int
    """How many of its slots are at work."""
    taken: int
    """How many messages it has begun to work on since it was started."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a worker is to serve."""

    queues: tuple[str, ...]
    slots: int


class WorkerFiles:
    """The files of one start of a worker. Its directory lies in that of the service."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._wishes = directory.parent
        """Wishes for the end are common to all starts of a worker, also to those that have lost their main process."""

    @property
    def directory(self) -> Path:
        """Where they are."""
        return self._directory

    def pulse(self) -> Pulse | None:
        """The worker's last pulse; None before it consumes."""
        with suppress(OSError, ValueError):
            return Pulse(**json.loads((self._directory / "pulse").read_bytes()))
        return None

    def beat(self, pulse: Pulse) -> None:
        """Give a pulse. It overwrites the last one in its place, which also works on a full disk."""
        text = json.dumps(pulse.__dict__).encode().ljust(_PULSE_BYTES)
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            file = os.open(self._directory / "pulse", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.pwrite(file, text, 0)
            finally:
                os.close(file)

    def wanted(self) -> Wanted | None:
        """What the worker is to serve; None when it was never said."""
        text = self._read("wanted")
        if not text:
            return None
        found = json.loads(text)
        return Wanted(queues=tuple(found["queues"]), slots=found["slots"])

    def want(self, wanted: Wanted) -> None:
        """Say what the worker is to serve."""
        self._write("wanted", json.dumps({"queues": wanted.queues, "slots": wanted.slots}))

    def refusal(self) -> str:
        """Why the worker refuses to work; empty when it doesn't."""
        return self._read("refusal")

    def refuse(self, why: str) -> None:
        """Say why the worker can't work here at all."""
        self._write("refusal", why)

    @property
    def parks_no_more(self) -> bool:
        """Whether attempts are to leave no VM behind for the next one."""
        return self._is_wished("park-no-more")

    def park_no_more(self) -> None:
        """Ask for that."""
        self._wish("park-no-more")

    @property
    def takes_no_more(self) -> bool:
        """Whether the worker is to take no more messages, and to end when its attempts have ended."""
        return self._is_wished("take-no-more")

    def take_no_more(self) -> None:
        """Ask for that."""
        self._wish("take-no-more")

    @property
    def end_is_wanted(self) -> bool:
        """Whether all attempts are to be ended at their next step."""
        return self._is_wished("end")

    def want_end(self) -> None:
        """Ask for that."""
        self._wish("end")

    def _is_wished(self, name: str) -> bool:
        return (self._wishes / name).exists()

    def _wish(self, name: str) -> None:
        with suppress(OSError):
            (self._wishes / name).touch()

    def _read(self, name: str) -> str:
        with suppress(OSError):
            return (self._directory / name).read_text()
        return ""

    def _write(self, name: str, text: str) -> None:
        """Whoever reads sees all of it or nothing; when it can't be written, the next time may work."""
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            part = self._directory / f".{name}.{os.getpid()}"
            part.write_text(text)
            part.replace(self._directory / name)


def files_of_this_worker() -> WorkerFiles | None:
    """The files of the worker that this process belongs to; None when no service has started it."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    return WorkerFiles(Path(directory)) if directory else None

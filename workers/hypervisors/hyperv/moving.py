"""One Move-VM: a job on the source, watched without disturbing what is measured there, and ended when its time is over.

The migration belongs to the management service of the host. The job that began it, and whoever watches, may go: so who gives
up asks the management service to end it, and where the VM is in the end is told by both hosts (`migration`).
"""

from __future__ import annotations

import time
import uuid as uuids
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from labctl.errors import LabError
from labctl.model.lab import Host
from labctl.model.result import MigrationSample
from workers.guard import Deadline, Guard
from workers.hypervisors.hyperv import paths
from workers.hypervisors.hyperv.answers import Answer
from workers.hypervisors.hyperv.connection import Connections, of_host
from workers.powershell.base import Job, Json, ScriptError

WATCH_SECONDS = 5.0
"""How long one call watches on the host. Each costs the host the start of a PowerShell, so there are few."""

LOOK_SECONDS = 0.5
"""Between two calls where the host had nothing to watch: the migration is about to begin, or has just ended."""

CALL_SECONDS = 30.0

SILENT_SECONDS = 60.0
"""How long a source that doesn't answer is waited for: its job may go on. A host that restarts takes longer."""

CANCEL_SECONDS = 60.0
"""How long a migration is asked to end."""


@dataclass
class Tried:
    """How one Move-VM went. `error` empty: it says it is done."""

    started: float
    """When it was asked for, in epoch seconds; by the monotonic clock `began`."""
    began: float
    ended: float = 0.0
    """When its end was seen, in epoch seconds."""
    error: str = ""
    kind: str = ""
    """As `MigrationOutcome.error_kind`."""
    busy: bool = False
    """It failed because too many were in progress."""
    queued_ms: int | None = None
    total_ms: int | None = None
    samples: list[MigrationSample] = field(default_factory=list)


class Moving:
    """One Move-VM of one VM. Use once."""

    def __init__(
        self,
        connections: Connections,
        source: Host,
        destination: Host,
        document: Mapping[str, Json],
        *,
        deadline: Deadline,
        guard: Guard,
        on_sample: Callable[[MigrationSample], None] | None,
    ) -> None:
        """`document` is that of `move-vm.ps1`."""
        self._connections = connections
        self._source = source
        self._destination = destination
        self._document = document
        self._id = str(document["id"])
        self._deadline = deadline
        self._guard = guard
        self._on_sample = on_sample
        self._tried = Tried(started=time.time(), began=time.monotonic())

    def run(self) -> Tried:
        """Move it, until that has ended or was cancelled. Raises nothing of the lab's."""
        tried = self._tried
        name = f"move-{self._id}-{uuids.uuid4().hex[:8]}"
        try:
            job = self._connections.job(self._source.name, "move-vm", self._document, job=name, timeout=CALL_SECONDS)
            answer = self._watch(job)
        except ScriptError as error:
            self._failed(error)
        except LabError as error:
            tried.error, tried.kind = f"{error.what} {error.why}".strip(), "unreachable"
            self._cancel(None)
        else:
            if answer is not None:
                tried.queued_ms, tried.total_ms = answer.whole("queuedMs"), answer.whole("totalMs")
        tried.ended = time.time()
        return tried

    def _watch(self, job: Job) -> Answer | None:
        """The answer of the job; None when it was cancelled, which `Tried` then says. Raises what the script raised."""
        silent: Deadline | None = None
        while True:
            try:
                active = self._look()
                value = None if active else job.poll(timeout=CALL_SECONDS)
                silent = None
            except ScriptError:
                raise
            except LabError as error:
                silent = silent or Deadline.after(min(SILENT_SECONDS, self._deadline.left))
                if silent.passed:
                    raise of_host(self._source.name, error) from error
                active, value = False, None
            if value is not None:
                return Answer(value, host=self._source.name, what="move-vm")
            if self._guard.stopped or self._deadline.passed:
                self._give_up(job)
                return None
            if not active:
                # Not the guard's sleep: an attempt that is asked to end has to bring the VM back first.
                time.sleep(min(LOOK_SECONDS, max(self._deadline.left, 0.01)))

    def _look(self) -> bool:
        """Watch for a while, and keep what was seen of its progress; whether it still goes on."""
        seconds = min(WATCH_SECONDS, self._deadline.left)
        document: dict[str, Json] = {"id": self._id, "seconds": seconds}
        answer = self._connections.call(self._source.name, "await-move", document, timeout=CALL_SECONDS + seconds)
        now = time.monotonic() - self._tried.began
        for seen in answer.items("samples"):
            sample = MigrationSample(at=now - seen.whole("agoMs") / 1000, percent=seen.whole("percent"))
            if not self._tried.samples or sample.at > self._tried.samples[-1].at:
                self._tried.samples.append(sample)
                if self._on_sample is not None:
                    self._on_sample(sample)
        return answer.flag("active")

    def _give_up(self, job: Job) -> None:
        """End it at its deadline, or because the attempt was asked to end."""
        tried = self._tried
        tried.kind = "cancelled" if self._guard.stopped else "deadline"
        tried.error = "The attempt was asked to end." if self._guard.stopped else "It had not ended at its deadline."
        if not self._cancel(job):
            tried.error += f" It still goes on: host {self._source.name} didn't end it when it was asked to."

    def _failed(self, error: ScriptError) -> None:
        """Move-VM, or what watched it, has told of an error."""
        tried, said = self._tried, paths.explained(self._source, self._destination.name, error)
        tried.error = " ".join(part for part in (said.what, said.why, said.todo) if part)
        tried.busy = _is_busy(error)
        tried.kind = "refused" if said.kind == "no-delegation" and not tried.samples else "failed"
        if error.kind != "move-failed":
            # Its script is gone, while what it has begun may go on.
            self._cancel(None)

    def _cancel(self, job: Job | None) -> bool:
        """End the migration at the management service, then the script that watches it, if one does. Returns whether the
        former has ended."""
        ended = False
        deadline = Deadline.after(CANCEL_SECONDS)
        while not ended and not deadline.passed:
            with suppress(LabError):
                answer = self._connections.call(
                    self._source.name, "cancel-move", {"id": self._id}, timeout=CALL_SECONDS
                )
                ended = answer.whole("left") == 0
            if not ended:
                time.sleep(min(LOOK_SECONDS, deadline.left))
        if job is not None:
            with suppress(LabError):
                job.cancel(timeout=CALL_SECONDS)
        return ended


def _is_busy(error: ScriptError) -> bool:
    """Whether a Move-VM failed because too many are in progress: Hyper-V lets the surplus wait, and then fail."""
    active, maximum = error.detail.get("active"), error.detail.get("maximum")
    return isinstance(active, int) and isinstance(maximum, int) and active >= maximum > 0

"""The jobs of a simulated host: what `job-start`, `job-poll` and `job-cancel` of `workers/powershell/scripts` do on Windows."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.simulators.winrm.processes import Context, Run, Simulated
from workers.powershell import envelope
from workers.powershell.base import Json

PACKAGE = "workers.powershell"
NAMES = frozenset({"job-start", "job-poll", "job-cancel"})


@dataclass(kw_only=True)
class _Job:
    request: envelope.Request
    ended: threading.Event = field(default_factory=threading.Event)
    state: str = "running"
    progress: Json = None
    answer: str | None = None


class Jobs:
    """Detached processes. They outlive shells and connections, but not a restart of the host."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self.started: Counter[str] = Counter()
        """How often a process has begun to run a script, by the script's name."""

    def script(self, name: str, document: Mapping[str, Json], context: Context) -> Json:
        """One of the three scripts."""
        id = str(document["id"])
        if name == "job-start":
            return {"state": self._start(id, str(document["request"]), context)}
        if name == "job-cancel":
            return {"state": self._cancel(id)}
        return self._poll(id)

    def lose(self) -> None:
        """The host has restarted: processes are gone, what is on its disk is not."""
        with self._lock:
            for job in self._jobs.values():
                job.ended.set()
                if job.state == "running":
                    job.state = "lost"

    def _start(self, id: str, request: str, context: Context) -> str:
        with self._lock:
            if id in self._jobs:
                return "found"
            job = self._jobs[id] = _Job(request=envelope.decode_request(request.encode()))
            self.started[job.request.name.rpartition("/")[2]] += 1
        threading.Thread(target=self._work, args=(job, context), daemon=True).start()
        return "started"

    def _work(self, job: _Job, context: Context) -> None:
        def progress(value: Json) -> None:
            job.progress = value

        package = job.request.name.rpartition("/")[0]
        own = replace(context, progress=progress, ended=job.ended, package=package)
        answer = Simulated(run_script=self._run, context=own).answer(job.request)
        with self._lock:
            if job.state == "running":
                job.state = "ended"
                job.answer = base64.b64encode(json.dumps(answer).encode()).decode()

    def _poll(self, id: str) -> Json:
        with self._lock:
            job = self._jobs.get(id)
            if job is None:
                return {"state": "none", "progress": None, "answer": None}
            progress = None if job.progress is None else json.dumps(job.progress)
            return {"state": job.state, "progress": progress, "answer": job.answer}

    def _cancel(self, id: str) -> str:
        with self._lock:
            job = self._jobs.get(id)
            if job is None:
                return "none"
            job.ended.set()
            before = job.state
            job.state = "cancelled"
            job.answer = None
            return before

"""Jobs: scripts that take longer than a call may, as processes of their own on the machine where they run.

A job has a folder there, named after the job. `job-start.ps1` starts it at most once however often it is asked to, so a start
whose answer was lost is simply sent again, and any process that knows the name finds the job. Its answer stays there for
`KEEP_DAYS`, whether or not anybody asks for it.

What to try first on a real host: a job over the WinRM transport `credssp` that reads a share. The process is made by WMI from
the caller's token, and should have the credentials that were delegated to it even after the shell was closed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import cast

from labctl.errors import LabError
from workers.powershell import envelope
from workers.powershell.base import Json, PowerShell, Script, ScriptError

PACKAGE = "workers.powershell"

KEEP_DAYS = 3

START = Script(package=PACKAGE, name="job-start", writes=False)
POLL = Script(package=PACKAGE, name="job-poll", writes=False)
CANCEL = Script(package=PACKAGE, name="job-cancel", writes=False)
"""All three may be repeated when their answer was lost: what they do is done once."""


def start(
    shell: PowerShell, script: Script, document: Mapping[str, Json], *, name: str, timeout: float, host: str = ""
) -> HostJob:
    """Start a script as the job of this name, or find it. Raises what `PowerShell.call` raises."""
    job = HostJob(shell, script=script, name=name, host=host)
    request = envelope.request_for(script, document).encode().decode("ascii")
    shell.call(START, {"id": job.id, "request": request, "keepDays": KEEP_DAYS}, timeout=timeout)
    return job


class HostJob:
    """A `Job` behind any `PowerShell`."""

    def __init__(self, shell: PowerShell, *, script: Script, name: str, host: str = "") -> None:
        self.id = hashlib.sha256(name.encode()).hexdigest()[:32]
        """Name of its folder: whatever the job is called, this is a file name."""
        self._shell = shell
        self._script = script
        self._name = name
        self._host = host
        self._progress: Json = None

    def poll(self, *, timeout: float) -> Json | None:
        """Its answer when it has ended, else None.

        Raises what `PowerShell.call` raises; `ScriptError` of kind `job-lost` (its process has ended without an answer, as
        when the machine restarts, or its folder is gone) or `job-cancelled`.
        """
        told = self._call(POLL, timeout)
        progress, answer, state = told.get("progress"), told.get("answer"), told.get("state")
        if isinstance(progress, str):
            self._progress = json.loads(progress)
        if state == "running":
            return None
        if state == "ended" and isinstance(answer, str):
            name = f"{self._script.package}/{self._script.name}"
            return envelope.open_envelope(answer, name, where=self._shell.where, host=self._host)
        if state == "cancelled":
            raise self._gone("job-cancelled", "Somebody has cancelled it.", "")
        raise self._gone(
            "job-lost",
            "Its process is gone and has left no answer; the machine may have restarted."
            if state == "lost"
            else "Nothing of it is there; it was never started, or was removed.",
            "Look whether that machine has restarted.",
        )

    def progress(self) -> Json:
        """What the script last said of its progress, as of the last `poll`."""
        return self._progress

    def cancel(self, *, timeout: float) -> None:
        """End its process with all that it has started, and remove what it left. One that has begun is never started again."""
        self._call(CANCEL, timeout)

    def _call(self, script: Script, timeout: float) -> Mapping[str, Json]:
        told = self._shell.call(script, {"id": self.id}, timeout=timeout)
        if not isinstance(told, dict):
            raise LabError(
                f"The script {script.name} on {self._shell.where} gave an answer that is no object.",
                kind="protocol",
                todo="Report this.",
                host=self._host,
            )
        return cast("Mapping[str, Json]", told)

    def _gone(self, kind: str, why: str, todo: str) -> ScriptError:
        error = ScriptError(
            f"The job {self._name} ({self._script.name}) on {self._shell.where} will not end.",
            kind=kind,
            why=why,
            todo=todo,
            host=self._host,
        )
        error.detail = {}
        return error

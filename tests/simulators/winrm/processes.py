"""What a command of a shell runs: a PowerShell that answers one request, whose scripts are Python (or see `pwsh.py`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from workers.powershell import envelope
from workers.powershell.base import Json


class ScriptFailure(Exception):
    """What a simulated script tells of with `Stop-Script`, or what a cmdlet would have failed with."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        detail: Mapping[str, Json] | None = None,
        id: str = "",
        category: str = "NotSpecified",
        hresult: int = -2146233079,
    ) -> None:
        super().__init__(message)
        self.error: dict[str, Json] = {
            "kind": kind,
            "message": message,
            "id": id or message,
            "category": category,
            "position": "line 1: simulated",
            "hresult": hresult,
            "detail": dict(detail or {}),
        }


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where a simulated script runs."""

    host: str
    """The name that the endpoint was made with."""
    user: str
    """Who has logged in."""
    transport: str
    """How: `ntlm`, `kerberos`, `credssp`, `basic`. Only with `credssp` does the script have credentials for other hosts."""
    package: str
    """Of the script."""
    progress: Callable[[Json], None]
    """`Write-JobProgress`."""
    ended: threading.Event
    """Set when the process is to end: its command was terminated, its job cancelled, its host restarted."""


Run = Callable[[str, Mapping[str, Json], Context], Json]
"""Runs a script by its name (`read-vm`) and document, and returns its answer or raises `ScriptFailure`."""


class Output(Protocol):
    """Where a process writes to."""

    def write(self, stream: str, content: bytes) -> None:
        """Write to `stdout` or `stderr`."""


class Process(Protocol):
    """What is behind a command."""

    def run(self, stdin: bytes, output: Output, ended: threading.Event) -> int:
        """Run to the end; return the exit code."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A PowerShell whose scripts are Python."""

    run_script: Run
    context: Context = field(repr=False)

    def run(self, stdin: bytes, output: Output, ended: threading.Event) -> int:
        """Answer the request on stdin as the prelude does."""
        request = envelope.decode_request(stdin)
        answer = self.answer(request)
        output.write("stdout", envelope.encode_answer(request.number, answer))
        return 0

    def answer(self, request: envelope.Request) -> dict[str, Json]:
        """The envelope of a request."""
        try:
            data = self.run_script(request.name.rpartition("/")[2], request.document, self.context)
        except ScriptFailure as failure:
            return {"ok": False, "data": None, "error": failure.error}
        return {"ok": True, "data": data, "error": None}

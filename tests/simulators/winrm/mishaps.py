"""What an endpoint gets wrong on order: each mishap befalls the next so many commands (or requests), then it is used up."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tests.simulators.winrm.faults import Fault

PROGRESS = (
    b'#< CLIXML\r\n<Objs Version="1.1.0.1" xmlns="http://schemas.microsoft.com/powershell/2004/04">'
    b'<Obj S="progress" RefId="0"><TN RefId="0"><T>System.Management.Automation.PSCustomObject</T><T>System.Object</T></TN>'
    b'<MS><I64 N="SourceId">1</I64><PR N="Record"><AV>Preparing modules for first use.</AV><AI>0</AI><Nil /><PI>-1</PI>'
    b"<PC>-1</PC><T>Completed</T><SR>-1</SR><SD> </SD></PR></MS></Obj></Objs>"
)


@dataclass(kw_only=True)
class Mishaps:
    """Orders for an endpoint. Numbers say how many more are to be hit."""

    progress_on_stderr: int = 0
    """Commands that write progress records as CLIXML to stderr beside their answer."""
    stdout_before: list[bytes] = field(default_factory=list)
    """Bytes that commands print before their answer, one each."""
    instead: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    """stdout, stderr and exit code of commands that don't run their script at all, one each."""
    closed_pipes: int = 0
    """Commands that end before they have read their input: who sends it is told that there is no pipe."""
    cut_command: int = 0
    """Connections cut when a command is to be started, before it is."""
    cut_send: int = 0
    """Connections cut when a command has had its input and runs."""
    cut_receive: int = 0
    """Connections cut when output is asked for."""
    silent: int = 0
    """Receives that are never answered: the socket stays open."""
    timeouts: int = 0
    """Receives that end with an operation timeout at once."""
    faults: list[tuple[str, Fault]] = field(default_factory=list)
    """Faults that requests of an action (`Create`, `Command`, `Receive`, ...) get, one each."""
    http: list[tuple[str, int, bytes]] = field(default_factory=list)
    """Requests of an action that get this status and body instead of any SOAP, one each."""
    foreign_seals: int = 0
    """Messages sealed for another connection that get 401, as if credentials were wrong, instead of 400."""
    busy_logins: int = 0
    """Requests without a message, which only log in, that get 503 when the login is done."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hits(self, name: str) -> bool:
        """Whether the mishap of that name befalls who asks; counted down."""
        with self._lock:
            left = getattr(self, name)
            if left > 0:
                setattr(self, name, left - 1)
            return bool(left > 0)

    def before(self) -> bytes:
        """What a command prints before its answer."""
        with self._lock:
            return self.stdout_before.pop(0) if self.stdout_before else b""

    def replacement(self) -> tuple[bytes, bytes, int] | None:
        """What a command does instead of running its script."""
        with self._lock:
            return self.instead.pop(0) if self.instead else None

    def fault(self, action: str) -> Fault | None:
        """The fault that a request of this action gets."""
        with self._lock:
            found = next((order for order in self.faults if order[0] == action), None)
            if found is not None:
                self.faults.remove(found)
            return found[1] if found is not None else None

    def status(self, action: str) -> tuple[int, bytes] | None:
        """The HTTP status and body that a request of this action gets."""
        with self._lock:
            found = next((order for order in self.http if order[0] == action), None)
            if found is not None:
                self.http.remove(found)
            return found[1:] if found is not None else None

"""Windows remote shells and their commands, with the quotas of `winrm/config/winrs`."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field

from tests.simulators.winrm import faults
from tests.simulators.winrm.processes import Process

PIECE = 32 * 1024
"""Bytes of output that a Receive delivers at most in one piece."""


@dataclass(kw_only=True)
class Quotas:
    """What Windows allows; the defaults are those of Windows Server 2012 and later."""

    shells_per_user: int = 30
    commands_per_shell: int = 25
    operations_per_user: int = 1500
    """Commands that were started and never signalled count, which is how operations leak."""
    command_line: int = 8191
    envelope: int = 512000


@dataclass(kw_only=True)
class Command:
    """One command, from its start until it is signalled."""

    id: str
    line: str
    process: Process
    stdin: bytearray = field(default_factory=bytearray)
    ended: threading.Event = field(default_factory=threading.Event)
    exit_code: int | None = None
    _pieces: list[tuple[str, bytes]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _started: bool = False

    def send(self, content: bytes, *, end: bool) -> None:
        """Take input; with its end the process has all that it waits for."""
        self.stdin += content
        if end and not self._started:
            self._started = True
            threading.Thread(target=self._run, daemon=True).start()

    def write(self, stream: str, content: bytes) -> None:
        """Output of the process."""
        with self._changed:
            self._pieces += [(stream, content[at : at + PIECE]) for at in range(0, len(content), PIECE)]
            self._changed.notify_all()

    def receive(self, seconds: float, room: int) -> tuple[list[tuple[str, bytes]], int | None]:
        """Pieces that fit into `room` bytes, and the exit code when there is nothing more. Raises the timeout's fault."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._pieces and self.exit_code is None:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise faults.timed_out()
            taken: list[tuple[str, bytes]] = []
            while self._pieces and sum(len(content) for _, content in taken) + PIECE <= max(room, PIECE):
                taken.append(self._pieces.pop(0))
            return taken, None if self._pieces else self.exit_code

    def end(self) -> None:
        """Terminate it."""
        self.ended.set()

    def _run(self) -> None:
        try:
            code = self.process.run(bytes(self.stdin), self, self.ended)
        except Exception as error:  # shown to the client as what a process that crashes says
            self.write("stderr", f"{type(error).__name__}: {error}".encode())
            code = 1
        with self._changed:
            self.exit_code = code
            self._changed.notify_all()


@dataclass(kw_only=True)
class Shell:
    """One shell of a user."""

    id: str
    user: str
    commands: dict[str, Command] = field(default_factory=dict)


class Shells:
    """All shells of an endpoint. Safe to use from several threads."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self.counts: Counter[str] = Counter()
        """How often shells were created and deleted, commands started, signalled; `shells` is the most there were at once."""
        self._lock = threading.Lock()
        self._shells: dict[str, Shell] = {}

    def __len__(self) -> int:
        return len(self._shells)

    def running(self) -> int:
        """Commands that nobody has signalled."""
        with self._lock:
            return sum(len(shell.commands) for shell in self._shells.values())

    def create(self, user: str) -> str:
        """Open a shell. Raises the quota's fault."""
        with self._lock:
            own = sum(shell.user == user for shell in self._shells.values())
            if own >= self.quotas.shells_per_user:
                raise faults.quota(
                    faults.MAX_SHELLS,
                    f"This user is allowed a maximum number of {self.quotas.shells_per_user} concurrent shells, which has "
                    "been exceeded. Close existing shells or raise the quota for this user.",
                )
            shell = Shell(id=str(uuid.uuid4()).upper(), user=user)
            self._shells[shell.id] = shell
            self.counts["created"] += 1
            self.counts["shells"] = max(self.counts["shells"], len(self._shells))
            return shell.id

    def delete(self, shell: str, user: str) -> None:
        """Close a shell; its commands end."""
        with self._lock:
            found = self._find(shell, user)
            del self._shells[found.id]
            self.counts["deleted"] += 1
        for command in found.commands.values():
            command.end()

    def start(self, shell: str, user: str, line: str, process: Process) -> str:
        """Start a command. Raises faults of quotas, and of a line that is too long."""
        with self._lock:
            found = self._find(shell, user)
            if len(line) > self.quotas.command_line:
                raise faults.Fault(faults.COMMAND_LINE_TOO_LONG, "The filename or extension is too long.")
            if len(found.commands) >= self.quotas.commands_per_shell:
                raise faults.quota(
                    faults.MAX_COMMANDS_PER_SHELL,
                    "The maximum number of concurrent commands per shell has been exceeded.",
                )
            operations = sum(len(own.commands) for own in self._shells.values() if own.user == user)
            if operations >= self.quotas.operations_per_user:
                raise faults.quota(
                    faults.MAX_OPERATIONS,
                    f"This user is allowed a maximum number of {self.quotas.operations_per_user} concurrent operations, "
                    "which has been exceeded. Close existing operations for this user, or raise the quota for this user.",
                )
            command = Command(id=str(uuid.uuid4()).upper(), line=line, process=process)
            found.commands[command.id] = command
            self.counts["started"] += 1
            return command.id

    def command(self, shell: str, user: str, command: str) -> Command:
        """A command of a shell. Raises faults for what is not there."""
        with self._lock:
            found = self._find(shell, user)
            try:
                return found.commands[command]
            except KeyError:
                raise faults.Fault(
                    faults.INVALID_COMMAND, "The parameter is incorrect.", subcode="w:InvalidParameter"
                ) from None

    def signal(self, shell: str, user: str, command: str) -> None:
        """Terminate a command and let go of it; one that is gone already is no error."""
        with self._lock:
            found = self._find(shell, user)
            gone = found.commands.pop(command, None)
            self.counts["signalled"] += 1
        if gone is not None:
            gone.end()

    def clear(self) -> None:
        """All shells are gone at once, as when the host restarts."""
        with self._lock:
            gone, self._shells = self._shells, {}
        for shell in gone.values():
            for command in shell.commands.values():
                command.end()

    def _find(self, shell: str, user: str) -> Shell:
        found = self._shells.get(shell)
        if found is None or found.user != user:
            raise faults.shell_not_found(shell)
        return found

"""One session with one remote shell, through which requests go one after the other.

A request goes to the standard input of a fixed command (`bootstrap.ps1`), because a command line takes 8191 characters and a
script with its document has more. Nothing is kept on the machine's disk, so nothing there can be old, changed or left behind,
and a policy for script files doesn't matter. What it costs is some 15 kB a call.

The shell is opened by the first request, used for `COMMANDS` of them and then closed, since services leak; a shell that
something went wrong in is closed at once. One that nobody closes, because its worker was killed, is closed by Windows after
`IDLE_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from winrm.protocol import Protocol

from labctl.errors import LabError
from workers.guard import Deadline
from workers.powershell import envelope
from workers.powershell.envelope import Output, Request
from workers.winrm.failures import PIPE_CLOSED, Broken
from workers.winrm.session import Session

COMMANDS = 200
IDLE_SECONDS = 900

UTF8 = 65001
"""Code page of the shell's console."""

PIECE = 90 * 1024
"""Bytes of input in one message: in base64 with its envelope below the 150 kB that the oldest Windows takes."""

ANSWER_LIMIT = 64 * 1024 * 1024

CLEANING_SECONDS = 3.0
"""At most so much of a call's time is kept for ending what was started."""

T = TypeVar("T")


class Lane:
    """For one thread at a time."""

    def __init__(self, session: Session, *, where: str, host: str) -> None:
        self._session = session
        self._where = where
        self._host = host
        self._shell = ""
        self._commands = 0

    def run(self, request: Request, deadline: Deadline) -> Output:
        """Run a request to its end. Raises `Broken`, which says whether the script may have begun.

        Whatever happens, nothing of it runs on there afterwards as far as the machine can still be reached.
        """
        working = Deadline(deadline.at - min(CLEANING_SECONDS, deadline.left / 4))
        self._open(working)
        try:
            output = self._command(request, working)
        except Broken:
            self.close(deadline)
            raise
        if self._commands >= COMMANDS:
            self.close(deadline)
        return output

    def close(self, deadline: Deadline) -> None:
        """Close the shell and the session. No error when they can't be: Windows closes the shell after a while."""
        shell, self._shell = self._shell, ""
        if shell:
            with suppress(Broken):
                self._session.ask(lambda protocol: protocol.close_shell(shell, close_session=False), deadline)
        self._session.drop()

    def _open(self, deadline: Deadline) -> None:
        if self._shell:
            return
        self._shell = self._ask(
            lambda protocol: protocol.open_shell(codepage=UTF8, noprofile=True, idle_timeout=f"PT{IDLE_SECONDS}.000S"),
            deadline,
        )
        self._commands = 0

    def _command(self, request: Request, deadline: Deadline) -> Output:
        shell = self._shell
        command = self._ask(
            lambda protocol: protocol.run_command(
                shell, "powershell.exe", envelope.arguments(), console_mode_stdin=False
            ),
            deadline,
        )
        self._commands += 1
        try:
            self._send(command, request.encode(), deadline)
            output = self._receive(command, request, deadline)
        except Broken:
            self._signal(command)
            raise
        self._signal(command)
        return output

    def _send(self, command: str, content: bytes, deadline: Deadline) -> None:
        shell = self._shell
        for start in range(0, len(content), PIECE):
            piece, last = content[start : start + PIECE], start + PIECE >= len(content)
            try:
                self._session.ask(
                    lambda protocol, piece=piece, last=last: protocol.send_command_input(  # type: ignore[misc]
                        shell, command, piece, end=last
                    ),
                    deadline,
                )
            except Broken as broken:
                if broken.code in PIPE_CLOSED:
                    return  # PowerShell has ended at once; why, it has printed
                broken.begun = last
                raise

    def _receive(self, command: str, request: Request, deadline: Deadline) -> Output:
        """What the command prints, until it has ended. pywinrm's own loop knows no deadline."""
        shell = self._shell
        stdout, stderr = bytearray(), bytearray()
        try:
            while True:
                if deadline.passed:
                    raise Broken(self._too_late(request))
                told = self._session.ask(lambda protocol: protocol.get_command_output_raw(shell, command), deadline)
                if told is None:
                    continue
                stdout += told[0]
                stderr += told[1]
                if len(stdout) + len(stderr) > ANSWER_LIMIT:
                    raise Broken(self._too_much(request))
                if told[3]:
                    return Output(stdout=bytes(stdout), stderr=bytes(stderr), exit_code=told[2])
        except Broken as broken:
            broken.begun = True
            if broken.error.kind == "timeout" and deadline.passed:
                broken.error = self._too_late(request)
            raise

    def _signal(self, command: str) -> None:
        """End the command and let go of it; else it counts against the quota of its user's operations."""
        shell = self._shell
        try:
            self._session.ask(
                lambda protocol: protocol.cleanup_command(shell, command), Deadline.after(CLEANING_SECONDS / 2)
            )
        except Broken:
            self._commands = COMMANDS

    def _ask(self, message: Callable[[Protocol], str], deadline: Deadline) -> str:
        answer = self._session.ask(message, deadline)
        if answer is None:
            raise Broken(
                LabError(
                    f"WinRM on {self._where} did not start anything in time.",
                    kind="timeout",
                    why="It has ended the operation with its timeout.",
                    todo="Look at the load of that machine.",
                    host=self._host,
                )
            )
        return answer

    def _too_late(self, request: Request) -> LabError:
        return LabError(
            f"The script {request.name.rpartition('/')[2]} did not end in time on {self._where}.",
            kind="timeout",
            why="It was ended at its deadline.",
            todo="Look at the load of that machine, and whether something there waits for an answer.",
            host=self._host,
        )

    def _too_much(self, request: Request) -> LabError:
        return LabError(
            f"The script {request.name.rpartition('/')[2]} on {self._where} prints without end.",
            kind="protocol",
            why=f"It has printed more than {ANSWER_LIMIT} bytes.",
            todo="Report this.",
            host=self._host,
        )

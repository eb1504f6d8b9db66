"""What a channel into a Windows endpoint asks there: short calls, each with a deadline, their errors those of a channel."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from labctl.errors import LabError
from workers.channels.base import ChannelError
from workers.guard import Deadline, Guard
from workers.powershell.base import Job, Json, PowerShell, Script, ScriptError

CALL_SECONDS = 30.0
"""How long a short question may take: a PowerShell starts for each, which takes seconds in a busy guest."""

READY_SECONDS = 10.0
"""How long a started command may take until it listens on its port."""

STARTING_SECONDS = 20.0
"""How long the supervisor of a command may take until it has started it."""

ROUND_SECONDS = 5.0
"""How long one call waits inside the endpoint before the worker asks anew, and sees whether it shall go on."""

OUTLIVE_SECONDS = 5.0
"""How long after its deadline the supervisor ends a command that the worker should have ended."""

INLINE_LIMIT = 1024 * 1024
"""Bytes of output that come with the answer; more is read as files."""

WRITE_CHUNK, READ_CHUNK = 512 * 1024, 2 * 1024 * 1024
"""Bytes of a file in one document, which may be 1 MiB as JSON, and in one answer."""

RETRY_SECONDS = 1.0
CLOCK_SAMPLES = 3


def _script(name: str, *, writes: bool) -> Script:
    return Script(package="workers.channels", name=name, writes=writes)


BEGIN = _script("begin-command", writes=True)
SUPERVISE = _script("supervise-command", writes=True)
LOOK = _script("look-command", writes=False)
END = _script("end-commands", writes=False)  # a command is ended twice as well as once
READ_FILE = _script("read-file", writes=False)
WRITE_FILE = _script("write-file", writes=True)
READ_CLOCK = _script("read-clock", writes=False)

_KINDS = {
    "unreachable": "channel-unreachable",
    "timeout": "channel-timeout",
    "refused": "channel-refused",
    "quota": "channel-refused",
    "protocol": "channel-refused",
}
"""What errors of a `PowerShell` are to a channel."""


_NOT_STARTED = "A command could not be started"

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """How a command stands, as `look-command.ps1` says it."""

    state: str
    pid: int | None
    code: int | None
    out: int
    err: int
    stdout: bytes | None
    stderr: bytes | None


class Calls:
    """The calls into one endpoint."""

    def __init__(self, *, endpoint: str, powershell: PowerShell, guard: Guard) -> None:
        self.endpoint = endpoint
        self.powershell = powershell
        self.guard = guard

    def call(
        self, script: Script, document: Mapping[str, Json], *, timeout: float = CALL_SECONDS, what: str = ""
    ) -> Any:  # noqa: ANN401
        """The answer of a script. Raises `ChannelError` whose text begins with `what`."""
        return self._speak(
            lambda: self.powershell.call(script, document, timeout=timeout), what or "A command could not be run"
        )

    def job(self, document: Mapping[str, Json], *, name: str) -> Job:
        """Have a command supervised. Raises `ChannelError`."""
        return self._speak(
            lambda: self.powershell.job(SUPERVISE, document, name=name, timeout=CALL_SECONDS), _NOT_STARTED
        )

    def started(self, folder: str, job: Job, *, seconds: float) -> Seen:
        """How a command stands once its supervisor is at work. Raises `ChannelError` when that never comes to be."""
        seen = self.look(folder, until="start", seconds=seconds)
        if seen.state in ("waiting", "died"):
            # A supervisor that fails says why in the answer of its job.
            self._speak(lambda: job.poll(timeout=CALL_SECONDS), _NOT_STARTED)
            raise ChannelError(
                f"{_NOT_STARTED} in {self.endpoint}.",
                kind="command-failed",
                why="Its supervisor was killed." if seen.state == "died" else "Its supervisor did not begin its work.",
            )
        return seen

    def look(self, folder: str, *, until: str, seconds: float, port: int | None = None) -> Seen:
        """How a command stands, after waiting at most so many seconds inside until it has started, listens or has ended."""
        document: dict[str, Json] = {
            "folder": folder,
            "until": until,
            "port": port,
            "seconds": round(seconds, 3),
            "limit": INLINE_LIMIT,
        }
        said = self.call(LOOK, document, timeout=seconds + CALL_SECONDS)
        return Seen(
            state=str(said["state"]),
            pid=said["pid"],
            code=said["code"],
            out=said["out"],
            err=said["err"],
            stdout=_bytes(said["stdout"]),
            stderr=_bytes(said["stderr"]),
        )

    def outputs(self, folder: str, seen: Seen) -> tuple[bytes, bytes]:
        """Stdout and stderr of a command, as they came with the answer or are in its folder."""
        if seen.stdout is not None and seen.stderr is not None:
            return seen.stdout, seen.stderr
        deadline = Deadline.after(CALL_SECONDS * (2 + (seen.out + seen.err) / READ_CHUNK))
        stdout, _ = self.read(f"{folder}\\out", deadline=deadline, at_most=seen.out)
        stderr, _ = self.read(f"{folder}\\err", deadline=deadline, at_most=seen.err)
        return stdout, stderr

    def read(self, path: str, *, deadline: Deadline, at_most: int | None = None) -> tuple[bytes, str]:
        """A file, or its first bytes, in parts, with the digest of the whole file."""
        content, digest = bytearray(), ""
        while True:
            self.require_time(deadline, f"Reading {path}")
            wanted = READ_CHUNK if at_most is None else min(READ_CHUNK, at_most - len(content))
            document: dict[str, Json] = {
                "path": path,
                "offset": len(content),
                "length": wanted,
                "digest": not content and at_most is None,
            }
            what = f"The file {path} could not be read"
            said = self.call(READ_FILE, document, what=what)
            digest = digest or str(said["sha256"])
            part = base64.b64decode(said["content"])
            content += part
            if not part or len(content) >= (said["size"] if at_most is None else at_most):
                return bytes(content), digest

    def require_time(self, deadline: Deadline, doing: str) -> None:
        """Raise `AttemptCancelled`, or `ChannelError` (`channel-timeout`) past the deadline."""
        self.guard.check()
        if deadline.passed:
            raise ChannelError(f"{doing} in {self.endpoint} took too long.", kind="channel-timeout")

    def _speak(self, call: Callable[[], Answer], what: str) -> Answer:
        """Do a call; its errors are told as those of a channel."""
        try:
            return call()
        except ScriptError as error:
            raise ChannelError(
                f"{what} in {self.endpoint}.", kind="command-failed", why=error.why, todo=error.todo, host=error.host
            ) from error
        except ChannelError:
            raise
        except LabError as error:
            kind = _KINDS.get(error.kind)
            if kind is None:
                raise
            raise ChannelError(error.what, kind=kind, why=error.why, todo=error.todo, host=error.host) from error


def _bytes(encoded: str | None) -> bytes | None:
    return None if encoded is None else base64.b64decode(encoded)

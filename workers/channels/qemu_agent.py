"""Commands and files inside a guest by the QEMU guest agent.

The agent keeps at most 16 MiB of a command's output and says so only in a flag; besides, replies pass through
libvirt, whose remote protocol carries at most 4 MiB in a string. So scripts print at most `INLINE_BYTES`, and
everything larger is read and written as files in chunks.
Source: QEMU, qga/commands.c and docs/interop/qemu-ga-ref; libvirt, src/remote/remote_protocol.x (REMOTE_STRING_MAX).
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from labctl.errors import LabError
from labctl.model.result import ClockOffset
from workers.channels.base import ChannelError
from workers.channels.interruptible import CallTooSlowError, call_interruptibly
from workers.channels.posix import EndpointSilentError, PosixChannel, Spoken
from workers.guard import Deadline, Guard

INLINE_BYTES = 1 << 20
"""Output that a script may print."""

STDIN_BYTES = 1 << 18
"""Input that is sent with a command; more is put into a file first."""

CHUNK_BYTES = 1 << 20
"""Bytes read from or written to a file in one call; 1.4 MB as base64."""

FIRST_POLL, LAST_POLL = 0.01, 0.25
"""Seconds between two questions whether a command has ended: doubled from the first to the last."""

CALL_SECONDS = 30.0
"""How long one answer of the agent may take. A guest in the last phase of its migration does not answer for a while."""

AWAY_SECONDS = 5.0
"""How long the agent may be out of reach while a command runs, as it is when a guest arrives at another host."""

PING_SECONDS = 1.0
CLOCK_SAMPLES = 4


class AgentReplyError(Exception):
    """The agent answered with an error; its text is the agent's description."""


class AgentTransport(Protocol):
    """Carries one question to a guest agent and brings its reply. Called from any thread, never twice at once."""

    def command(self, json_text: str, *, timeout: float) -> str:
        """The agent's reply, a JSON object in text.

        An error of the agent's may be returned as its reply (`{"error": {"class": ..., "desc": ...}}`) or raised as
        `AgentReplyError` with the description. Raises `ChannelError`: `channel-unreachable` when there is no agent
        to be asked (not yet connected, gone), `channel-timeout` when it did not answer within `timeout` seconds.
        """


class QemuAgentChannel(PosixChannel):
    """A `Channel` into a Linux guest that runs the QEMU guest agent. The transport stays its maker's to close."""

    inline_limit = INLINE_BYTES

    def __init__(self, *, endpoint: str, agent: AgentTransport, guard: Guard) -> None:
        super().__init__(endpoint=endpoint, guard=guard)
        self._agent = agent
        self._turn = threading.Lock()

    def wait_ready(self, *, timeout: float) -> float:
        """See `Channel.wait_ready`."""
        began = time.monotonic()
        deadline = Deadline.after(timeout)
        while True:
            attempt = Deadline(min(deadline.at, time.monotonic() + PING_SECONDS))
            try:
                self._ask("guest-ping", {}, deadline=attempt, guard=self._guard)
            except ChannelError as error:
                if error.kind not in ("channel-unreachable", "channel-timeout"):
                    raise
                if deadline.passed:
                    raise ChannelError(
                        f"The guest agent in {self._endpoint} did not answer within {timeout:g} s.",
                        kind="channel-unreachable",
                        why=error.why or error.what,
                        todo="See that the guest has booted and that qemu-guest-agent is installed and runs in it.",
                    ) from error
            else:
                return time.monotonic() - began
            self._guard.sleep(min(0.05, deadline.left))

    def clock(self, *, timeout: float) -> ClockOffset:
        """See `Channel.clock`. `guest-get-time` gives nanoseconds since the epoch."""
        deadline = Deadline.after(timeout)
        samples = []
        for _ in range(CLOCK_SAMPLES):
            before, began = time.time(), time.monotonic()
            theirs = self._ask("guest-get-time", {}, deadline=deadline, guard=self._guard) / 1e9
            trip = time.monotonic() - began
            samples.append(ClockOffset(seconds=theirs - (before + trip / 2), uncertainty=trip / 2))
        return min(samples, key=lambda sample: sample.uncertainty)

    def _connect(self, *, deadline: Deadline, guard: Guard) -> None:
        """Nothing: the transport connects by itself."""

    def _disconnect(self) -> None:
        """Nothing: the transport is its maker's."""

    def _execute(
        self,
        script: str,
        arguments: Sequence[str],
        *,
        stdin: bytes,
        deadline: Deadline,
        guard: Guard,
        quiet: float = 0.0,
    ) -> Spoken:
        words = ["-c", script, "labctl", *arguments]
        if len(stdin) <= STDIN_BYTES:
            return self._shell(words, stdin=stdin, deadline=deadline, guard=guard, quiet=quiet)
        directory = self._new_job()
        try:
            path = self._stage(directory, stdin, deadline, guard)
            words = ["-c", _FROM_FILE_SCRIPT, "labctl", path, *words]
            spoken = self._shell(words, stdin=b"", deadline=deadline, guard=guard, quiet=quiet)
        except EndpointSilentError:
            raise
        except BaseException:
            self._end_jobs([directory])
            raise
        self._forget(directory)
        return spoken

    def _shell(self, words: Sequence[str], *, stdin: bytes, deadline: Deadline, guard: Guard, quiet: float) -> Spoken:
        question: dict[str, Any] = {"path": "/bin/sh", "arg": words, "capture-output": True}
        if stdin:
            question["input-data"] = base64.b64encode(stdin).decode()
        started = self._ask("guest-exec", question, deadline=deadline, guard=guard)
        guard.sleep(min(quiet, deadline.left))
        status = self._await_end(int(started["pid"]), deadline, guard)
        if status.get("out-truncated") or status.get("err-truncated"):
            raise ChannelError(
                f"The guest agent in {self._endpoint} cut the output of a script short.", kind="command-failed"
            )
        return Spoken(
            exit_code=128 + int(status["signal"]) if "signal" in status else int(status.get("exitcode", 0)),
            stdout=base64.b64decode(status.get("out-data", "")),
            stderr=base64.b64decode(status.get("err-data", "")),
        )

    def _await_end(self, pid: int, deadline: Deadline, guard: Guard) -> Mapping[str, Any]:
        pause = FIRST_POLL
        away: Deadline | None = None
        while True:
            guard.sleep(min(pause, deadline.left))
            pause = min(2 * pause, LAST_POLL)
            try:
                status = self._ask("guest-exec-status", {"pid": pid}, deadline=deadline, guard=guard)
            except ChannelError as error:
                if "Invalid parameter 'pid'" in error.why:
                    raise ChannelError(
                        f"The guest agent in {self._endpoint} has forgotten a command.",
                        kind="channel-unreachable",
                        why="The agent was restarted while the command ran, or its answer was lost on the way.",
                    ) from error
                away = away or Deadline.after(AWAY_SECONDS)
                if error.kind != "channel-unreachable" or away.passed or deadline.passed:
                    raise
                continue
            away = None
            if status["exited"]:
                return dict(status)
            if deadline.passed:
                raise ChannelError(
                    f"A command did not end in time in {self._endpoint}.", kind="channel-timeout", why="It still runs."
                )

    def _read(self, path: str, *, deadline: Deadline, guard: Guard) -> bytes:
        handle = self._ask("guest-file-open", {"path": path, "mode": "r"}, deadline=deadline, guard=guard)
        content = bytearray()
        try:
            while True:
                question = {"handle": handle, "count": CHUNK_BYTES}
                chunk = self._ask("guest-file-read", question, deadline=deadline, guard=guard)
                content += base64.b64decode(chunk["buf-b64"])
                if chunk["eof"]:
                    return bytes(content)
        finally:
            self._close_file(handle)

    def _stage(self, directory: str, content: bytes, deadline: Deadline, guard: Guard) -> str:
        """The path of a new file with this content, in a new directory that only its owner can enter."""
        path = f"{directory}/stdin"
        self._shell(["-c", _STAGE_SCRIPT, "labctl", directory], stdin=b"", deadline=deadline, guard=guard, quiet=0.0)
        handle = self._ask("guest-file-open", {"path": path, "mode": "w"}, deadline=deadline, guard=guard)
        try:
            for at in range(0, len(content), CHUNK_BYTES):
                chunk = content[at : at + CHUNK_BYTES]
                question = {"handle": handle, "buf-b64": base64.b64encode(chunk).decode()}
                written = self._ask("guest-file-write", question, deadline=deadline, guard=guard)
                if written["count"] != len(chunk):
                    raise ChannelError(
                        f"A file could not be written in {self._endpoint}.",
                        kind="command-failed",
                        why=f"The agent wrote {written['count']} of {len(chunk)} bytes to {path}.",
                        todo="See that there is room in /tmp.",
                    )
            self._ask("guest-file-flush", {"handle": handle}, deadline=deadline, guard=guard)
        finally:
            self._close_file(handle)
        return path

    def _close_file(self, handle: int) -> None:
        try:
            self._ask("guest-file-close", {"handle": handle}, deadline=Deadline.after(PING_SECONDS), guard=Guard())
        except LabError:
            return  # an agent that is gone has closed its files

    def _ask(self, command: str, arguments: Mapping[str, Any], *, deadline: Deadline, guard: Guard) -> Any:  # noqa: ANN401
        """What the agent returns to one command, a JSON value."""
        text = json.dumps({"execute": command, "arguments": dict(arguments)})
        limit = Deadline(min(deadline.at, time.monotonic() + CALL_SECONDS))

        def in_turn() -> str:
            if not self._turn.acquire(timeout=limit.left):
                raise CallTooSlowError
            try:
                return self._agent.command(text, timeout=max(limit.left, 0.1))
            finally:
                self._turn.release()

        try:
            reply = json.loads(call_interruptibly(in_turn, guard=guard, deadline=Deadline(limit.at + 0.2)))
        except AgentReplyError as error:
            raise self._error(command, arguments, str(error)) from error
        except CallTooSlowError as error:
            raise self._silent(command) from error
        except ChannelError as error:
            if error.kind == "channel-timeout":
                raise self._silent(command) from error
            raise
        if "error" in reply:
            raise self._error(command, arguments, str(reply["error"].get("desc", reply["error"])))
        return reply["return"]

    def _silent(self, command: str) -> EndpointSilentError:
        return EndpointSilentError(
            f"The guest agent in {self._endpoint} did not answer in time.",
            kind="channel-timeout",
            why=f"No reply to {command}: the guest or its agent hangs, is paused, or is very busy.",
        )

    def _error(self, command: str, arguments: Mapping[str, Any], description: str) -> ChannelError:
        if "has been disabled" in description or "has not been found" in description:
            return ChannelError(
                f"The guest agent in {self._endpoint} refuses {command}.",
                kind="channel-refused",
                why=description,
                todo="Allow guest-exec, guest-exec-status and the guest-file commands: in the guest, take them out of "
                "BLOCK_RPCS (BLACKLIST_RPC) in /etc/sysconfig/qemu-ga or of block-rpcs in qemu-ga.conf.",
            )
        place = f" ({arguments['path']})" if "path" in arguments else ""
        return ChannelError(f"{command}{place} failed in {self._endpoint}.", kind="command-failed", why=description)


_STAGE_SCRIPT = r"""
mkdir -m 700 "$1"
"""

_FROM_FILE_SCRIPT = r"""
file=$1
shift
exec <"$file" && rm -rf "${file%/*}" && exec /bin/sh "$@"
"""
"""Arguments: a file made by `_stage`, which is removed, and the arguments of a shell whose stdin it is."""

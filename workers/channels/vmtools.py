"""Commands and files inside a guest by the guest operations of VMware Tools, which vCenter carries there.

Guest operations start a program and tell its process id, nothing else: no input, no output, and an exit code that Tools
forget after five minutes. So a script is put into a directory of its own in the guest, with its arguments and its input;
a launcher there lets it write into files, and leaves its exit code and all output in a last file, which is looked for until
it is there. A look costs the guest no more than one `stat`. The directory is removed whatever happens.
Source: vSphere Web Services API, GuestFileManager and GuestProcessManager; open-vm-tools, services/plugins/vix/vixTools.c.
"""

from __future__ import annotations

import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from labctl.errors import LabError
from labctl.model.result import ClockOffset
from workers.channels.base import ChannelError
from workers.channels.interruptible import CallTooSlowError, call_interruptibly
from workers.channels.posix import CLOCK_SCRIPT, EndpointSilentError, PosixChannel, Spoken
from workers.guard import Deadline, Guard

FIRST_LOOK, LAST_LOOK = 0.02, 0.5
"""Seconds between two looks for the end of a script: doubled from the first to the last."""

LIFE_SECONDS = 5.0
"""Seconds between two questions whether the launcher still lives, without which its last file would never come."""

CALL_SECONDS = 60.0
"""How long one guest operation may take."""

AWAY_SECONDS = 60.0
"""How long guest operations may be impossible while a script runs, as they are when a VM arrives at another host."""

GRACE = 3.0
"""Seconds that a guest operation gets at least: a guest is not silent because somebody's deadline is near."""

SLACK = 0.2
"""Seconds that a guest operation may be late with its own error, which says more than ours."""

READY_LOOK = 1.0
CLOCK_SAMPLES = 3

Answer = TypeVar("Answer")


class GuestOperations(Protocol):
    """Guest operations in one VM, as one user of the guest. Called from any thread, several at once.

    All raise `ChannelError`: `channel-unreachable` when they are not possible at the moment (Tools not ready, VM on its way
    to another host, vCenter out of reach), `channel-refused` when the guest's login or a right is missing,
    `channel-timeout` at `timeout` seconds, `command-failed` when the guest can't do it (no such directory, no room).
    """

    def obstacle(self, *, timeout: float) -> str:
        """Why guest operations are not possible yet, in a sentence; empty when they are (`guestOperationsReady`)."""

    def make_directory(self, path: str, *, timeout: float) -> None:
        """Make a directory that only its owner can enter. One that is there already is an error (`command-failed`)."""

    def remove_directory(self, path: str, *, timeout: float) -> None:
        """Remove a directory with all that is in it. No error when there is none."""

    def put_file(self, path: str, content: bytes, *, timeout: float) -> None:
        """Make a file, or replace it."""

    def get_file(self, path: str, *, timeout: float) -> bytes | None:
        """The content of a file; None when there is none."""

    def start(self, program: str, arguments: str, *, timeout: float) -> int:
        """Start a program with a line of arguments, which the guest's shell or Windows takes apart; its process id."""

    def lives(self, pid: int, *, timeout: float) -> bool:
        """Whether a process that was started still runs."""


class VmToolsChannel(PosixChannel):
    """A `Channel` into a POSIX guest with VMware Tools. The guest operations stay their maker's to close."""

    inline_limit = 1 << 62
    clean_up_seconds = 20.0

    def __init__(self, *, endpoint: str, operations: GuestOperations, guard: Guard) -> None:
        super().__init__(endpoint=endpoint, guard=guard)
        self._operations = operations
        self._left: set[str] = set()
        """Directories in the guest that are not removed yet."""
        self._left_lock = threading.Lock()

    def wait_ready(self, *, timeout: float) -> float:
        """See `Channel.wait_ready`. Tools that run are not ready yet: they say so later (`guestOperationsReady`)."""
        began = time.monotonic()
        deadline = Deadline.after(timeout)
        while True:
            why = self._why_not_ready(deadline)
            if not why:
                return time.monotonic() - began
            if deadline.passed:
                raise ChannelError(
                    f"VMware Tools in {self._endpoint} were not ready within {timeout:g} s.",
                    kind="channel-unreachable",
                    why=why,
                    todo="See that the guest has booted and that VMware Tools (open-vm-tools) are installed and run in it.",
                )
            self._guard.sleep(min(READY_LOOK, deadline.left))

    def clock(self, *, timeout: float) -> ClockOffset:
        """See `Channel.clock`. A sample is a script: its time was between the call that started it and its end seen."""
        deadline = Deadline.after(timeout)
        samples = [self._clock_sample(deadline) for _ in range(CLOCK_SAMPLES)]
        return min(samples, key=lambda sample: sample.uncertainty)

    def _why_not_ready(self, deadline: Deadline) -> str:
        try:
            return self._call(lambda timeout: self._operations.obstacle(timeout=timeout), deadline, self._guard)
        except ChannelError as error:
            if error.kind not in ("channel-unreachable", "channel-timeout"):
                raise
            return f"{error.what} {error.why}".strip()

    def _clock_sample(self, deadline: Deadline) -> ClockOffset:
        seen = self._launch(CLOCK_SCRIPT, [], stdin=b"\n", deadline=deadline, guard=self._guard, quiet=0.0)
        told = seen.spoken.stdout
        if not re.fullmatch(rb"\d+\.\d+\n", told):
            raise ChannelError(
                f"{self._endpoint} does not tell the time.", kind="command-failed", why=f"It said {told!r}."
            )
        half = seen.trip / 2
        return ClockOffset(seconds=float(told) - (seen.called + half), uncertainty=half)

    def _connect(self, *, deadline: Deadline, guard: Guard) -> None:
        """Nothing: guest operations have no connection of their own."""

    def _disconnect(self) -> None:
        """Remove what could not be removed when it was due."""
        with self._left_lock:
            left = sorted(self._left)
        deadline = Deadline.after(self.clean_up_seconds)
        for directory in left:
            self._remove(directory, deadline)

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
        return self._launch(script, arguments, stdin=stdin, deadline=deadline, guard=guard, quiet=quiet).spoken

    def _read(self, path: str, *, deadline: Deadline, guard: Guard) -> bytes:
        """See `PosixChannel._read`. By `cat`, because a file's transfer takes files of the kernel for empty."""
        spoken = self._execute(READ_SCRIPT, [path], stdin=b"", deadline=deadline, guard=guard)
        if spoken.exit_code != 0:
            raise ChannelError(
                f"The file {path} could not be read in {self._endpoint}.",
                kind="command-failed",
                why=spoken.stderr.decode(errors="replace").strip()[-400:],
            )
        return spoken.stdout

    def _launch(
        self, script: str, arguments: Sequence[str], *, stdin: bytes, deadline: Deadline, guard: Guard, quiet: float
    ) -> _Seen:
        """Run a script in a directory of its own, which is removed in the end, if not now then when the channel is closed."""
        directory = self._new_directory(deadline, guard)
        silent = False
        try:
            self._fill(directory, [script, "labctl", *arguments], stdin, deadline, guard)
            called, began = time.time(), time.monotonic()
            pid = self._start(directory, deadline, guard)
            guard.sleep(min(quiet, deadline.left))
            content = self._await_end(directory, pid, deadline, guard)
            return _Seen(spoken=self._spoken(content), called=called, trip=time.monotonic() - began)
        except EndpointSilentError:
            silent = True
            raise
        finally:
            if not silent:
                self._remove(directory, Deadline.after(self.clean_up_seconds))

    def _new_directory(self, deadline: Deadline, guard: Guard) -> str:
        """A new directory in the guest. Each try has a name of its own, because one whose answer was lost may be there."""

        def make(timeout: float) -> str:
            directory = f"/tmp/labctl-tools-{secrets.token_hex(8)}"  # noqa: S108 - mkdir refuses whatever is there
            with self._left_lock:
                self._left.add(directory)
            self._operations.make_directory(directory, timeout=timeout)
            return directory

        return self._patiently(make, deadline, guard)

    def _fill(self, directory: str, words: Sequence[str], stdin: bytes, deadline: Deadline, guard: Guard) -> None:
        """Put the input and the launcher there: the one place where Tools make us write a command line."""
        launcher = f"set -- {shlex.join(words)}\n{LAUNCHER}".encode(errors="surrogateescape")
        for name, content in (("in", stdin), ("go", launcher)):
            if content:
                path = f"{directory}/{name}"
                self._patiently(partial(self._put, path, content), deadline, guard)

    def _put(self, path: str, content: bytes, timeout: float) -> None:
        self._operations.put_file(path, content, timeout=timeout)

    def _start(self, directory: str, deadline: Deadline, guard: Guard) -> int:
        """Start the launcher. It does nothing when it was started before, so a lost answer does no harm."""

        def start(timeout: float) -> int:
            return self._operations.start("/bin/sh", f"{directory}/go", timeout=timeout)

        return self._patiently(start, deadline, guard)

    def _await_end(self, directory: str, pid: int, deadline: Deadline, guard: Guard) -> bytes:
        """What the launcher left in its last file."""

        def look(timeout: float) -> bytes | None:
            return self._operations.get_file(f"{directory}/done", timeout=timeout)

        def ask(timeout: float) -> bool:
            return self._operations.lives(pid, timeout=timeout)

        pause = FIRST_LOOK
        lives = True
        question = Deadline.after(LIFE_SECONDS)
        while True:
            content = self._patiently(look, deadline, guard)
            if content is not None:
                return content
            if not lives:
                raise ChannelError(
                    f"A script has vanished from {self._endpoint}.",
                    kind="channel-unreachable",
                    why="Its launcher does not run any more and left no result: the guest was restarted, or it was killed.",
                )
            if deadline.passed:
                raise ChannelError(
                    f"A command did not end in time in {self._endpoint}.", kind="channel-timeout", why="It still runs."
                )
            if question.passed:
                lives = self._patiently(ask, deadline, guard)
                question = Deadline.after(LIFE_SECONDS)
                continue
            guard.sleep(min(pause, deadline.left))
            pause = min(2 * pause, LAST_LOOK)

    def _spoken(self, content: bytes) -> Spoken:
        """What the launcher's last file says. It may be read only once whole: the launcher renames it into place."""
        header = _HEADER.match(content)
        sizes = [int(size) for size in header.groups()[1:]] if header is not None else []
        if header is None or header.end() + sum(sizes) != len(content):
            raise ChannelError(
                f"Output was lost on its way from {self._endpoint}.",
                kind="command-failed",
                why=f"A script left a result of {len(content)} bytes that begins with {content[:40]!r}.",
                todo="See that there is room in /tmp.",
            )
        middle = header.end() + sizes[0]
        return Spoken(exit_code=int(header[1]), stdout=content[header.end() : middle], stderr=content[middle:])

    def _remove(self, directory: str, deadline: Deadline) -> None:
        """Remove a launcher's directory, cancelled or not. What fails is tried again when the channel is closed."""

        def remove(timeout: float) -> None:
            self._operations.remove_directory(directory, timeout=timeout)

        with suppress(LabError):
            self._call(remove, deadline, Guard())
            with self._left_lock:
                self._left.discard(directory)

    def _patiently(self, call: Callable[[float], Answer], deadline: Deadline, guard: Guard) -> Answer:
        """The result of a guest operation, tried again for a while when it is not possible at the moment."""
        away: Deadline | None = None
        while True:
            try:
                return self._call(call, deadline, guard)
            except ChannelError as error:
                away = away or Deadline.after(AWAY_SECONDS)
                if error.kind != "channel-unreachable" or away.passed or deadline.passed:
                    raise
            guard.sleep(min(LAST_LOOK, deadline.left))

    def _call(self, call: Callable[[float], Answer], deadline: Deadline, guard: Guard) -> Answer:
        """The result of one guest operation, which is given up soon after the deadline and when the guard is stopped."""
        patience = min(max(deadline.left, GRACE), CALL_SECONDS)
        limit = Deadline.after(patience + SLACK)
        try:
            return call_interruptibly(lambda: call(patience), guard=guard, deadline=limit)
        except CallTooSlowError as error:
            raise self._silent() from error
        except ChannelError as error:
            if error.kind == "channel-timeout":
                raise self._silent() from error
            raise

    def _silent(self) -> EndpointSilentError:
        return EndpointSilentError(
            f"VMware Tools in {self._endpoint} did not answer in time.",
            kind="channel-timeout",
            why="The guest hangs, is paused or very busy, or vCenter does not answer.",
        )


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What a script said, when its start was called (epoch seconds), and how long it took from then until it was seen."""

    spoken: Spoken
    called: float
    trip: float


_HEADER = re.compile(rb"labctl (\d+) (\d+) (\d+)\n")
"""Exit code, bytes of stdout, bytes of stderr."""

LAUNCHER = r"""
cd "${0%/*}" && mkdir started || exit
exec </dev/null
[ ! -e in ] || exec <in
/bin/sh -c "$@" >out 2>err
code=$?
exec 2>/dev/null
set -- $(wc -c <out) $(wc -c <err)
{ echo "labctl $code $1 $2" && cat out err; } >new && mv new done
"""
"""The end of a launcher; its first line sets the arguments of the shell. When its directory is gone, so is the result."""

READ_SCRIPT = r"""
exec cat "$1"
"""
"""Argument: a path."""

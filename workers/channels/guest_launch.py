"""Programs launched in a guest by the guest operations of VMware Tools, which vCenter carries there.

Guest operations start a program and tell its process id, nothing else: no input, no output, and an exit code that Tools
forget after five minutes. So a program gets its input as files in a directory of its own in the guest, leaves its output as
files there, and last of all one that says that it is done, which is looked for until it is there. A look costs the guest no
more than one `stat`. The directory is removed whatever happens.
Source: vSphere Web Services API, GuestFileManager and GuestProcessManager; open-vm-tools, services/plugins/vix/vixTools.c.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from labctl.errors import LabError
from workers.channels.base import ChannelError
from workers.channels.interruptible import CallTooSlowError, call_interruptibly
from workers.channels.posix import EndpointSilentError
from workers.guard import Deadline, Guard

FIRST_LOOK, LAST_LOOK = 0.02, 0.5
"""Seconds between two looks for the end of a program: doubled from the first to the last."""

LIFE_SECONDS = 5.0
"""Seconds between two questions whether the program still lives, without which its last file would never come."""

CALL_SECONDS = 60.0
"""How long one guest operation may take."""

AWAY_SECONDS = 60.0
"""How long guest operations may be impossible while a program runs, as they are when a VM arrives at another host."""

GRACE = 3.0
"""Seconds that a guest operation gets at least: a guest is not silent because somebody's deadline is near."""

SLACK = 0.2
"""Seconds that a guest operation may be late with its own error, which says more than ours."""

CLEAN_UP_SECONDS = 20.0
"""How long removing a directory may take: an operation or two, whatever the guest is doing."""

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

    def start(self, program: str, arguments: str, *, directory: str, timeout: float) -> int:
        """Start a program in a directory, with a line of arguments that the guest's shell or Windows takes apart; its
        process id."""

    def lives(self, pid: int, *, timeout: float) -> bool:
        """Whether a process that was started still runs."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A program to be launched.

    A start whose answer was lost is made again, so it must begin by renaming a file of its directory, and end at once when
    that is not there: making one would not do, because one that comes late could make it anew while all is removed. In the
    end it makes the file `done`, whole (by renaming it).
    """

    parent: str
    """Where its directory is made, with the separator: `/tmp/`."""
    separator: str
    program: str
    arguments: str
    files: Mapping[str, bytes]
    """What is put into its directory, by name; the last is put last."""
    fetch: tuple[str, ...] = ()
    """What is fetched from its directory beside `done`."""


@dataclass(frozen=True, kw_only=True)
class Landing:
    """What a program left."""

    done: bytes
    files: Mapping[str, bytes]
    called: float
    """When its start was called, epoch seconds."""
    trip: float
    """Seconds from then until its end was seen."""


@dataclass
class Launcher:
    """Launches programs in one guest. Safe to use from several threads."""

    endpoint: str
    operations: GuestOperations
    _left: set[str] = field(default_factory=set)
    """Directories in the guest that are not removed yet."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def launch(self, launch: Launch, *, deadline: Deadline, guard: Guard, quiet: float = 0.0) -> Landing:
        """Run a program to its end and fetch what it left. Nothing is asked of the guest for `quiet` seconds after its start.

        Raises `ChannelError`: `channel-timeout` at the deadline, and then the program still runs, `EndpointSilentError` when
        the guest doesn't answer at all; `AttemptCancelled`. What can't be removed now is removed by `clear`.
        """
        directory = self._new_directory(launch.parent, deadline, guard)
        silent = False

        def path(name: str) -> str:
            return f"{directory}{launch.separator}{name}"

        try:
            for name, content in launch.files.items():
                self._patiently(partial(self._put, path(name), content), deadline, guard)
            called, began = time.time(), time.monotonic()
            pid = self._patiently(partial(self._start, launch, directory), deadline, guard)
            guard.sleep(min(quiet, deadline.left))
            done = self._await(path("done"), pid, deadline, guard)
            trip = time.monotonic() - began
            files = {name: self._fetch(path(name), deadline, guard) for name in launch.fetch}
            return Landing(done=done, files=files, called=called, trip=trip)
        except EndpointSilentError:
            silent = True
            raise
        finally:
            if not silent:
                self._remove(directory, Deadline.after(CLEAN_UP_SECONDS))

    def clear(self) -> None:
        """Remove what could not be removed when it was due. Never raises for a dead guest."""
        with self._lock:
            left = sorted(self._left)
        deadline = Deadline.after(CLEAN_UP_SECONDS)
        for directory in left:
            if not self._remove(directory, deadline):
                return

    def call(self, call: Callable[[float], Answer], deadline: Deadline, guard: Guard) -> Answer:
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

    def _new_directory(self, parent: str, deadline: Deadline, guard: Guard) -> str:
        """A new directory in the guest. Each try has a name of its own, because one whose answer was lost may be there."""

        def make(timeout: float) -> str:
            directory = f"{parent}labctl-tools-{secrets.token_hex(8)}"
            with self._lock:
                self._left.add(directory)
            try:
                self.operations.make_directory(directory, timeout=timeout)
            except ChannelError as error:
                if error.kind == "channel-refused":
                    self._forget(directory)  # a login that was refused is not tried again to clean up
                raise
            return directory

        return self._patiently(make, deadline, guard)

    def _put(self, path: str, content: bytes, timeout: float) -> None:
        self.operations.put_file(path, content, timeout=timeout)

    def _start(self, launch: Launch, directory: str, timeout: float) -> int:
        return self.operations.start(launch.program, launch.arguments, directory=directory, timeout=timeout)

    def _get(self, path: str, timeout: float) -> bytes | None:
        return self.operations.get_file(path, timeout=timeout)

    def _fetch(self, path: str, deadline: Deadline, guard: Guard) -> bytes:
        return self._patiently(partial(self._get, path), deadline, guard) or b""

    def _await(self, path: str, pid: int, deadline: Deadline, guard: Guard) -> bytes:
        """The content of a program's last file, once it is there."""

        def ask(timeout: float) -> bool:
            return self.operations.lives(pid, timeout=timeout)

        pause = FIRST_LOOK
        lives = True
        question = Deadline.after(LIFE_SECONDS)
        while True:
            content = self._patiently(partial(self._get, path), deadline, guard)
            if content is not None:
                return content
            if not lives:
                raise ChannelError(
                    f"A program has vanished from {self.endpoint}.",
                    kind="channel-unreachable",
                    why="It does not run any more and left no result: the guest was restarted, or somebody ended it.",
                )
            if deadline.passed:
                raise ChannelError(
                    f"A command did not end in time in {self.endpoint}.", kind="channel-timeout", why="It still runs."
                )
            if question.passed:
                lives = self._patiently(ask, deadline, guard)
                question = Deadline.after(LIFE_SECONDS)
                continue
            guard.sleep(min(pause, deadline.left))
            pause = min(2 * pause, LAST_LOOK)

    def _remove(self, directory: str, deadline: Deadline) -> bool:
        """Remove a directory, cancelled or not; whether that worked."""

        def remove(timeout: float) -> None:
            self.operations.remove_directory(directory, timeout=timeout)

        with suppress(LabError):
            self.call(remove, deadline, Guard())
            self._forget(directory)
            return True
        return False

    def _forget(self, directory: str) -> None:
        with self._lock:
            self._left.discard(directory)

    def _patiently(self, call: Callable[[float], Answer], deadline: Deadline, guard: Guard) -> Answer:
        """The result of a guest operation, tried again for a while when it is not possible at the moment."""
        away: Deadline | None = None
        while True:
            try:
                return self.call(call, deadline, guard)
            except ChannelError as error:
                away = away or Deadline.after(AWAY_SECONDS)
                if error.kind != "channel-unreachable" or away.passed or deadline.passed:
                    raise
            guard.sleep(min(LAST_LOOK, deadline.left))

    def _silent(self) -> EndpointSilentError:
        return EndpointSilentError(
            f"VMware Tools in {self.endpoint} did not answer in time.",
            kind="channel-timeout",
            why="The guest hangs, is paused or very busy, or vCenter does not answer.",
        )

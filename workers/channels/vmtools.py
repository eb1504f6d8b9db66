"""Commands and files inside a POSIX guest by VMware Tools: scripts that are launched there (`guest_launch.py`)."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence

from labctl.model.result import ClockOffset
from workers.channels.base import ChannelError
from workers.channels.guest_launch import CLEAN_UP_SECONDS, GuestOperations, Landing, Launch, Launcher
from workers.channels.posix import CLOCK_SCRIPT, PosixChannel, Spoken
from workers.guard import Deadline, Guard

READY_LOOK = 1.0
"""Seconds between two looks whether guest operations are ready."""

CLOCK_SAMPLES = 3


class VmToolsChannel(PosixChannel):
    """A `Channel` into a POSIX guest with VMware Tools. The guest operations stay their maker's to close."""

    inline_limit = 1 << 62
    clean_up_seconds = CLEAN_UP_SECONDS

    def __init__(self, *, endpoint: str, operations: GuestOperations, guard: Guard) -> None:
        super().__init__(endpoint=endpoint, guard=guard)
        self._launcher = Launcher(endpoint, operations)

    def wait_ready(self, *, timeout: float) -> float:
        """See `Channel.wait_ready`. Tools that run are not ready yet: they say so later (`guestOperationsReady`).

        A vCenter that doesn't answer is waited for.
        """
        began = time.monotonic()
        deadline = Deadline.after(timeout)
        while True:
            why = obstacle(self._launcher, deadline, self._guard)
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

    def _clock_sample(self, deadline: Deadline) -> ClockOffset:
        landing = self._launch(CLOCK_SCRIPT, [], stdin=b"\n", deadline=deadline, guard=self._guard, quiet=0.0)
        told = self._spoken(landing).stdout
        if not re.fullmatch(rb"\d+\.\d+\n", told):
            raise ChannelError(
                f"{self._endpoint} does not tell the time.", kind="command-failed", why=f"It said {told!r}."
            )
        half = landing.trip / 2
        return ClockOffset(seconds=float(told) - (landing.called + half), uncertainty=half)

    def _connect(self, *, deadline: Deadline, guard: Guard) -> None:
        """Nothing: guest operations have no connection of their own."""

    def _disconnect(self) -> None:
        self._launcher.clear()

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
        landing = self._launch(script, arguments, stdin=stdin, deadline=deadline, guard=guard, quiet=quiet)
        return self._spoken(landing)

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
    ) -> Landing:
        """Run a script by a launcher, the one place where Tools make us write a command line."""
        words = shlex.join([script, "labctl", *arguments])
        text = f"set -- {words}\n{LAUNCHER}".encode(errors="surrogateescape")
        launch = Launch(
            parent="/tmp/",  # noqa: S108 - a directory is made there that only its owner can enter
            separator="/",
            program="/bin/sh",
            arguments="go",
            files={"in": stdin, "go": text} if stdin else {"go": text},
        )
        return self._launcher.launch(launch, deadline=deadline, guard=guard, quiet=quiet)

    def _spoken(self, landing: Landing) -> Spoken:
        """What the launcher's last file says. It is there only once it is whole, because it was renamed."""
        content = landing.done
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


def obstacle(launcher: Launcher, deadline: Deadline, guard: Guard) -> str:
    """Why guest operations are not possible now, in a sentence; empty when they are. Raises `ChannelError` when the guest
    will never let them."""
    try:
        return launcher.call(lambda timeout: launcher.operations.obstacle(timeout=timeout), deadline, guard)
    except ChannelError as error:
        if error.kind not in ("channel-unreachable", "channel-timeout"):
            raise
        return f"{error.what} {error.why}".strip()


_HEADER = re.compile(rb"labctl (\d+) (\d+) (\d+)\n")
"""Exit code, bytes of stdout, bytes of stderr."""

LAUNCHER = r"""
mv go gone || exit
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

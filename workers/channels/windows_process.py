"""A command that runs in a Windows endpoint under its supervisor, and outlives the call that started it."""

from __future__ import annotations

import threading
import time

from workers.channels.base import ChannelError, CommandResult
from workers.channels.windows_calls import END, ROUND_SECONDS, STARTING_SECONDS, Calls, Seen
from workers.guard import Deadline
from workers.powershell.base import Job


class WindowsProcess:
    """A `Process` in a Windows endpoint. Its result is fetched once and kept."""

    def __init__(self, calls: Calls, folder: str, job: Job, argv: tuple[str, ...], began: float) -> None:
        self.folder = folder
        self.job = job
        self.pid = 0
        """Process id inside the endpoint, once it is known."""
        self._calls = calls
        self._argv = argv
        self._began = began
        self._result: CommandResult | None = None
        self._lock = threading.RLock()

    def finished(self) -> bool:
        """See `Process.finished`."""
        with self._lock:
            return self._collected("end", 0.0) is not None

    def wait(self, *, timeout: float, quiet: float = 0.0) -> CommandResult:
        """See `Process.wait`."""
        deadline = Deadline.after(timeout)
        if self._result is None:
            self._calls.guard.sleep(min(quiet, timeout))
        while True:
            self._calls.guard.check()
            with self._lock:
                result = self._collected("end", min(deadline.left, ROUND_SECONDS))
            if result is not None:
                return result
            if deadline.passed:
                raise ChannelError(
                    f"{self._argv[0]} did not end within {timeout:g} s in {self._calls.endpoint}.",
                    kind="channel-timeout",
                    why="It still runs.",
                )

    def output(self) -> tuple[bytes, bytes]:
        """See `Process.output`."""
        with self._lock:
            if self._result is not None:
                return self._result.stdout, self._result.stderr
            seen = self._calls.look(self.folder, until="start", seconds=0.0)
            self._require_there(seen)
            return self._calls.outputs(self.folder, seen)

    def kill(self) -> None:
        """See `Process.kill`. It and all its children are ended at once. What it had printed stays available."""
        with self._lock:
            if self._result is None:
                self._calls.call(END, {"folders": [self.folder], "remove": False})
                self._collected("end", ROUND_SECONDS)

    def _collected(self, until: str, seconds: float) -> CommandResult | None:
        """The result, waited for inside the endpoint; None when it still runs."""
        if self._result is not None:
            return self._result
        seen = self._calls.look(self.folder, until=until, seconds=seconds)
        self._require_there(seen)
        late = time.monotonic() - self._began > STARTING_SECONDS
        if seen.state == "died" or (seen.state == "waiting" and late):
            seen = self._calls.started(self.folder, self.job, seconds=0.0)
        if seen.code is None:
            return None
        stdout, stderr = self._calls.outputs(self.folder, seen)
        if (len(stdout), len(stderr)) != (seen.out, seen.err):
            raise ChannelError(
                f"Output was lost on its way from {self._calls.endpoint}.",
                kind="command-failed",
                why=f"{seen.out} and {seen.err} bytes were printed, {len(stdout)} and {len(stderr)} arrived.",
            )
        self._result = CommandResult(
            argv=self._argv,
            exit_code=seen.code,
            stdout=stdout,
            stderr=stderr,
            seconds=time.monotonic() - self._began,
        )
        return self._result

    def _require_there(self, seen: Seen) -> None:
        if seen.state == "gone":
            raise ChannelError(
                f"The result of {self._argv[0]} is gone from {self._calls.endpoint}.",
                kind="command-failed",
                why=f"{self.folder} is not there: somebody has removed it, or the endpoint is another one by now.",
            )

"""PowerShell in a Windows guest by VMware Tools: a request in a file, PowerShell launched on it, its answer from a file.

What stands on the command line is always the same; the request is data in a file that only the user of the guest can read.
Windows joins lines of arguments to one, so `cmd.exe` is what redirects, waits, and says in the end that it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from labctl.errors import LabError
from workers.channels.base import ChannelError
from workers.channels.guest_launch import GuestOperations, Landing, Launch, Launcher
from workers.channels.vmtools import obstacle
from workers.guard import Deadline, Guard
from workers.powershell import envelope, jobs
from workers.powershell.base import Job, Json, Script
from workers.powershell.envelope import Output

PARENT = "C:\\Windows\\Temp\\"
"""Where directories of launches are made: there in every Windows, and closed to other users of the guest but its
administrators once a directory is made in it."""

SHELL = "C:\\Windows\\System32\\cmd.exe"

KINDS = {
    "channel-unreachable": "unreachable",
    "channel-refused": "refused",
    "channel-timeout": "timeout",
    "command-failed": "protocol",
}
"""The kinds of error of a `PowerShell`, by those of a channel."""


def arguments() -> str:
    """The line of arguments for `cmd.exe`: answer the request in `in`, once, and leave `out`, `err` and the exit code.

    `/v:on` has `!errorlevel!` read when PowerShell has ended, not when the line is; `/d` keeps the registry's commands out.
    """
    powershell = " ".join(("powershell.exe", *envelope.arguments()))
    return f'/d /v:on /c "ren in taken && ({powershell} <taken >out 2>err & echo !errorlevel!>new & move /y new done)"'


class ToolsPowerShell:
    """The `PowerShell` of a Windows guest with VMware Tools. Safe to use from several threads."""

    def __init__(self, *, where: str, operations: GuestOperations, guard: Guard, host: str = "") -> None:
        """`where` says whose inside this is, for messages; `host` is the lab's host that errors are about."""
        self._where = where
        self._guard = guard
        self._host = host
        self._launcher = Launcher(where, operations)

    @property
    def where(self) -> str:
        """Whose inside this is, for messages."""
        return self._where

    def call(self, script: Script, document: Mapping[str, Json], *, timeout: float) -> Json:
        """Run a script that ends soon and return its answer. See `workers.powershell.base.PowerShell`.

        A script that is not done at its deadline goes on: guest operations know no children of what they have started.
        """
        request = envelope.request_for(script, document)
        launch = Launch(
            parent=PARENT,
            separator="\\",
            program=SHELL,
            arguments=arguments(),
            files={"in": request.encode()},
            fetch=("out", "err"),
        )
        try:
            landing = self._launcher.launch(launch, deadline=Deadline.after(timeout), guard=self._guard)
        except ChannelError as error:
            raise self._told(script, error) from error
        return envelope.read_answer(request, self._output(landing), where=self._where, host=self._host)

    def job(self, script: Script, document: Mapping[str, Json], *, name: str, timeout: float) -> Job:
        """Start a script that takes long, or find it. See `workers.powershell.base.PowerShell`."""
        return jobs.start(self, script, document, name=name, timeout=timeout, host=self._host)

    def close(self) -> None:
        """Remove what could not be removed when it was due."""
        self._launcher.clear()

    def _output(self, landing: Landing) -> Output:
        code = landing.done.decode("ascii", errors="replace").strip()
        return Output(
            stdout=landing.files["out"],
            stderr=landing.files["err"],
            exit_code=int(code) if code.lstrip("-").isdigit() else -1,
        )

    def _told(self, script: Script, error: ChannelError) -> LabError:
        """The error of a script that did not end. Of guest operations that are not possible Tools themselves say more."""
        why = f"{error.what} {error.why}".strip()
        if error.kind == "channel-unreachable":
            with suppress(ChannelError):
                why = obstacle(self._launcher, Deadline.after(0.0), self._guard) or why
        return LabError(
            f"The script {script.name} did not run to its end on {self._where}.",
            kind=KINDS[error.kind],
            why=why,
            todo=error.todo,
            host=self._host,
        )

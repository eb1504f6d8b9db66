"""PowerShell inside a VM of Hyper-V by PowerShell Direct: through the host, over VMBus, without a network in between.

Needs Windows 10 or Windows Server 2016 on both sides, and a user of the guest. Its password goes to the host in the document
of a script, encrypted on the way as all that goes there, and to no file or command line.
Source: "Manage Windows virtual machines with PowerShell Direct", learn.microsoft.com.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from labctl.errors import LabError
from labctl.model.lab import Image, Login
from labctl.secrets import resolve
from workers.channels.base import ChannelError
from workers.channels.windows import WindowsChannel
from workers.guard import Guard
from workers.powershell import envelope, jobs
from workers.powershell.base import Job, Json, PowerShell, Script, ScriptError
from workers.powershell.envelope import Output

CALL = Script(package="workers.channels", name="direct-call", writes=True)
LOOK = Script(package="workers.channels", name="direct-call", writes=False)
"""The same, for inner scripts that may be repeated when their answer was lost."""

_KINDS = {
    "no-vm": "unreachable",
    "not-running": "unreachable",
    "no-session": "unreachable",
    "bad-login": "refused",
}
"""What errors of `direct-call.ps1` are to those who call into the guest."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a VM runs now."""

    host: str
    powershell: PowerShell
    """Of that host."""
    vm_id: str
    """VMId there."""


class PowerShellDirect:
    """The `PowerShell` of a guest. Safe to use from several threads. The host's is somebody else's, and is not closed."""

    def __init__(self, *, where: str, login: Login, place: Callable[[], Place]) -> None:
        """`place` is asked before each call, because a VM may be migrated in between."""
        self._where = where
        self._login = login
        self._place = place
        self._refused: LabError | None = None

    @property
    def where(self) -> str:
        """Whose inside this is, for messages."""
        return self._where

    def call(self, script: Script, document: Mapping[str, Json], *, timeout: float) -> Json:
        """Run a script inside. See `workers.powershell.base.PowerShell`. A login that was refused once is not tried again:
        that might lock the user out."""
        if self._refused is not None:
            raise self._refused
        place, request = self._place(), envelope.request_for(script, document)
        outer: dict[str, Json] = {
            "vm": place.vm_id,
            "user": self._login.user,
            "password": resolve(self._login.password).text.rstrip("\r\n"),
            "arguments": list(envelope.arguments()),
            "request": list(request.encode().decode("ascii").splitlines()),
        }
        try:
            said = cast(
                "dict[str, Any]", place.powershell.call(CALL if script.writes else LOOK, outer, timeout=timeout)
            )
        except ScriptError as error:
            raise self._told(place, error) from error
        output = Output(stdout=str(said["stdout"]).encode(), stderr=b"", exit_code=int(said["exit"]))
        return envelope.read_answer(request, output, where=self._where, host=place.host)

    def job(self, script: Script, document: Mapping[str, Json], *, name: str, timeout: float) -> Job:
        """Start a script inside that takes long, or find it. See `workers.powershell.base.PowerShell`."""
        return jobs.start(self, script, document, name=name, timeout=timeout)

    def close(self) -> None:
        """Nothing is left open: each call has a session of its own."""

    def _told(self, place: Place, error: ScriptError) -> LabError:
        """An error of the way into the guest, which is none of the script that was to run there."""
        kind = _KINDS.get(error.kind, "protocol")
        told = LabError(
            f"{self._where} can't be entered by PowerShell Direct through host {place.host}.",
            kind=kind,
            why=error.why,
            todo=f"Check the login {self._login.user} of the image in the lab file."
            if kind == "refused"
            else "See that the guest is Windows 10, Windows Server 2016 or later, and has started.",
            host=place.host,
        )
        if kind == "refused":
            self._refused = told
        return told


def powershell_direct_channel(
    *, endpoint: str, image: Image, place: Callable[[], Place], guard: Guard
) -> WindowsChannel:
    """The channel into a Windows guest through its host. Raises `ChannelError` (`channel-refused`) when its image has no
    login in the lab file."""
    if image.login is None:
        raise ChannelError(
            f"{endpoint} can't be entered by PowerShell Direct.",
            kind="channel-refused",
            why=f"The lab file gives no `login` for the image {image.name}.",
            todo=f"Add `login` to images.{image.name} in the lab file.",
        )
    powershell = PowerShellDirect(where=endpoint, login=image.login, place=place)
    return WindowsChannel(endpoint=endpoint, powershell=powershell, guard=guard)

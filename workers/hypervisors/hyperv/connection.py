"""The hosts of a lab as places where PowerShell runs. Connections are made in the process that uses them.

Which operation runs is the name of a file in `scripts/`; what it works on is one JSON document. See `workers.powershell`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import chain, repeat

from labctl.errors import AttemptCancelled, LabError
from labctl.model.lab import Host
from workers.guard import Deadline, Guard
from workers.hypervisors.hyperv.answers import Answer
from workers.powershell.base import Job, Json, PowerShell, Script, ScriptError

PACKAGE = "workers.hypervisors.hyperv"

CALL_SECONDS = 60.0
"""Deadline of an ordinary call: starting PowerShell and loading the Hyper-V module alone may take ten seconds."""

READING = frozenset(
    {
        "await-move",
        "compare-vm",
        "guest-addresses",
        "host-facts",
        "host-load",
        "host-lacks",
        "list-vms",
        "migration-settings",
        "read-vm",
        "vm-events",
    }
)
"""Scripts that change nothing, so that one whose answer was lost may be repeated."""

_PAUSES = (0.05, 0.2, 1.0, 2.0)
"""Seconds between looks at a job, each of which starts a PowerShell on the host; the last one is repeated."""

Opener = Callable[[Host], PowerShell]
"""Makes the PowerShell of a host, without connecting yet."""


def script(name: str) -> Script:
    """One of the scripts of this package."""
    return Script(package=PACKAGE, name=name, writes=name not in READING)


def open_winrm(host: Host) -> PowerShell:
    """PowerShell on a host by WinRM. Raises `LabError` (`refused`) when the lab file doesn't say how."""
    if host.winrm is None:
        raise LabError(
            f"Host {host.name} can't be reached.",
            kind="host-unreachable",
            why="The lab file gives no `winrm` for it.",
            todo=f"Add `winrm` to hosts.{host.name} in the lab file.",
            host=host.name,
        )
    from workers.winrm import WinrmPowerShell  # loads the library, which only workers of Hyper-V labs need

    return WinrmPowerShell(where=f"host {host.name}", access=host.winrm, host=host.name)


class Connections:
    """PowerShell on each host of a lab, opened when first used. Safe to use from several threads."""

    def __init__(self, hosts: Mapping[str, Host], opener: Opener) -> None:
        self._hosts = hosts
        self._opener = opener
        self._opening = threading.Lock()
        self._open: dict[str, PowerShell] = {}

    def host(self, name: str) -> Host:
        """A host of the lab. Raises `LabError` (`host-unreachable`) when it has none of this name."""
        try:
            return self._hosts[name]
        except KeyError:
            raise LabError(
                f"The lab has no host {name}.",
                kind="host-unreachable",
                why=f"Its hosts are {', '.join(self._hosts)}.",
                todo="Correct the name, or the lab file.",
                host=name,
            ) from None

    def shell(self, host: str) -> PowerShell:
        """The PowerShell of a host."""
        with self._opening:
            if host not in self._open:
                self._open[host] = self._opener(self.host(host))
            return self._open[host]

    def call(self, host: str, name: str, document: Mapping[str, Json], *, timeout: float = CALL_SECONDS) -> Answer:
        """Run a script on a host. Raises `ScriptError`, or `LabError` with the host named (`host-unreachable`, ...)."""
        shell = self.shell(host)
        try:
            value = shell.call(script(name), document, timeout=timeout)
        except LabError as error:
            raise of_host(host, error) from error
        return Answer(value, host=host, what=name)

    def job(self, host: str, name: str, document: Mapping[str, Json], *, job: str, timeout: float) -> Job:
        """Start a script on a host that takes long. `job` is a name that no other job ever has."""
        shell = self.shell(host)
        try:
            return shell.job(script(name), document, name=job, timeout=timeout)
        except LabError as error:
            raise of_host(host, error) from error

    def finish(
        self, host: str, name: str, document: Mapping[str, Json], *, job: str, timeout: float, guard: Guard
    ) -> Answer:
        """Run a script that may take long as a job, and wait for its answer through losses of the connection.

        Raises what the script raises; `LabError` (`timeout`), or `AttemptCancelled`, after the job was ended.
        """
        deadline = Deadline.after(timeout)
        running = self.job(host, name, document, job=job, timeout=CALL_SECONDS)
        for pause in chain(_PAUSES, repeat(_PAUSES[-1])):
            try:
                value = running.poll(timeout=CALL_SECONDS)
            except ScriptError as error:
                raise of_host(host, error) from error
            except LabError as error:
                if deadline.passed:
                    raise of_host(host, error) from error
                value = None
            if value is not None:
                return Answer(value, host=host, what=name)
            try:
                guard.sleep(min(pause, deadline.left))
            except AttemptCancelled:
                running.cancel(timeout=CALL_SECONDS)
                raise
            if deadline.passed:
                break
        running.cancel(timeout=CALL_SECONDS)
        raise LabError(
            f"The script {name} on host {host} had not ended after {timeout:.0f} s.",
            kind="timeout",
            why="It was ended.",
            todo="See what keeps the host busy; give `timeouts` in the campaign more where it is only slow.",
            host=host,
        )

    def close(self) -> None:
        """Close all connections; they are opened again when they are used."""
        with self._opening:
            opened, self._open = self._open, {}
        for shell in opened.values():
            shell.close()


def of_host(host: str, error: LabError) -> LabError:
    """An error of a host's PowerShell, with the host named; a host that doesn't answer has one kind in all drivers."""
    error.host = error.host or host
    if error.kind == "unreachable" and not isinstance(error, ScriptError):
        error.kind = "host-unreachable"
    return error

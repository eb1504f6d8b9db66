"""What runs PowerShell scripts somewhere: on a Hyper-V host, in a Windows guest. The scripts don't know where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Protocol

from labctl.errors import LabError

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
"""What a script is given and answers: JSON, with sizes in bytes as whole numbers and times as ISO 8601 in UTC."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """One operation: a `.ps1` file in a package, with a `param` block that takes one document and nothing else.

    Its text is never changed and no value is ever put into it.
    """

    package: str
    """Such as `workers.hypervisors.hyperv`, whose folder `scripts` holds the file."""
    name: str
    """The file's name without `.ps1`."""
    writes: bool = True
    """Whether it changes anything: one that does is never repeated when its answer was lost."""

    @property
    def text(self) -> str:
        """The file's content."""
        return (files(self.package) / "scripts" / f"{self.name}.ps1").read_text(encoding="utf-8")


class ScriptError(LabError):
    """A script told of an error, in its answer. `kind` is one word of the script's own (`not-found`, `name-taken`,
    `no-delegation`, ...) or `script-failed`; `why` is what Windows said; `detail` is what else it sent."""

    detail: Mapping[str, Json]


class PowerShell(Protocol):
    """A place where scripts run. Safe to use from several threads."""

    @property
    def where(self) -> str:
        """Whose inside this is, for messages: `host hv1`, `vm labctl-...`."""

    def call(self, script: Script, document: Mapping[str, Json], *, timeout: float) -> Json:
        """Run a script that ends soon and return its answer.

        Raises `ScriptError`; `LabError` of kind `unreachable`, `refused` (authentication, rights, certificate), `quota`,
        `timeout` (at `timeout` seconds at the latest), or `protocol` (an answer that is none).
        """

    def job(self, script: Script, document: Mapping[str, Json], *, name: str, timeout: float) -> Job:
        """Start a script that takes long, as a job that outlives the call and the connection, and return at once.

        A job of this `name` that was started before is found again, never started twice.
        """

    def close(self) -> None:
        """Close what is open there. Jobs go on."""


class Job(Protocol):
    """A script that takes long."""

    def poll(self, *, timeout: float) -> Json | None:
        """Its answer when it has ended, else None; one short call. Raises what `PowerShell.call` raises."""

    def progress(self) -> Json:
        """What the script last said of its progress, as of the last `poll`."""

    def cancel(self, *, timeout: float) -> None:
        """Ask it to end, and remove what it left. No error when it has ended already."""

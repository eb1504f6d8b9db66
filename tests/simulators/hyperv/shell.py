"""PowerShell on a simulated host without a wire between: what goes in and comes out is JSON all the same."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import cast

from labctl.errors import LabError
from labctl.model.lab import Host
from tests.simulators.hyperv.operations import Caller, run
from tests.simulators.hyperv.state import Datacentre, Refusal
from workers.powershell.base import Job, Json, PowerShell, Script, ScriptError


def keep_to_the_header(text: str, part: str, document: Mapping[str, Json]) -> None:
    """See that a document, or an answer, has the keys that the header of its script names, and no others."""
    header = "".join(line[1:] for line in text.splitlines() if line.startswith("#"))
    found = re.search(rf" {part}: (.*?)(?= (?:In|Out|Errors|Progress): |$)", header)
    assert found, f"the header names {part}"
    named = re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", found[1])
    keys = {key.partition(":")[0].strip() for key in named.split(",")}
    words = {key for key in keys if re.fullmatch("[a-z][A-Za-z]*", key)} - {"nothing"}
    assert set(document) == words, f"{part}: {sorted(document)}, the header names {sorted(words)}"


class SimulatedPowerShell:
    """`PowerShell` of one host. Jobs go on when it is closed, and end when their host restarts."""

    def __init__(self, centre: Datacentre, host: str) -> None:
        self._centre = centre
        self._host = host
        self._jobs: dict[str, _Job] = {}

    @property
    def where(self) -> str:
        return f"host {self._host}"

    def call(self, script: Script, document: Mapping[str, Json], *, timeout: float) -> Json:
        self._answering()
        return self._run(script, document, Caller())

    def job(self, script: Script, document: Mapping[str, Json], *, name: str, timeout: float) -> Job:
        self._answering()
        if name not in self._jobs:
            self._jobs[name] = _Job(self, script, document)
        return self._jobs[name]

    def close(self) -> None:
        return

    def _answering(self) -> None:
        host = self._centre.hosts[self._host]
        if host.down or host.unheard:
            raise LabError(f"Host {self._host} doesn't answer.", kind="unreachable", why="No route to host.")

    def _run(self, script: Script, document: Mapping[str, Json], caller: Caller) -> Json:
        keep_to_the_header(script.text, "In", document)
        given = json.loads(json.dumps(dict(document), allow_nan=False))
        try:
            answer = run(self._centre, self._host, script.name, given, caller)
        except Refusal as refusal:
            error = ScriptError(
                f"The script {script.name} failed on {self.where}.",
                kind=refusal.kind,
                why=refusal.message,
                host=self._host,
            )
            error.detail = {"hresult": -2146233088} | refusal.detail
            raise error from refusal
        assert isinstance(answer, dict)
        keep_to_the_header(script.text, "Out", answer)
        return cast("Json", json.loads(json.dumps(answer, allow_nan=False)))


class _Job:
    def __init__(self, shell: SimulatedPowerShell, script: Script, document: Mapping[str, Json]) -> None:
        self._shell = shell
        self._answer: Json = None
        self._error: Exception | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._work, args=(script, document), daemon=True).start()

    def _work(self, script: Script, document: Mapping[str, Json]) -> None:
        try:
            self._answer = self._shell._run(script, document, Caller())
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()

    def poll(self, *, timeout: float) -> Json | None:
        self._shell._answering()
        if not self._ended.is_set():
            return None
        if self._error is not None:
            raise self._error
        return self._answer

    def progress(self) -> Json:
        return None

    def cancel(self, *, timeout: float) -> None:
        return


def opener(centre: Datacentre) -> Callable[[Host], PowerShell]:
    """What gives a driver the PowerShell of simulated hosts."""

    def open_host(host: Host) -> PowerShell:
        return SimulatedPowerShell(centre, host.name)

    return open_host

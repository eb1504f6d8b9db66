"""Simulated Hyper-V hosts behind WinRM endpoints: the whole way, from `pywinrm` to the script and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import cast

from labctl.model.lab import Login, SecretRef, WinrmAccess
from tests.simulators.hyperv.operations import OPERATIONS, Caller, run
from tests.simulators.hyperv.state import RUNNING, Datacentre, Refusal
from tests.simulators.windows import answered
from tests.simulators.winrm import Context, Run, ScriptFailure, WinrmEndpoint
from tests.simulators.winrm.jobs import NAMES, PACKAGE, Jobs
from workers.powershell.base import Json

USER, PASSWORD = r"LAB\labctl", "correct horse"
PASSWORD_VARIABLE = "LABCTL_TEST_HYPERV_PASSWORD"


def scripts_of(centre: Datacentre, host: str) -> Run:
    """What the endpoint of a host runs: scripts of Hyper-V, those for the insides of its VMs, and what its own Windows is
    asked for."""

    def run_script(name: str, document: Mapping[str, Json], context: Context) -> Json:
        if name == "direct-call":
            return _call_inside(centre, host, document)
        if name not in OPERATIONS:
            if host not in centre.partitions:
                raise ScriptFailure("script-failed", f"Nobody has said what Windows does on host {host}.")
            return centre.partitions[host](name, document, context)
        caller = Caller(delegated=context.transport == "credssp")
        try:
            return run(centre, host, name, document, caller)
        except Refusal as refusal:
            raise ScriptFailure(refusal.kind, refusal.message, detail=refusal.detail) from refusal

    return run_script


class Inside:
    """The inside of a VM with Windows, as PowerShell Direct reaches it: what it runs, and its jobs."""

    def __init__(self, run_script: Run, *, user: str, password: str) -> None:
        self._run = run_script
        self._jobs = Jobs(run_script)
        self.user = user
        self.password = password

    def run(self, name: str, document: Mapping[str, Json], context: Context) -> Json:
        """Run a script."""
        if context.package == PACKAGE and name in NAMES:
            return self._jobs.script(name, document, context)
        return self._run(name, document, context)


def _call_inside(centre: Datacentre, host: str, document: Mapping[str, Json]) -> Json:
    """What `direct-call.ps1` does: a VM is entered through the host that it runs on, and no other."""
    id = str(document["vm"])
    vm = centre.hosts[host].vms.get(id)
    if vm is None:
        raise ScriptFailure("no-vm", f"The host has no VM {id}.")
    inside = centre.insides.get(id)
    if vm.state != RUNNING or inside is None:
        raise ScriptFailure("not-running", f"The VM {vm.name} doesn't run, or is no Windows.")
    if (document["user"], document["password"]) != (inside.user, inside.password):
        raise ScriptFailure("bad-login", "The credential is invalid.")
    request = "".join(f"{line}\n" for line in cast("list[str]", document["request"]))
    return {"stdout": answered(request.encode(), inside.run).decode(), "exit": 0}


@contextmanager
def endpoints_of(centre: Datacentre) -> Iterator[dict[str, WinrmEndpoint]]:
    """An endpoint for each host, by its name."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(WinrmEndpoint(scripts_of(centre, name), host=name, users={USER: PASSWORD}))
            for name in centre.hosts
        }


def access_to(endpoint: WinrmEndpoint) -> WinrmAccess:
    """How the lab file says to reach an endpoint; its password is in the environment, as `PASSWORD_VARIABLE`."""
    login = Login(user=USER, password=SecretRef(scheme="env", locator=PASSWORD_VARIABLE))
    return WinrmAccess(url=endpoint.url, login=login)

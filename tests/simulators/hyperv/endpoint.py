"""Simulated Hyper-V hosts behind WinRM endpoints: the whole way, from `pywinrm` to the script and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from labctl.model.lab import Login, SecretRef, WinrmAccess
from tests.simulators.hyperv.operations import Caller, run
from tests.simulators.hyperv.state import Datacentre, Refusal
from tests.simulators.winrm import Context, Run, ScriptFailure, WinrmEndpoint
from workers.powershell.base import Json

USER, PASSWORD = r"LAB\labctl", "correct horse"
PASSWORD_VARIABLE = "LABCTL_TEST_HYPERV_PASSWORD"


def scripts_of(centre: Datacentre, host: str) -> Run:
    """What the endpoint of a host runs."""

    def run_script(name: str, document: Mapping[str, Json], context: Context) -> Json:
        caller = Caller(progress=context.progress, delegated=context.transport == "credssp")
        try:
            return run(centre, host, name, document, caller)
        except Refusal as refusal:
            raise ScriptFailure(refusal.kind, refusal.message, detail=refusal.detail) from refusal

    return run_script


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

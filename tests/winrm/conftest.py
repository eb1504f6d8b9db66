"""An endpoint, and PowerShell through it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from labctl.model.lab import Login, SecretRef, WinrmAccess, WinrmTransport
from tests.simulators.winrm import Context, Quotas, Run, ScriptFailure, WinrmEndpoint
from workers.powershell.base import Json, Script
from workers.winrm import WinrmPowerShell

READS = Script(package="tests.powershell", name="echo", writes=False)
WRITES = Script(package="tests.powershell", name="echo", writes=True)

HELD = threading.Event()
"""What scripts that hold wait for."""

_numbers = itertools.count(1)


def echo(name: str, document: Mapping[str, Json], context: Context) -> Json:
    """What the script does, and what tests ask for by the value that they give it."""
    value = document["value"]
    if value == "fail":
        raise ScriptFailure(
            "not-found",
            "Es gibt keine VM.",
            detail={"id": 7},
            id="VMNotFound,Get-VM",
            category="ObjectNotFound",
            hresult=-1,
        )
    if value == "hang":
        context.ended.wait(30)
    if value == "hold":
        HELD.wait(30)
    if value == "who":
        return {"value": [context.user, context.transport]}
    return {"value": value}


class Place:
    """An endpoint with one user, and what reaches it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def endpoint(
        self,
        run: Run = echo,
        *,
        transports: frozenset[str] = frozenset({"ntlm"}),
        certificates: Path | None = None,
        quotas: Quotas | None = None,
    ) -> WinrmEndpoint:
        self.user = f"LAB\\op{next(_numbers)}"
        self.password = self._folder / "password"
        self.password.write_text("pässword!1\n", encoding="utf-8")
        endpoint = WinrmEndpoint(
            run,
            users={self.user: "pässword!1"},
            transports=transports,
            certificates=certificates,
            quotas=quotas,
        )
        return self._stack.enter_context(endpoint)

    def another_user(self, endpoint: WinrmEndpoint) -> Place:
        """The same place for somebody else, with the same password."""
        other = Place(self._folder)
        other.user = f"LAB\\op{next(_numbers)}"
        other.password = self.password
        endpoint.set_password(other.user, "pässword!1")
        return other

    def shell(
        self,
        endpoint: WinrmEndpoint,
        transport: WinrmTransport = WinrmTransport.NTLM,
        *,
        ca_file: str = "",
        url: str = "",
    ) -> WinrmPowerShell:
        access = WinrmAccess(
            url=url or endpoint.url,
            login=Login(user=self.user, password=SecretRef(scheme="file", locator=str(self.password))),
            transport=transport,
            ca_file=ca_file,
        )
        shell = WinrmPowerShell(where="host hv1", access=access, host="hv1")
        self._stack.callback(shell.close)
        return shell

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


@pytest.fixture
def endpoint(place: Place) -> WinrmEndpoint:
    return place.endpoint()


@pytest.fixture
def shell(place: Place, endpoint: WinrmEndpoint) -> WinrmPowerShell:
    return place.shell(endpoint)

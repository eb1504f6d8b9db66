"""`filecopy` between Windows endpoints: a share of the transfer's own, read or written by robocopy or `Copy-Item`.

The share may be used by one local user, who is made for the transfer with a password that nobody else knows, and is
removed with it: a remote session has no credentials to hand on to another machine.
"""

from __future__ import annotations

import json
import secrets
from importlib.resources import files

from labctl.model.order import TransferOrder
from workers.transfers.base import Placing, Process, Step, Surroundings

_STEP_SECONDS = 60.0
_BYTES_PER_SECOND = 10e6


def client(order: TransferOrder, *, port: int) -> tuple[str, ...]:
    """The timed copy: the script `copy`, which prints what the scripts of Linux print."""
    del order
    return _run(port, "copy")


def surroundings(order: TransferOrder, *, server: str, port: int) -> Surroundings:
    """The script and its document at both ends, the file, the share; afterwards the hash, and all of it is removed."""
    document = {
        "folder": _folder(port),
        "share": f"labctl-copy-{port}",
        "server": server,
        "user": f"labctl{port}",
        "password": f"{secrets.token_urlsafe(24)}aA1!",
        "size": order.size,
        "method": order.copy,
        "reverse": order.reverse,
        "warm": order.cache == "warm",
    }
    script = (files(__package__) / "filecopy.ps1").read_bytes()
    placings = tuple(
        Placing(at=at, path=path, content=content)
        for at in Process
        for path, content in ((_script(port), script), (_document(port), json.dumps(document).encode()))
    )
    source, target = (Process.SERVER, Process.CLIENT) if order.reverse else (Process.CLIENT, Process.SERVER)
    seconds = _STEP_SECONDS + 3 * order.size / _BYTES_PER_SECOND

    def step(at: Process, verb: str, what: str) -> Step:
        return Step(at=at, argv=_run(port, verb), what=what, seconds=seconds)

    return Surroundings(
        placings=placings,
        before=(
            step(Process.CLIENT, "folder", "Making a folder"),
            step(Process.SERVER, "folder", "Making a folder"),
            step(Process.SERVER, "share", "Sharing a folder"),
            step(source, "make", f"Making a file of {order.size} bytes"),
            step(Process.CLIENT, "connect", "Connecting to the share"),
        ),
        after=(step(target, "check", "Checking the copy"),),
        cleanup=(
            step(Process.CLIENT, "remove", "Removing the files"),
            step(Process.SERVER, "remove", "Removing the files"),
        ),
    )


def _folder(port: int) -> str:
    return rf"C:\Windows\Temp\labctl-copy-{port}"


def _script(port: int) -> str:
    return f"{_folder(port)}.ps1"


def _document(port: int) -> str:
    return f"{_folder(port)}.json"


def _run(port: int, verb: str) -> tuple[str, ...]:
    switches = ("-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass")
    return ("powershell.exe", *switches, "-File", _script(port), verb, _document(port))

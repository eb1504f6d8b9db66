"""Kerberos tickets for users whose password the lab file refers to.

pywinrm takes a ticket as it finds it and asks for none, and a ticket lasts ten hours: one that a person got in the evening is
over before the night is. So this process gets its own by `kinit`, in a cache that nobody else uses, anew after `RENEW_SECONDS`.
The cache is a collection (`DIR:`), because several users of one process need one each: MIT Kerberos chooses by the principal.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from labctl import clock
from labctl.errors import LabError

RENEW_SECONDS = 2 * 3600.0
"""Well before the shortest lifetime that domains give tickets."""

KINIT_SECONDS = 30.0

_REFUSED = (
    "Password incorrect",
    "Preauthentication failed",
    "not found in Kerberos database",
    "have been revoked",
    "expired",
)
"""In what MIT's kinit says in the locale C, of a user or a password that is no good."""


class TicketRefused(Exception):
    """The domain doesn't take the user or the password."""


@dataclass(kw_only=True)
class Tickets:
    """The tickets of this process. Safe to use from several threads."""

    _folder: Path | None = None
    _obtained: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By principal: a hash of the password, and when by the monotonic clock."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def obtain(self, principal: str, password: str, *, where: str, host: str) -> None:
        """See to it that there is a ticket. Raises `TicketRefused`, or `LabError` (`refused`, `unreachable`)."""
        digest = hashlib.sha256(password.encode()).hexdigest()
        with self._lock:
            known, since = self._obtained.get(principal, ("", 0.0))
            if known == digest and clock.monotonic() - since < RENEW_SECONDS:
                return
            _kinit(principal, password, self._cache(principal), where=where, host=host)
            self._obtained[principal] = (digest, clock.monotonic())

    def _cache(self, principal: str) -> str:
        """Name of the principal's cache in the collection, which is made with the first."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="labctl-tickets-"))
            atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
            # Where the Kerberos library of this process looks.
            os.environ["KRB5CCNAME"] = f"DIR:{self._folder}"
        # In a collection, names of caches begin so.
        return f"DIR::{self._folder}/tkt{hashlib.sha256(principal.encode()).hexdigest()[:16]}"


TICKETS = Tickets()


def _kinit(principal: str, password: str, cache: str, *, where: str, host: str) -> None:
    """The password goes to kinit's standard input, so that no list of processes shows it."""
    try:
        done = subprocess.run(
            ["kinit", "-c", cache, principal],
            input=f"{password}\n".encode(),
            capture_output=True,
            timeout=KINIT_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except FileNotFoundError as error:
        raise _no_ticket(
            where,
            host,
            "refused",
            "There is no kinit on this machine.",
            "Install it on the worker (Debian: krb5-user).",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise _no_ticket(where, host, "unreachable", f"kinit took more than {KINIT_SECONDS:.0f} s.", _LOOK) from error
    if done.returncode == 0:
        return
    said = done.stderr.decode(errors="replace").strip()
    if any(reason in said for reason in _REFUSED):
        raise TicketRefused(said)
    if "Clock skew" in said:
        raise _no_ticket(where, host, "refused", said, "Set the clock of this worker: Kerberos allows five minutes.")
    raise _no_ticket(where, host, "unreachable", said, _LOOK)


_LOOK = "Look whether this worker finds the domain: its realm in /etc/krb5.conf or DNS, port 88 of a domain controller."


def _no_ticket(where: str, host: str, kind: str, why: str, todo: str) -> LabError:
    return LabError(f"There is no Kerberos ticket for {where}.", kind=kind, why=why, todo=todo, host=host)

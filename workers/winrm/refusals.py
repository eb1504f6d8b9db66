"""Credentials that were refused, remembered for as long as this process lives, so that no lock-out storm follows.

Windows locks an account after a few wrong passwords. A worker that tried again with every run, on every host of a lab, would
lock it within a minute, for everybody who uses it. So a password is tried once on a machine; a domain's account that two
machines have refused is tried on no other. Another password behind the same reference is tried at once.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MACHINES_OF_A_DOMAIN = 2
"""Machines that may refuse a domain's account before it is taken for wrong everywhere: one may have lost the domain."""

_SALT = secrets.token_bytes(16)


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Who logs in where. The password is kept as a salted hash only."""

    machine: str
    """Host name or address."""
    user: str
    digest: bytes = field(repr=False)

    @property
    def is_of_domain(self) -> bool:
        """Whether other machines know the same account: `DOMAIN\\user` or `user@domain`."""
        domain, found, _ = self.user.partition("\\")
        return "@" in self.user or (found != "" and domain not in ("", "."))


def credentials(machine: str, user: str, password: str) -> Credentials:
    """The credentials as they are remembered."""
    digest = hashlib.scrypt(password.encode(), salt=_SALT, n=2**10, r=8, p=1)
    return Credentials(machine=machine.lower(), user=user.lower(), digest=digest)


class Refusals:
    """What was refused. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refused: set[Credentials] = set()

    def add(self, refused: Credentials) -> None:
        """Remember that they were refused."""
        with self._lock:
            self._refused.add(refused)

    def refuse(self, asked: Credentials) -> bool:
        """Whether they must not be tried."""
        with self._lock:
            same = {one.machine for one in self._refused if (one.user, one.digest) == (asked.user, asked.digest)}
        return asked.machine in same or (asked.is_of_domain and len(same) >= MACHINES_OF_A_DOMAIN)


class Trials:
    """Who tries credentials that no machine has taken yet: one at a time, so that a lab of many hosts, all asked at once,
    has tried a wrong password on one or two of them when the others' turn comes. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, bytes], threading.Lock] = {}
        self._taken: set[tuple[str, bytes]] = set()

    @contextmanager
    def turn(self, tried: Credentials, *, patience: float) -> Iterator[None]:
        """Wait for the turn to try them, for so many seconds at the most: a machine that doesn't answer holds up no other
        for long. Nobody waits once a machine has taken them (`took`)."""
        known = tried.user, tried.digest
        with self._lock:
            turn = None if known in self._taken else self._turns.setdefault(known, threading.Lock())
        if turn is None or not turn.acquire(timeout=max(0.0, patience)):
            yield
            return
        try:
            yield
        finally:
            turn.release()

    def took(self, tried: Credentials) -> None:
        """Remember that a machine has taken them."""
        with self._lock:
            self._taken.add((tried.user, tried.digest))


REFUSALS = Refusals()
"""Those of this process."""

TRIALS = Trials()
"""Those of this process."""

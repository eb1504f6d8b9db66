"""Passwords that a vCenter refused, remembered by this process: five wrong ones within three minutes lock an account of
vCenter Single Sign-On for everybody who uses it, and a worker asks for every host and every run.

One that was refused is tried again after a while, because a locked account is told like a wrong password, and unlocks itself.
Source: vSphere Authentication, "Edit the vCenter Single Sign-On Lockout Policy".
"""

from __future__ import annotations

import hashlib
import secrets
import threading

from labctl import clock

REST_SECONDS = 600.0
"""So long a password that was refused is not tried: the account unlocks after 300 s by default."""

_SALT = secrets.token_bytes(16)


class Refused:
    """What was refused, and when; passwords as salted hashes only. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[bytes, float] = {}

    def add(self, address: str, user: str, password: str) -> None:
        """Remember that they were refused just now."""
        with self._lock:
            self._at[_digest(address, user, password)] = clock.monotonic()

    def rests(self, address: str, user: str, password: str) -> bool:
        """Whether they were refused lately, and must not be tried."""
        with self._lock:
            at = self._at.get(_digest(address, user, password))
        return at is not None and clock.monotonic() - at < REST_SECONDS


def _digest(*parts: str) -> bytes:
    return hashlib.scrypt("\0".join(parts).encode(), salt=_SALT, n=2**10, r=8, p=1)


REFUSED = Refused()
"""What this process was refused."""

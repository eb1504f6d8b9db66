"""Who a connection's client is: NTLM and SPNEGO, CredSSP, Basic; and the encryption of messages that follows (MS-WSMV 2.2.9.1).

The server side of pyspnego reads its users from the file that NTLM_USER_FILE names. The variable is the process's, so all
endpoints of a test process share one file, which holds the users of all.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import os
import re
import struct
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import spnego
from spnego.channel_bindings import GssChannelBindings
from spnego.exceptions import SpnegoError

BOUNDARY = b"--Encrypted Boundary"
PROTOCOLS = {
    "negotiate": "application/HTTP-SPNEGO-session-encrypted",
    "credssp": "application/HTTP-CredSSP-session-encrypted",
}
CREDSSP_PIECE = 16384
"""Bytes of a message that CredSSP encrypts at once (MS-WSMV 2.2.9.1.3)."""


class Users:
    """The users that Windows would know, by domain and name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passwords: dict[tuple[str, str], str] = {}
        self._file: Path | None = None

    def set(self, user: str, password: str) -> None:
        """Add a user, or change its password."""
        with self._lock:
            self._passwords[_key(user)] = password
            file = self._ensure_file()
            lines = (f"{domain}:{name}:{password}\n" for (domain, name), password in self._passwords.items())
            file.write_text("".join(lines), encoding="utf-8")

    def knows(self, user: str, password: str) -> bool:
        """Whether that is the user's password."""
        with self._lock:
            return self._passwords.get(_key(user)) == password

    def _ensure_file(self) -> Path:
        if self._file is None:
            handle, name = tempfile.mkstemp(prefix="labctl-winrm-users-")
            os.close(handle)
            self._file = Path(name)
            os.environ["NTLM_USER_FILE"] = name
            atexit.register(self._file.unlink, missing_ok=True)
        return self._file


USERS = Users()


class Refused(Exception):
    """The client may not come in: it gets 401 with this offer."""

    def __init__(self, offers: tuple[str, ...], *, failed: bool) -> None:
        super().__init__("401")
        self.offers = offers
        self.failed = failed
        """Whether credentials were shown and are wrong; else this is a step on the way."""


@dataclass(kw_only=True)
class Identity:
    """The client of one connection."""

    transports: frozenset[str]
    encrypted_line: bool
    certificate: bytes = b""
    """DER of the server's certificate, for the channel binding."""
    user: str = ""
    scheme: str = ""
    """`negotiate`, `credssp`, `basic`: how messages are sealed."""
    transport: str = ""
    """The same as lab files say it."""
    _context: spnego.ContextProxy | None = field(default=None, repr=False)

    def authenticate(self, header: str) -> str:
        """Take an Authorization header (may be empty); return the header for the answer. Raises `Refused`."""
        scheme, _, token = header.partition(" ")
        if not header:
            if self.user and self.scheme != "basic":
                return ""
            raise Refused(self._offers(), failed=False)
        if scheme.lower() == "basic" and "basic" in self.transports and self.encrypted_line:
            return self._basic(token)
        if scheme.lower() in ("negotiate", "ntlm") and self.transports & {"ntlm", "kerberos"}:
            return self._step(scheme, token, "negotiate")
        if scheme.lower() == "credssp" and "credssp" in self.transports:
            return self._step(scheme, token, "credssp")
        raise Refused(self._offers(), failed=False)

    def decrypt(self, content_type: str, body: bytes) -> tuple[bytes, bool]:
        """A request's message, and whether it was encrypted. Raises `ValueError` when it can't be decrypted."""
        if not content_type.startswith(("multipart/encrypted", "multipart/x-multi-encrypted")):
            return body, False
        if self._context is None:
            raise ValueError("an encrypted message without a context")
        parts = [part for part in body.split(BOUNDARY + b"\r\n") if part]
        message = b""
        for header, payload in zip(parts[::2], parts[1::2], strict=True):
            length = int(re.search(rb"Length=(\d+)", header)[1])  # type: ignore[index]
            sealed = payload.removesuffix(BOUNDARY + b"--\r\n").partition(b"octet-stream\r\n")[2]
            piece = self._unseal(sealed)
            if len(piece) != length:
                raise ValueError("length of a message is not as announced")
            message += piece
        return message, True

    def encrypt(self, message: bytes) -> tuple[str, bytes]:
        """Content type and body of an answer."""
        protocol = PROTOCOLS[self.scheme]
        size = CREDSSP_PIECE if self.scheme == "credssp" else max(len(message), 1)
        pieces = [message[at : at + size] for at in range(0, len(message), size)]
        body = b""
        for piece in pieces:
            body += (
                BOUNDARY + b"\r\n\tContent-Type: " + protocol.encode() + b"\r\n"
                b"\tOriginalContent: type=application/soap+xml;charset=UTF-8;Length=%d\r\n"
                % len(piece)
                + BOUNDARY
                + b"\r\n\tContent-Type: application/octet-stream\r\n"
                + self._seal(piece)
            )
        kind = "multipart/x-multi-encrypted" if len(pieces) > 1 else "multipart/encrypted"
        return f'{kind};protocol="{protocol}";boundary="Encrypted Boundary"', body + BOUNDARY + b"--\r\n"

    def _basic(self, token: str) -> str:
        user, _, password = base64.b64decode(token).decode("latin-1").partition(":")
        if not USERS.knows(user, password):
            raise Refused(self._offers(), failed=True)
        self.user, self.scheme, self.transport = user, "basic", "basic"
        return ""

    def _step(self, scheme: str, token: str, kind: str) -> str:
        content = base64.b64decode(token)
        first = self._context is None or self._context.complete
        if first:
            raw = content.startswith(b"NTLMSSP")
            protocol = "credssp" if kind == "credssp" else "ntlm" if raw else "negotiate"
            self._context = spnego.server(
                hostname="", service="HTTP", protocol=protocol, channel_bindings=self._binding()
            )
            self.user = ""
        assert self._context is not None
        try:
            answer = self._context.step(content)
        except SpnegoError:
            self._context = None
            raise Refused(self._offers(), failed=True) from None
        told = f"{scheme} {base64.b64encode(answer).decode()}" if answer else ""
        if not self._context.complete:
            failed = self._context.get_extra_info("auth_stage") == "Authentication failure"
            raise Refused((told,), failed=failed)
        self.user, self.scheme = str(self._context.client_principal or ""), kind
        self.transport = kind if kind == "credssp" else str(self._context.negotiated_protocol)
        return told

    def _offers(self) -> tuple[str, ...]:
        offers = []
        if self.transports & {"ntlm", "kerberos"}:
            offers.append("Negotiate")
        if "credssp" in self.transports:
            offers.append("CredSSP")
        if "basic" in self.transports and self.encrypted_line:
            offers.append('Basic realm="WSMAN"')
        return tuple(offers)

    def _binding(self) -> GssChannelBindings | None:
        if not self.certificate:
            return None
        return GssChannelBindings(application_data=b"tls-server-end-point:" + hashlib.sha256(self.certificate).digest())

    def _seal(self, piece: bytes) -> bytes:
        assert self._context is not None
        header, data, _ = self._context.wrap_winrm(piece)
        return struct.pack("<i", len(header)) + header + data

    def _unseal(self, sealed: bytes) -> bytes:
        assert self._context is not None
        length = struct.unpack("<i", sealed[:4])[0]
        if self.scheme == "credssp":
            return self._context.unwrap(sealed[4:]).data
        return self._context.unwrap_winrm(sealed[4 : 4 + length], sealed[4 + length :])


def _key(user: str) -> tuple[str, str]:
    domain, found, name = user.partition("\\")
    return (domain.upper(), name.upper()) if found else ("", user.upper())

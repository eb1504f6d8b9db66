"""Connections to vCenter whose peer is who it should be: by authorities, or by one pinned certificate. Never by nobody."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import select
import socket
import ssl
from dataclasses import dataclass

from labctl.errors import LabError
from labctl.model.lab import VCenter

OPEN_SECONDS = 10.0
"""Deadline for a connection to come about."""

CALL_SECONDS = 60.0
"""How long a server may be silent during a call. What takes longer is a task, and asked for by short calls."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How the certificate of a vCenter is checked."""

    vcenter: str
    address: str
    context: ssl.SSLContext
    thumbprint: str = ""
    """SHA-256, 64 hexadecimal digits; empty: the context checks."""

    @classmethod
    def of(cls, vcenter: VCenter) -> Trust:
        """What the lab file says: authorities of the system, of `ca_file`, or a `thumbprint`. `LabError` (`tls-untrusted`)
        when the file can't be read."""
        thumbprint = vcenter.thumbprint.replace(":", "").lower()
        try:
            context = ssl.create_default_context(cafile=vcenter.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise LabError(
                f"The certificates of authorities for vCenter {vcenter.name} can't be read from {vcenter.ca_file}.",
                kind="tls-untrusted",
                why=str(error),
                todo=f"Correct `ca_file` of vcenters.{vcenter.name}: a PEM file, such as https://VCENTER/certs/download.zip has.",
            ) from error
        if thumbprint:
            # The certificate itself is compared instead of who signed it (`CheckedConnection.connect`).
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return cls(vcenter=vcenter.name, address=vcenter.address, context=context, thumbprint=thumbprint)


class CheckedConnection(http.client.HTTPSConnection):
    """A connection that exists only once its peer is trusted. `LabError` (`tls-untrusted`) when it is not."""

    def __init__(self, host: str, port: int, *, trust: Trust) -> None:
        super().__init__(host, port, timeout=OPEN_SECONDS, context=trust.context)
        self._trust = trust
        self.rests = False
        """Whether it has answered all that it was asked and waits for the next call."""

    def connect(self) -> None:
        """Connect, and check the certificate."""
        try:
            super().connect()
        except ssl.SSLCertVerificationError as error:
            raise self._untrusted(str(error.verify_message), self._shown()) from error
        assert isinstance(self.sock, ssl.SSLSocket)
        shown = hashlib.sha256(self.sock.getpeercert(binary_form=True) or b"").hexdigest()
        if self._trust.thumbprint and not hmac.compare_digest(shown, self._trust.thumbprint):
            self.close()
            raise self._untrusted("Its thumbprint is not the pinned one.", shown)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.sock.settimeout(CALL_SECONDS)

    def is_usable(self) -> bool:
        """Whether a call may be sent on it. At rest nothing comes from a server but the end of the connection."""
        if not self.rests:
            return True
        self.rests = False
        if self.sock is None:
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return not poll.poll(0)

    def _shown(self) -> str:
        """The thumbprint of the certificate that the server shows; empty when it shows none. Trusts nobody."""
        try:
            pem = ssl.get_server_certificate((self.host, self.port), timeout=OPEN_SECONDS)
        except (OSError, ValueError):
            return ""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()

    def _untrusted(self, why: str, shown: str) -> LabError:
        trust = self._trust
        return LabError(
            f"The certificate of vCenter {trust.vcenter} ({trust.address}) is not trusted.",
            kind="tls-untrusted",
            why=f"{why} It shows one with the SHA-256 thumbprint {shown or 'unknown'}.",
            todo=f"Give vcenters.{trust.vcenter} the `ca_file` that signed it, or, when you have compared it with what "
            "the server itself says (openssl x509 -fingerprint -sha256), that `thumbprint`.",
        )

"""Files of datastores and of guests, over HTTPS beside the API: with its trust, and a deadline on the whole of each.

Those of datastores are under `/folder` of the vCenter, for whoever has a session. Those of guests are at an address that the
API gives for each transfer, with a token in it: at the vCenter, said as host `*`, or at the ESXi host on which the VM runs.
Source: vSphere Web Services API, GuestFileManager; vSphere Web Services SDK Programming Guide, "HTTP Access to vSphere
Server Files".
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPResponse
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from pyVmomi import vim

from workers.guard import Deadline
from workers.hypervisors.vsphere.connection import Session, said
from workers.hypervisors.vsphere.inventory import properties
from workers.hypervisors.vsphere.tls import CheckedConnection, Trust

CHUNK_BYTES = 1 << 18
MOST_BYTES = 1 << 30
"""What is fetched at most; whatever is larger was not meant."""


class TransferError(Exception):
    """A file could not be moved: refused by the server, cut on its way, or too slow. Says which, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class DatastoreFile:
    """A file on a datastore. `datacenter` is the inventory path without its leading slash, as URLs have it."""

    datacenter: str
    datastore: str
    path: str


def fetch_datastore_file(session: Session, file: DatastoreFile, *, timeout: float) -> bytes:
    """The content of a file on a datastore. Raises `TransferError`, `LabError` (`tls-untrusted`)."""
    query = urlencode({"dcPath": file.datacenter, "dsName": file.datastore})
    target = f"/folder/{quote(file.path)}?{query}"
    host, port = session.endpoint
    headers = {"Cookie": session.cookie}
    return _exchange("GET", host, port, target, b"", headers, trust=Trust.of(session.vcenter), timeout=timeout)


def fetch_guest_file(session: Session, machine: vim.VirtualMachine, url: str, *, timeout: float) -> bytes:
    """What is at the address of a transfer from a guest. Raises `TransferError`, `LabError` (`tls-untrusted`)."""
    return _at(session, machine, "GET", url, b"", timeout)


def put_guest_file(session: Session, machine: vim.VirtualMachine, url: str, content: bytes, *, timeout: float) -> None:
    """Send a file to the address of a transfer to a guest. Raises `TransferError`, `LabError` (`tls-untrusted`)."""
    _at(session, machine, "PUT", url, content, timeout)


def _at(session: Session, machine: vim.VirtualMachine, method: str, url: str, content: bytes, timeout: float) -> bytes:
    parts = urlsplit(url)
    own_host, own_port = session.endpoint
    host = own_host if parts.hostname in (None, "*") else str(parts.hostname)
    trust = Trust.of(session.vcenter) if host == own_host else _trust_of_host(session, machine, host)
    return _exchange(method, host, parts.port or own_port, _target(parts), content, {}, trust=trust, timeout=timeout)


def _target(parts: SplitResult) -> str:
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _trust_of_host(session: Session, machine: vim.VirtualMachine, address: str) -> Trust:
    """How an ESXi host is known: by the very certificate that the vCenter, which is trusted, states of it.

    Where it states none the host is checked as the vCenter is.
    """
    general = replace(Trust.of(session.vcenter), address=address)
    rows = properties(session, (machine,), ("runtime.host",))
    hosts = properties(session, (rows[0]["runtime.host"],), ("config.certificate",)) if rows else []
    certificate = _der(hosts[0]["config.certificate"]) if hosts else b""
    if not certificate:
        return general
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return replace(general, context=context, thumbprint=hashlib.sha256(certificate).hexdigest())


def _der(stated: object) -> bytes:
    """A certificate as the API gives it: bytes, some versions as signed numbers, of PEM or DER."""
    content = bytes(number & 0xFF for number in stated) if isinstance(stated, list | bytes) else b""
    if content.lstrip().startswith(b"-----BEGIN"):
        return ssl.PEM_cert_to_DER_cert(content.decode("ascii", errors="replace").strip().rstrip("\0"))
    return content


def _exchange(
    method: str,
    host: str,
    port: int,
    target: str,
    content: bytes,
    headers: Mapping[str, str],
    *,
    trust: Trust,
    timeout: float,
) -> bytes:
    deadline = Deadline.after(timeout)
    connection = CheckedConnection(host, port, trust=trust)
    try:
        connection.connect()
        _patience(connection, deadline)
        connection.putrequest(method, target)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            connection.putheader(name, value)
        connection.endheaders()
        for at in range(0, len(content), CHUNK_BYTES):
            _patience(connection, deadline)
            connection.send(content[at : at + CHUNK_BYTES])
        _patience(connection, deadline)
        response = connection.getresponse()
        body = _body(connection, response, deadline)
    except (OSError, HTTPException) as error:
        raise TransferError(f"https://{host}:{port}: {said(error)}.") from error
    finally:
        connection.close()
    if response.status not in (200, 201):
        raise TransferError(f"https://{host}:{port} answered {response.status} {response.reason}.")
    return body


def _body(connection: CheckedConnection, response: HTTPResponse, deadline: Deadline) -> bytes:
    body = bytearray()
    while chunk := response.read1(CHUNK_BYTES):  # what has come, not all that was asked for
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(f"more than {MOST_BYTES} bytes")
        _patience(connection, deadline)
    announced = response.getheader("Content-Length", "")
    if announced.isdigit() and int(announced) != len(body):
        raise HTTPException(f"{len(body)} bytes came of {announced}")
    return bytes(body)


def _patience(connection: CheckedConnection, deadline: Deadline) -> None:
    """Let the next step take no longer than what is left."""
    if deadline.passed:
        raise TimeoutError("not done in time")
    if connection.sock is not None:
        connection.sock.settimeout(deadline.left + 0.01)

"""What the lab file says of a machine, as a session of pywinrm. What can't be meant is refused before anything is sent."""

from __future__ import annotations

import importlib.util
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from requests.utils import DEFAULT_CA_BUNDLE_PATH
from winrm.protocol import Protocol

from labctl.errors import LabError
from labctl.model.lab import WinrmAccess, WinrmTransport
from labctl.secrets import resolve
from workers.winrm import refusals

_MODULES = {WinrmTransport.KERBEROS: ("kerberos", "kerberos"), WinrmTransport.CREDSSP: ("requests_credssp", "")}
"""What the transports need beside pywinrm: the module, and the extra of labctl that installs it."""


@dataclass(frozen=True, kw_only=True)
class Login:
    """How to get into a machine, with its secret."""

    access: WinrmAccess
    password: str = field(repr=False)
    credentials: refusals.Credentials

    @property
    def user(self) -> str:
        """As it is sent. Realms of Kerberos are in capitals, whatever Windows makes of them."""
        name, at, realm = self.access.login.user.partition("@")
        return (
            f"{name}{at}{realm.upper()}" if self.access.transport is WinrmTransport.KERBEROS else self.access.login.user
        )

    @property
    def encrypts(self) -> bool:
        """Whether messages are encrypted by themselves, because the line is not."""
        return urlsplit(self.access.url).scheme == "http"


def login(access: WinrmAccess, *, where: str, host: str) -> Login:
    """Check what the lab file says and get the secret. Raises `LabError` (`refused`, `secret-unavailable`)."""
    _check(access, where=where, host=host)
    password = resolve(access.login.password).text.rstrip("\r\n")
    if access.transport is WinrmTransport.BASIC and not _is_latin(access.login.user + password):
        raise _refused(
            where,
            host,
            "The transport basic has no agreed form for letters beyond Latin-1, and the user or the password has some.",
            "Use the transport ntlm, kerberos or credssp.",
        )
    machine = urlsplit(access.url).hostname or ""
    return Login(
        access=access, password=password, credentials=refusals.credentials(machine, access.login.user, password)
    )


def protocol(login: Login) -> Protocol:
    """A session of pywinrm that has not sent anything yet."""
    access = login.access
    return Protocol(
        endpoint=access.url,
        transport=access.transport.value,
        username=login.user,
        password=login.password,
        ca_trust_path=_authorities(access),
        server_cert_validation="validate",
        message_encryption="always" if login.encrypts else "auto",
        # Credentials are delegated by CredSSP, or by Windows itself where constrained delegation is set up.
        kerberos_delegation=False,
        proxy=None,
    )


def _check(access: WinrmAccess, *, where: str, host: str) -> None:
    parts = urlsplit(access.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _refused(
            where, host, f"{access.url} is no address of WinRM.", "Write it as https://NAME:5986/wsman in the lab file."
        )
    if access.transport is WinrmTransport.BASIC and parts.scheme != "https":
        raise _refused(
            where,
            host,
            f"The transport basic would send the password readable to {access.url}.",
            "Use https, or the transport ntlm, kerberos or credssp, which encrypt messages themselves.",
        )
    if access.ca_file and not Path(access.ca_file).expanduser().is_file():
        raise _refused(
            where, host, f"There is no file {access.ca_file}.", "Correct `ca_file` of its winrm in the lab file."
        )
    if access.transport is WinrmTransport.KERBEROS and "@" not in access.login.user:
        raise _refused(
            where,
            host,
            f"The transport kerberos can't tell the realm of the user {access.login.user}.",
            "Write the user as NAME@DOMAIN.EXAMPLE in the lab file.",
        )
    module, extra = _MODULES.get(access.transport, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise _refused(
            where,
            host,
            f"The transport {access.transport} needs the Python module {module}, which is not installed.",
            f"Install it on the worker: pip install 'labctl[{extra}]'."
            if extra
            else f"Install {module} on the worker.",
        )


def _authorities(access: WinrmAccess) -> str:
    """The file or folder of the certificates that are trusted: those named, the system's, or those that requests brings along."""
    if access.ca_file:
        return str(Path(access.ca_file).expanduser())
    paths = ssl.get_default_verify_paths()
    system = (path for path in (paths.cafile, paths.capath) if path and os.access(path, os.R_OK))
    return next(system, DEFAULT_CA_BUNDLE_PATH)


def _is_latin(text: str) -> bool:
    return all(ord(letter) < 256 for letter in text)


def _refused(where: str, host: str, why: str, todo: str) -> LabError:
    return LabError(
        f"WinRM on {where} can't be used as the lab file says.", kind="refused", why=why, todo=todo, host=host
    )

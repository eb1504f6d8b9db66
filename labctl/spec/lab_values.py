"""Values that only lab files have: URIs, PCI devices, fingerprints of certificates, folders on Windows."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import SplitResult, urlsplit, urlunsplit

from pydantic import AfterValidator, Field

from labctl.spec.fields import Text, complaint

_LIBVIRT = "such as qemu+ssh://root@host/system"
_WSMAN = "such as https://hv1.example.com:5986/wsman"
_VCENTER = "a host name or address, with :PORT where it isn't 443, such as vcenter.example.com"
_FINGERPRINT = "the SHA-256 fingerprint, 64 hexadecimal digits, with or without colons"
_WINRM_PORTS = {"http": 5985, "https": 5986}
"""Where WinRM listens by default (DSP0226 has none; these are Windows')."""


def _split(value: str, *, what: str, allowed: str) -> SplitResult:
    """The parts of a URI that holds no password. What is refused may hold one, so it is never shown."""
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as error:
        raise complaint(f"is no {what}", allowed=allowed, secret=True) from error
    if parts.password is not None:
        raise complaint("holds a password; a secret is never written here", secret=True)
    return parts


def _uri(value: str) -> str:
    _split(value, what="URI", allowed=_LIBVIRT)
    if ":" not in value:
        raise complaint("is no URI", allowed=_LIBVIRT)
    return value


def _wsman(value: str) -> str:
    """The URL with port and path, which are WinRM's own when they aren't written."""
    parts = _split(value, what="URL", allowed=_WSMAN)
    if parts.scheme not in _WINRM_PORTS or not parts.hostname or parts.query or parts.fragment:
        raise complaint("is no URL of WinRM", allowed=_WSMAN)
    if parts.username is not None:
        raise complaint("holds a user; that is what `user` is for", allowed=_WSMAN)
    where = parts.netloc if parts.port is not None else f"{parts.netloc.rstrip(':')}:{_WINRM_PORTS[parts.scheme]}"
    return urlunsplit((parts.scheme, where, parts.path if parts.path.strip("/") else "/wsman", "", ""))


def _vcenter(value: str) -> str:
    if "@" in value:
        raise complaint("holds a user or a password; they have keys of their own", allowed=_VCENTER, secret=True)
    if "/" in value:
        raise complaint("is no host name", allowed=_VCENTER)
    parts = _split(f"//{value}", what="host name", allowed=_VCENTER)
    if not parts.hostname or not re.fullmatch(r"[A-Za-z0-9._:-]+", parts.hostname):
        raise complaint("is no host name", allowed=_VCENTER)
    return value


def _thumbprint(value: str) -> str:
    digits = value.replace(":", "").lower()
    if re.fullmatch(r"[0-9a-f]{40}", digits):
        raise complaint("is a SHA-1 fingerprint, which proves nothing any more", allowed=_FINGERPRINT)
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise complaint("is no fingerprint of a certificate", allowed=_FINGERPRINT)
    return digits


PCI_ADDRESS = r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
PCI_ADDRESS_WORDS = "domain:bus:slot.function, such as 0000:3b:00.0"
LOCATION_PATH = r"PCIROOT\([0-9A-F]+\)(#PCI\([0-9A-F]{4}\))+"
LOCATION_PATH_WORDS = "the location path that Windows has for it, such as PCIROOT(0)#PCI(0300)#PCI(0000)"


def _pci(value: str) -> str:
    if not re.fullmatch(f"{PCI_ADDRESS}|{LOCATION_PATH}", value):
        raise complaint("is no PCI address", allowed=f"{PCI_ADDRESS_WORDS}; on Hyper-V {LOCATION_PATH_WORDS}")
    return value


def _fact(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", value):
        raise complaint("is no name of a fact", allowed="letters, digits, dots, underscores and hyphens")
    return value


def _folder(value: str) -> str:
    if not re.fullmatch(r"([A-Za-z]:\\|\\\\[^\\/]+\\[^\\/]+)[^/:*?\"<>|]*", value):
        raise complaint("is no whole path of a Windows folder", allowed=r"such as D:\labctl or \\server\share\labctl")
    return value.rstrip("\\") if not value.endswith(":\\") else value


Uri = Annotated[Text, AfterValidator(_uri)]
"""Of libvirt."""
WsmanUrl = Annotated[Text, AfterValidator(_wsman)]
"""Of WinRM, whole."""
VCenterAddress = Annotated[Text, AfterValidator(_vcenter)]
"""Host name or address, with the port where it isn't 443."""
Thumbprint = Annotated[Text, AfterValidator(_thumbprint)]
"""SHA-256 of a certificate, as 64 small hexadecimal digits."""
Pci = Annotated[Text, AfterValidator(_pci)]
"""A PCI device: by its address, or by the location path of Windows."""
Folder = Annotated[Text, AfterValidator(_folder)]
"""A folder on a Windows machine or a share."""
Port = Annotated[int, Field(ge=1, le=65535)]
Mtu = Annotated[int, Field(ge=576, le=65535)]
Facts = dict[Annotated[str, AfterValidator(_fact)], Text]

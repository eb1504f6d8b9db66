"""The channel into a Windows guest by WinRM to its address."""

from __future__ import annotations

from ipaddress import IPv4Address

from labctl.model.lab import Image, WinrmAccess
from workers.channels.base import ChannelError
from workers.channels.windows import WindowsChannel
from workers.guard import Guard

HTTP_PORT, HTTPS_PORT = 5985, 5986
"""Of WinRM 2.0 and later."""


def winrm_access(image: Image, address: IPv4Address, *, endpoint: str) -> WinrmAccess:
    """How a guest of an image is reached at its address. Raises `ChannelError` (`channel-refused`) when its image has no
    login in the lab file."""
    if image.login is None:
        raise ChannelError(
            f"{endpoint} can't be reached by WinRM.",
            kind="channel-refused",
            why=f"The lab file gives no `login` for the image {image.name}.",
            todo=f"Add `login` to images.{image.name} in the lab file.",
        )
    scheme, port = ("https", HTTPS_PORT) if image.winrm_https else ("http", HTTP_PORT)
    return WinrmAccess(
        url=f"{scheme}://{address}:{port}/wsman",
        login=image.login,
        transport=image.winrm_transport,
        ca_file=image.winrm_ca_file,
    )


def winrm_channel(access: WinrmAccess, *, endpoint: str, guard: Guard, host: str = "") -> WindowsChannel:
    """The channel into a Windows machine by WinRM. `host` is the lab's host that errors are about."""
    from workers.winrm import WinrmPowerShell  # loads the library, which only workers of such labs need

    powershell = WinrmPowerShell(where=endpoint, access=access, host=host)
    return WindowsChannel(endpoint=endpoint, powershell=powershell, guard=guard)

"""Where the files of VMs are on Hyper-V hosts. Pure: paths of Windows as text.

Every VM has a folder of its own below `Host.storage`, whose name holds the UUID that labctl gave it. All of it is there:
configuration, smart paging, disk. What a differencing disk is based on is never written to, moved or removed. But a
migration without shared storage copies it into the VM's folder on the other host, where it goes with the VM.
"""

from __future__ import annotations

from pathlib import PureWindowsPath

from labctl.errors import LabError
from labctl.model.lab import Host, WinrmTransport
from workers.hypervisors.base import NAME_PREFIX

DISK = "disk.vhdx"
"""File name of a VM's disk in its folder; the suffix is that of the image's disk."""

_CLUSTER_SHARED = PureWindowsPath("ClusterStorage")


def folder_of(host: Host, uuid: str) -> str:
    """The folder of a VM on a host. Raises `LabError` (`no-storage`) when the lab file names no place for it."""
    if not host.storage:
        raise LabError(
            f"Host {host.name} has no place for the files of VMs.",
            kind="no-storage",
            why="The lab file gives no `storage` for it.",
            todo=f"Add `storage` to hosts.{host.name} in the lab file, such as D:\\labctl.",
            host=host.name,
        )
    return str(PureWindowsPath(host.storage) / f"{NAME_PREFIX}{uuid}")


def disk_in(folder: str, image_disk: str) -> str:
    """The path of a VM's disk. It keeps the suffix, because Hyper-V takes the format from it."""
    suffix = PureWindowsPath(image_disk).suffix or PureWindowsPath(DISK).suffix
    return str((PureWindowsPath(folder) / DISK).with_suffix(suffix))


def is_shared(path: str) -> bool:
    """Whether other hosts see the same files there: on a share, or on a cluster's shared volume."""
    parts = PureWindowsPath(path)
    shared_volume = len(parts.parts) > 1 and PureWindowsPath(parts.parts[1]) == _CLUSTER_SHARED
    return parts.drive.startswith("\\\\") or shared_volume


def second_hop(host: Host, path: str) -> str:
    """Why a path may seem not to be there although it is, in a sentence; empty when nothing speaks for that.

    A share is on another machine, and only a login that is delegated is let in there from the host (H5: the double hop).
    """
    delegated = host.winrm is not None and host.winrm.transport is WinrmTransport.CREDSSP
    if not PureWindowsPath(path).drive.startswith("\\\\") or delegated:
        return ""
    return (
        "It is on a share, where the host is not let in with the login of labctl unless that is delegated: use the WinRM "
        f"transport `credssp` for hosts.{host.name}, or Kerberos constrained delegation to the service cifs of the file server."
    )


def stays_where_it_is(source: Host, destination: Host) -> bool:
    """Whether a VM that moves between the two leaves its files where they are."""
    same = PureWindowsPath(source.storage) == PureWindowsPath(destination.storage)
    return same and is_shared(source.storage)

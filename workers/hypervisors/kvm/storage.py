"""Writable layers over disk images, by libvirt's storage interface, so that remote hosts need no shell.

An overlay lies beside its image and is named after the UUID of its VM, which nobody else uses: the name is the proof
that it is ours.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import PurePosixPath

import libvirt

from workers.hypervisors.kvm.definition import Overlay, pool_xml, volume_format, volume_xml


def make_overlay(connection: libvirt.virConnect, disk: str, uuid: str) -> Overlay:
    """A new overlay over the image at path `disk` for the VM `uuid`. Passes the library's errors on."""
    pool = _pool(connection, disk)
    base = pool.storageVolLookupByName(PurePosixPath(disk).name)
    capacity = base.info()[1]
    volume = pool.createXML(
        volume_xml(_name(uuid), base=disk, base_format=volume_format(base.XMLDesc()), capacity=capacity)
    )
    return Overlay(path=volume.path())


def remove_overlay(connection: libvirt.virConnect, uuid: str) -> None:
    """Remove the overlay of the VM `uuid` wherever this host has it. No error when it has none."""
    for pool in connection.listAllStoragePools(libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE):
        try:
            pool.storageVolLookupByName(_name(uuid)).delete()
        except libvirt.libvirtError as error:
            if error.get_error_code() not in (libvirt.VIR_ERR_NO_STORAGE_VOL, libvirt.VIR_ERR_NO_STORAGE_POOL):
                raise


def _pool(connection: libvirt.virConnect, disk: str) -> libvirt.virStoragePool:
    """The pool that holds the image: the host's own, or else a transient one of ours over its directory.

    Ours stays for the next VM (ending it could fail another one's creation) until the host is started anew.
    """
    try:
        return connection.storageVolLookupByPath(disk).storagePoolLookupByVolume()
    except libvirt.libvirtError:
        pass
    directory = str(PurePosixPath(disk).parent)
    name = "labctl-" + sha256(directory.encode()).hexdigest()[:12]
    try:
        pool = connection.storagePoolLookupByName(name)
        pool.refresh()
    except libvirt.libvirtError:
        pool = connection.storagePoolCreateXML(pool_xml(name, directory))
    return pool


def _name(uuid: str) -> str:
    return f"labctl-{uuid}.qcow2"

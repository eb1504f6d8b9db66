"""What can't be meant together in the hosts of a lab file and in the vCenters that they are reached by."""

from __future__ import annotations

import re
from collections.abc import Iterator

from labctl.errors import Problem
from labctl.model.lab import MigrationAuth, WinrmTransport
from labctl.model.nic import Hypervisor
from labctl.spec.lab_file import HostField, LabFile
from labctl.spec.lab_values import LOCATION_PATH, LOCATION_PATH_WORDS, PCI_ADDRESS, PCI_ADDRESS_WORDS
from labctl.spec.source import Document, KeyPath
from labctl.spec.values import nearest

_OWN = {
    Hypervisor.KVM: ("uri", "migration_address", "ssh", "accelerator", "virtual_functions", "devices"),
    Hypervisor.VSPHERE: ("vcenter", "inventory", "resource_pool", "datastore", "ssh", "virtual_functions", "devices"),
    Hypervisor.HYPERV: ("winrm", "storage", "migration_auth", "devices"),
}
"""The keys that hosts of a hypervisor have, beside those that all have."""

_NEEDED = {Hypervisor.KVM: ("uri",), Hypervisor.VSPHERE: ("vcenter",), Hypervisor.HYPERV: ("winrm", "storage")}

_INSTEAD = {
    (Hypervisor.VSPHERE, "uri"): "is reached by `vcenter`",
    (Hypervisor.HYPERV, "uri"): "is reached by `winrm`",
    (Hypervisor.HYPERV, "ssh"): "is reached by `winrm`, as an endpoint too",
    (Hypervisor.VSPHERE, "migration_address"): "migrates over the network that has vMotion switched on",
    (Hypervisor.HYPERV, "migration_address"): "migrates over the networks that Hyper-V has been given for it",
    (Hypervisor.HYPERV, "virtual_functions"): "takes virtual functions from its switch; sr-iov needs no list of them",
}
"""What people who write a key that a host doesn't have should know."""


def host_problems(spec: LabFile, document: Document) -> Iterator[Problem]:
    """Every mistake in hosts and vCenters that only shows when keys are seen together."""
    for name, vcenter in spec.vcenters.items():
        if vcenter.ca_file is not None and vcenter.thumbprint is not None:
            line = document.key_place(("vcenters", name, "ca_file")).line
            message = (
                f"a certificate is checked by authorities (`ca_file`, line {line}) or by its thumbprint, not by both"
            )
            yield document.problem(("vcenters", name, "thumbprint"), message, at_key=True)
    for name, host in spec.hosts.items():
        path: KeyPath = ("hosts", name)
        yield from _keys(host, path, document)
        yield from _vcenter(host, path, spec, document)
        yield from _winrm(host, path, document)
        yield from _devices(host, path, document)


def _keys(host: HostField, path: KeyPath, document: Document) -> Iterator[Problem]:
    kind = host.hypervisor
    for key in _NEEDED[kind]:
        if getattr(host, key) is None:
            yield document.problem(path, f"a host of {kind} needs `{key}`", at_key=True)
    for key in dict.fromkeys(key for keys in _OWN.values() for key in keys):
        if key not in _OWN[kind] and getattr(host, key) not in (None, []):
            of = " and ".join(other for other in Hypervisor if key in _OWN[other])
            message = f"is of {of}: a host of {kind} {_INSTEAD.get((kind, key), 'has no such thing')}"
            yield document.problem((*path, key), message, at_key=True)


def _vcenter(host: HostField, path: KeyPath, spec: LabFile, document: Document) -> Iterator[Problem]:
    if host.hypervisor is Hypervisor.VSPHERE and host.vcenter is not None and host.vcenter not in spec.vcenters:
        allowed, near = ", ".join(spec.vcenters), nearest(host.vcenter, spec.vcenters)
        message = "is none of the `vcenters` of this file"
        yield document.problem((*path, "vcenter"), message, allowed=allowed, nearest=near)


def _winrm(host: HostField, path: KeyPath, document: Document) -> Iterator[Problem]:
    if host.winrm is None:
        return
    secure = host.winrm.url.startswith("https:")
    if host.winrm.transport is WinrmTransport.BASIC and not secure:
        message = "would send the password over plain HTTP for everybody to read"
        allowed = "an https `url`, or ntlm, kerberos, credssp"
        yield document.problem((*path, "winrm", "transport"), message, allowed=allowed)
    if host.winrm.ca_file is not None and not secure:
        yield document.problem((*path, "winrm", "ca_file"), "there are no certificates over plain HTTP", at_key=True)
    if host.migration_auth is MigrationAuth.CREDSSP and host.winrm.transport is not WinrmTransport.CREDSSP:
        message = (
            f"credentials are delegated only by the WinRM transport credssp, and this host has {host.winrm.transport}"
        )
        allowed = "kerberos, or `winrm.transport: credssp`"
        yield document.problem((*path, "migration_auth"), message, allowed=allowed)


def _devices(host: HostField, path: KeyPath, document: Document) -> Iterator[Problem]:
    """Windows names PCI devices in a way of its own."""
    windows = host.hypervisor is Hypervisor.HYPERV
    form, words = (LOCATION_PATH, LOCATION_PATH_WORDS) if windows else (PCI_ADDRESS, PCI_ADDRESS_WORDS)
    for key in ("devices", "virtual_functions"):
        for index, device in enumerate(getattr(host, key)):
            if not re.fullmatch(form, device) and key in _OWN[host.hypervisor]:
                message = f"is no name of a PCI device on {host.hypervisor}"
                yield document.problem((*path, key, index), message, allowed=words)

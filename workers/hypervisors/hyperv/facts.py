"""What is true of a Hyper-V host, and what it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.model.lab import Host, Image, ImageKind, Lab
from labctl.model.result import Fact
from workers.hypervisors.base import Lack
from workers.hypervisors.hyperv import storage
from workers.hypervisors.hyperv import vm as vms
from workers.hypervisors.hyperv.answers import Answer
from workers.hypervisors.hyperv.connection import Connections

FACTS_SECONDS = 120.0
"""Deadline for reading the facts of a host: every adapter is asked for its driver's settings."""


def host_facts(connections: Connections, host: str) -> Mapping[str, Fact]:
    """Facts of a host. Sizes are bytes, rates bit/s; the driver settings of adapters (`nic.NAME.ndis.*`) are as NDIS has
    them."""
    facts = connections.call(host, "host-facts", {}, timeout=FACTS_SECONDS).facts("facts")
    running = [one for one in vms.listing(connections, host) if one.running]
    ours = sum(one.notes is not None for one in running)
    return facts | {"vms.running": len(running), "vms.ours": ours, "vms.foreign": len(running) - ours}


def lacks(connections: Connections, lab: Lab, host: str) -> tuple[Lack, ...]:
    """What the host lacks, all of it at once."""
    where = connections.host(host)
    migrates = any(host in pair for pair in lab.migration_pairs)
    answer = connections.call(
        host,
        "host-lacks",
        {
            "switches": [*sorted({network.bridge for network in lab.networks.values()})],
            "files": [*sorted({path for image in lab.images.values() if (path := _file(image))})],
            "storage": where.storage,
            "migration": migrates,
        },
    )
    found = [_lack(where, one) for one in answer.items("lacks")]
    if not where.storage:
        found.append(
            Lack(
                what=f"Host {host} has no place for the files of VMs: the lab file gives no `storage`.",
                todo=f"Add `storage` to hosts.{host}, such as D:\\labctl.",
            )
        )
    return tuple(found)


def _file(image: Image) -> str:
    return {ImageKind.DISK: image.disk, ImageKind.ISO: image.iso}.get(image.kind, "")


def _lack(where: Host, answer: Answer) -> Lack:
    what, thing, detail = answer.text("what"), answer.text("object"), answer.text("detail")
    host, hop = where.name, storage.second_hop(where, thing)
    sentences = {
        "rights": (
            f"The user {thing} may not manage Hyper-V on host {host}.",
            f"Add it to the group Hyper-V Administrators of {host} (S-1-5-32-578).",
        ),
        "module": (
            f"Host {host} has no PowerShell module Hyper-V.",
            "Install it: Install-WindowsFeature Hyper-V, Hyper-V-PowerShell.",
        ),
        "service": (f"The Virtual Machine Management service of host {host} doesn't run.", "Start the service vmms."),
        "switch": (
            f"Host {host} has no virtual switch {thing}; it has {detail or 'none'}.",
            "Make one of this name, or correct `bridge` of the network in the lab file.",
        ),
        "file": (
            f"Host {host} has no file {thing}.",
            hop or "Copy the image there, or correct its path in the lab file.",
        ),
        "storage": (
            f"Host {host} has no drive or share for the folder {thing}.",
            hop or "Correct `storage` in the lab file.",
        ),
        "migration": (
            f"Live migration is not enabled on host {host}.",
            "Enable it: Enable-VMMigration, and Set-VMMigrationNetwork for the network it may use.",
        ),
    }
    sentence, todo = sentences.get(what, (f"Host {host} lacks {what} {thing}.", ""))
    return Lack(what=sentence, todo=todo)

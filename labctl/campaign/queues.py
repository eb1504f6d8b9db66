"""Queues: each lab has one, and workers serve those of the labs that they are next to."""

from __future__ import annotations

from labctl.model.lab import Lab


def queue_of(lab: Lab) -> str:
    """The queue of a lab, `site.hypervisor`, so that workers sit next to the machines that they drive."""
    kinds = sorted({host.hypervisor.value for host in lab.hosts.values()}) or ["none"]
    return f"{lab.site}.{'+'.join(kinds)}"

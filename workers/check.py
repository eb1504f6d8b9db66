"""Checking a lab before anything is started on it: whether its hosts answer, and what is missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from labctl.errors import LabError
from labctl.model.lab import Lab
from workers.guard import Guard
from workers.machines import Machines

_NOBODY = "check"


def check_lab(lab: Lab) -> tuple[str, ...]:
    """A sentence for each thing that keeps the lab from being used now; empty when it is ready."""
    machines = Machines(lab, store=_NOBODY, guard=Guard())

    def host(name: str) -> str:
        try:
            machines.driver(name).host_facts(name)
        except LabError as error:
            return f"host {name}: {error.what} {error.why}".strip()
        return ""

    def ssh(name: str) -> str:
        try:
            machines.channel(name).wait_ready(timeout=10)
        except LabError as error:
            return f"SSH to {name}: {error.what} {error.why}".strip()
        return ""

    with_ssh = [name for name, item in lab.hosts.items() if item.ssh] + list(lab.machines)
    try:
        with ThreadPoolExecutor(max_workers=8) as pool:
            said = [*pool.map(host, lab.hosts), *pool.map(ssh, with_ssh)]
    finally:
        machines.close()
    return tuple(text for text in said if text)

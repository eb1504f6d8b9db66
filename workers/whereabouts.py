"""Where the VMs of an attempt are, and what others did to them: asked of the hypervisors before and after every transfer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from labctl.errors import LabError
from labctl.model.result import Fact
from workers.hypervisors.base import Vm
from workers.journal import Journal
from workers.machines import Machines
from workers.placing import Placed


def expected_host(vm: Vm, journal: Journal) -> str:
    """Where the VM should be now: on its host, or where the attempt has migrated it to."""
    moved = [item for item in journal.migrations if item.domain == vm.name and item.completed]
    return moved[-1].destination if moved else vm.host


def check_placement(
    placed: Placed,
    machines: Machines,
    journal: Journal,
    *,
    keep: Callable[[str, Mapping[str, Fact]], None] | None = None,
) -> None:
    """Ask where the VMs are, and give it to `keep` by subject. One that is elsewhere than we put it makes the figures
    worthless: `LabError` (`moved`)."""
    for endpoint in placed.both:
        if endpoint.vm is None:
            continue
        expected = expected_host(endpoint.vm, journal)
        found = machines.driver(endpoint.vm.host).locate(endpoint.vm)
        if keep is not None:
            keep(endpoint.subject, {"placement.host": found})
        if found != expected:
            raise LabError(
                f"VM {endpoint.vm.name} is on {found or 'no host'}, though it was put on {expected}.",
                kind="moved",
                why="Something other than labctl moved or ended it.",
                todo="Keep other tools off VMs whose names begin with labctl-.",
                host=expected,
            )


def check_incidents(placed: Placed, machines: Machines, journal: Journal, *, since: float) -> None:
    """Ask what others did to the VMs since a moment (epoch seconds). Raises `LabError` (`disturbed`) with all of it."""
    for vm in (endpoint.vm for endpoint in placed.both if endpoint.vm is not None):
        said = machines.driver(vm.host).incidents(vm, since=since)
        if said:
            raise LabError(
                f"VM {vm.name} was disturbed while it was measured.",
                kind="disturbed",
                why=" ".join(said),
                todo="Keep other people, DRS, HA and backups off VMs whose names begin with labctl-.",
                host=expected_host(vm, journal),
            )

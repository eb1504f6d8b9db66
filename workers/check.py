"""Checking a lab before anything is started on it: whether its hosts answer, what they are, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from labctl.errors import LabError
from labctl.model.lab import Lab
from labctl.model.result import Fact
from workers.guard import Guard
from workers.machines import Machines

_NOBODY = "check"
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class MemberCheck:
    """What was found of one way to one member of the lab. `problem` is empty when it can be used."""

    name: str
    way: str
    """`hypervisor`, `ssh`, or `migration to HOST`."""
    problem: str = ""
    todo: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)


def check_members(lab: Lab) -> tuple[MemberCheck, ...]:
    """Connect to every host and machine of the lab in every way that it names, all at once."""
    machines = Machines(lab, store=_NOBODY, guard=Guard())
    with_ssh = [name for name, item in lab.hosts.items() if item.ssh] + list(lab.machines)
    work: list[Callable[[], MemberCheck]] = []
    work += [lambda name=name: _hypervisor(machines, name) for name in lab.hosts]  # type: ignore[misc]
    work += [lambda name=name: _ssh(machines, name) for name in with_ssh]  # type: ignore[misc]
    work += [
        lambda source=source, destination=destination: _migration(machines, source, destination)  # type: ignore[misc]
        for source, destination in sorted(lab.migration_pairs)
    ]
    try:
        with ThreadPoolExecutor(max_workers=8) as pool:
            return tuple(future.result() for future in [pool.submit(item) for item in work])
    finally:
        machines.close()


def check_lab(lab: Lab) -> tuple[str, ...]:
    """A sentence for each host or machine that can't be used now; empty when the lab is ready.

    A migration path that is missing is no such thing: cells that need it are lab-errors, all others can run.
    """
    return tuple(
        f"{found.name} by {found.way}: {found.problem}"
        for found in check_members(lab)
        if found.problem and not found.way.startswith("migration")
    )


def _hypervisor(machines: Machines, name: str) -> MemberCheck:
    try:
        return MemberCheck(name=name, way="hypervisor", facts=machines.driver(name).host_facts(name))
    except LabError as error:
        return _broken(name, "hypervisor", error)


def _ssh(machines: Machines, name: str) -> MemberCheck:
    try:
        machines.channel(name).wait_ready(timeout=_ANSWER_SECONDS)
    except LabError as error:
        return _broken(name, "ssh", error)
    return MemberCheck(name=name, way="ssh")


def _migration(machines: Machines, source: str, destination: str) -> MemberCheck:
    way = f"migration to {destination}"
    try:
        return MemberCheck(name=source, way=way, problem=machines.driver(source).check_migration(source, destination))
    except LabError as error:
        return _broken(source, way, error)


def _broken(name: str, way: str, error: LabError) -> MemberCheck:
    return MemberCheck(name=name, way=way, problem=f"{error.what} {error.why}".strip(), todo=error.todo)

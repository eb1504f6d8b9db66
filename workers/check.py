"""Checking a lab before anything is started on it: whether its hosts answer, what they are, and what is missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from labctl.errors import LabError
from labctl.model.lab import Lab
from labctl.model.result import Fact
from workers.guard import Guard
from workers.hypervisors.base import Lack
from workers.machines import Machines

_NOBODY = "check"
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class MemberCheck:
    """What was found of one way to one member of the lab. `problem` is empty when it can be used."""

    name: str
    way: str
    """`hypervisor`, `ssh`, `winrm` (as an endpoint), or `migration to HOST`."""
    problem: str = ""
    todo: str = ""
    lacks: tuple[Lack, ...] = ()
    """All that the host lacks for the work of labctl. It can't be used as long as there is any."""
    facts: Mapping[str, Fact] = field(default_factory=dict)


def check_members(lab: Lab, *, paths: bool = True) -> tuple[MemberCheck, ...]:
    """Connect to every host and machine of the lab in every way that it names: all hosts at once, then all else. Without
    `paths` nothing is asked about migrations."""
    machines = Machines(lab, store=_NOBODY, guard=Guard())
    endpoints = [name for name, item in lab.hosts.items() if item.ssh or item.can_be_endpoint] + list(lab.machines)
    try:
        with ThreadPoolExecutor(max_workers=8) as pool:
            hosts = list(pool.map(lambda name: _hypervisor(machines, name), lab.hosts))
            silent = {item.name for item in hosts if item.problem and not item.lacks}
            inside = pool.map(lambda name: _endpoint(machines, name), endpoints)
            pairs = sorted(lab.migration_pairs) if paths else []
            moves = pool.map(lambda pair: _migration(machines, pair[0], pair[1], silent), pairs)
            return (*hosts, *inside, *moves)
    finally:
        machines.close()


def check_lab(lab: Lab) -> tuple[str, ...]:
    """A sentence for each host or machine that can't be used now; empty when the lab is ready.

    A migration path that is missing is no such thing: cells that need it are lab-errors, all others can run.
    """
    return tuple(
        f"{found.name} by {found.way}: {found.problem}" for found in check_members(lab, paths=False) if found.problem
    )


def _hypervisor(machines: Machines, name: str) -> MemberCheck:
    driver = machines.driver(name)
    try:
        facts = driver.host_facts(name)
        lacks = driver.lacks(name)
    except LabError as error:
        return _broken(name, "hypervisor", error)
    problem = " ".join(lack.what for lack in lacks)
    return MemberCheck(name=name, way="hypervisor", problem=problem, lacks=lacks, facts=facts)


def _endpoint(machines: Machines, name: str) -> MemberCheck:
    """The way to the inside of a host or machine itself."""
    way = "winrm" if name in machines.lab.hosts and machines.lab.hosts[name].winrm is not None else "ssh"
    try:
        machines.channel(name).wait_ready(timeout=_ANSWER_SECONDS)
    except LabError as error:
        return _broken(name, way, error)
    return MemberCheck(name=name, way=way)


def _migration(machines: Machines, source: str, destination: str, silent: Collection[str]) -> MemberCheck:
    """What can be said of a migration path. Nothing more is asked of hosts that are `silent` already."""
    way = f"migration to {destination}"
    for name in (source, destination):
        if name in silent:
            return MemberCheck(name=source, way=way, problem=f"host {name} itself can't be used")
    try:
        return MemberCheck(name=source, way=way, problem=machines.driver(source).check_migration(source, destination))
    except LabError as error:
        return _broken(source, way, error)


def _broken(name: str, way: str, error: LabError) -> MemberCheck:
    return MemberCheck(name=name, way=way, problem=f"{error.what} {error.why}".strip(), todo=error.todo)

"""Whether VMs can be migrated from one host to another: asked before anything is made, of the lab file and of the hosts.

What to try first on a real host: Compare-VM with `migration_auth: kerberos` over the WinRM transports ntlm and kerberos. The
cmdlet itself may ask the other host, as a second hop of labctl's login, before the management service is asked at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from labctl.errors import LabError
from labctl.model.lab import Host, Lab, MigrationAuth, WinrmTransport
from workers.hypervisors.hyperv.connection import Connections
from workers.powershell.base import ScriptError

DELEGATION_TODO = {
    MigrationAuth.KERBEROS: (
        "Set constrained delegation in Active Directory on the computer account of {source}: services cifs/{destination} and "
        "`Microsoft Virtual System Migration Service`/{destination}, with `Use any authentication protocol` (needed since "
        "Windows Server 2016); then purge its tickets (klist -li 0x3e7 purge) or restart it. Or set up CredSSP, and "
        "`migration_auth: credssp` with the WinRM transport `credssp` in the lab file."
    ),
    MigrationAuth.CREDSSP: (
        "Enable CredSSP on {source} (Enable-WSManCredSSP -Role Server) and set the WinRM transport `credssp` of it in the "
        "lab file, so that the credentials that labctl logs in with reach {destination}. Or set up Kerberos constrained "
        "delegation, and `migration_auth: kerberos`."
    ),
}
"""What to do when a host may not log in to another one, by what the lab file says that they do."""

_SSPI = re.compile(r"0x8009030[0-9a-fA-F]")
"""No credentials (E), logon denied (C), unknown target (3), no authority that could be asked (11), ..."""


_DENIED = "AccessDenied,"
"""What the `FullyQualifiedErrorId` of Hyper-V's cmdlets begins with. Who could read the VM on its source before is let in
there, so it is the other host that says it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a host says about live migration. `reached`: whether it reaches the other host; None: not tried."""

    name: str
    enabled: bool
    authentication: str
    maximum: int
    any_network: bool
    networks: tuple[str, ...]
    switches: tuple[str, ...]
    processor: str
    version: str
    reached: bool | None


def check(connections: Connections, lab: Lab, source: str, destination: str) -> str:
    """Why a VM can't be migrated between two hosts; empty when nothing speaks against it.

    Raises `LabError` when one of the two can't be asked.
    """
    reason = check_inventory(lab, source, destination)
    if reason:
        return reason
    there = settings(connections, destination)
    here = settings(connections, source, reach=there.name)
    return compare(lab, source, destination, here, there)


def check_inventory(lab: Lab, source: str, destination: str) -> str:
    """The part of `check` that the lab file answers."""
    if source == destination:
        return f"Source and destination are the same host, {source}."
    if (source, destination) not in lab.migration_pairs:
        return f"The lab has no migration path from host {source} to host {destination}."
    here, there = lab.hosts[source], lab.hosts[destination]
    for host in (here, there):
        if not host.storage:
            return f"Host {host.name} has no `storage` in the lab file."
    if here.migration_auth is MigrationAuth.CREDSSP and not _delegates(here):
        return (
            f"Host {source} is to migrate by CredSSP, but labctl logs in to it without: set the WinRM transport `credssp` of "
            f"hosts.{source} in the lab file."
        )
    return ""


def compare(lab: Lab, source: str, destination: str, here: Settings, there: Settings) -> str:
    """The part of `check` that the hosts answer."""
    for name, one in ((source, here), (destination, there)):
        wanted = lab.hosts[name].migration_auth
        if not one.enabled:
            return f"Live migration is not enabled on host {name} (Enable-VMMigration)."
        if one.authentication != wanted:
            return (
                f"Host {name} authenticates live migrations by {one.authentication}, the lab file says {wanted}: set "
                f"Set-VMHost -VirtualMachineMigrationAuthenticationType there, or `migration_auth` in the lab file."
            )
        if one.maximum < 1:
            return f"Host {name} allows no live migration at all (MaximumVirtualMachineMigrations is 0)."
        if not one.any_network and not one.networks:
            return f"Host {name} has no network for live migration (Set-VMMigrationNetwork)."
        missing = {network.bridge for network in lab.networks.values()} - set(one.switches)
        if missing:
            return (
                f"Host {name} has no virtual switch {', '.join(sorted(missing))}: a VM finds its switch on the other host by "
                "its name."
            )
    if here.processor != there.processor:
        return (
            f"Hosts {source} and {destination} have processors of different makers ({here.processor}, {there.processor}), "
            "between which no VM can be moved while it runs."
        )
    if here.reached is False:
        return (
            f"Host {source} doesn't reach host {destination} at {lab.hosts[destination].migration_address} (port 6600)."
        )
    return ""


def settings(connections: Connections, host: str, *, reach: str = "") -> Settings:
    """What a host says about live migration; with `reach` it tries that address of another one."""
    answer = connections.call(host, "migration-settings", {"reach": reach})
    return Settings(
        name=answer.text("name"),
        enabled=answer.flag("enabled"),
        authentication=answer.text("authentication"),
        maximum=answer.whole("maximum"),
        any_network=answer.flag("anyNetwork"),
        networks=answer.texts("networks"),
        switches=answer.texts("switches"),
        processor=answer.text("processor"),
        version=answer.text("version"),
        reached=answer.flag_or_none("reached"),
    )


def explained(source: Host, destination: str, error: ScriptError) -> LabError:
    """An error of Move-VM or Compare-VM. One of the security packages (SSPI, 0x8009030x) becomes one that says which
    delegation is missing and where to set it, and so does access that is denied; others stay as they are."""
    if str(error.detail.get("id", "")).startswith(_DENIED):
        return LabError(
            f"Host {destination} denies what the user of labctl asks of it from host {source.name}.",
            kind="no-delegation",
            why=f"It has no rights there, or its login is not passed on from {source.name}: {error.why}",
            todo=f"Make the user a member of Hyper-V Administrators of {destination} too. "
            + DELEGATION_TODO[source.migration_auth].format(source=source.name, destination=destination),
            host=source.name,
        )
    if not _SSPI.search(f"{error.what} {error.why}"):
        return error
    means = "CredSSP" if source.migration_auth is MigrationAuth.CREDSSP else "Kerberos constrained delegation"
    return LabError(
        f"Host {source.name} may not log in to host {destination} to hand a VM over: {means} is not set up.",
        kind="no-delegation",
        why=error.why,
        todo=DELEGATION_TODO[source.migration_auth].format(source=source.name, destination=destination),
        host=source.name,
    )


def _delegates(host: Host) -> bool:
    return host.winrm is not None and host.winrm.transport is WinrmTransport.CREDSSP

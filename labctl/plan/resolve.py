"""A cell to a work order: settings resolved, values canonical, a placement chosen."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import GuestSystem, Lab
from labctl.model.nic import Hypervisor
from labctl.model.offloads import HOST_OFFLOAD, OFFLOAD
from labctl.model.order import EndpointOrder, MigrationOrder, Placement, RunOrder, TransferOrder, VmShape
from labctl.model.scenario import Side
from labctl.model.settings import Level
from labctl.model.tools import direction
from labctl.plan.applicability import placements
from labctl.plan.settings import settings_of
from labctl.spec.campaign_contradictions import PLACEHOLDER
from labctl.spec.values import DEFAULT


def resolve(campaign: Campaign, cell: Cell, lab: Lab, *, placement: Placement | None = None) -> RunOrder:
    """The work order of a run of an applicable cell, in this placement or in the first that the lab offers.

    Raises `ValueError` when the lab offers none: such a cell is not applicable and has no runs.
    """
    if placement is None:
        offered = placements(campaign, cell, lab)
        if not offered:
            raise ValueError(f"the lab {lab.name} has no placement for the cell {cell.key}")
        placement = offered[0]
    settings = settings_of(campaign, cell)
    scenario = cell.scenario
    return RunOrder(
        scenario=scenario,
        placement=placement,
        vm=_shape(settings) if scenario.vms else None,
        transfer=_transfer(settings, lab, placement, seconds="seconds"),
        warmup=_transfer(settings, lab, placement, seconds="warmup_seconds"),
        warmups=campaign.warmups,
        transfers=campaign.transfers,
        migration=_migration(settings, campaign) if scenario.migrates else None,
        prepare=_prepare(campaign, settings) if scenario.vms else (),
        timeouts=campaign.timeouts,
        reuse=campaign.reuse,
        settings=settings,
        quiet=campaign.quiet if lab.quiet is not None else None,
        host_offloads=_switches(settings, HOST_OFFLOAD),
    )


def _shape(settings: Mapping[str, Level]) -> VmShape:
    return VmShape(
        image=str(settings["image"]),
        nic_model=str(settings["nic_model"]),
        vcpus=int(settings["vcpus"]),
        memory=int(settings["memory"]),
        queues=int(settings["queues"]),
        machine_type=str(settings["machine_type"]),
        vhost=_switch(settings, "vhost"),
        mtu=_whole(settings, "mtu"),
        offloads=_switches(settings, OFFLOAD),
    )


def _transfer(settings: Mapping[str, Level], lab: Lab, placement: Placement, *, seconds: str) -> TransferOrder:
    length = float(settings[seconds])
    way = direction({name: settings.get(name) for name in ("direction", "reverse")})
    copies = settings["tool"] == "filecopy"
    return TransferOrder(
        tool=str(settings["tool"]),
        seconds=length,
        interval=min(float(settings["interval"]), length),
        streams=int(settings["streams"]),
        window=_whole(settings, "window"),
        buffer=_whole(settings, "buffer"),
        protocol=str(settings["protocol"]),
        rate=_whole(settings, "rate"),
        reverse=way == "reverse",
        both=way == "both",
        mss=_whole(settings, "mss"),
        congestion=_text(settings, "congestion"),
        dscp=_whole(settings, "dscp"),
        family=str(settings["family"]),
        omit=float(_text(settings, "omit") or 0),
        zerocopy=bool(settings["zerocopy"]),
        latency=_whole(settings, "latency"),
        copy=str(settings["copy"]) if copies else "",
        size=int(settings["size"]) if copies else 0,
        medium=str(settings["medium"]) if copies else "",
        cache=str(settings["cache"]) if copies else "",
        sender_system=system_of(placement.sender, settings, lab),
        receiver_system=system_of(placement.receiver, settings, lab),
        client_args=tuple(shlex.split(str(settings["client_args"]))),
        server_args=tuple(shlex.split(str(settings["server_args"]))),
    )


def system_of(endpoint: EndpointOrder, settings: Mapping[str, Level], lab: Lab) -> GuestSystem:
    """What runs inside an endpoint: of a VM its image tells, of a host its hypervisor; plain machines are POSIX ones."""
    if endpoint.vm:
        return lab.images[str(settings["image"])].system
    if not endpoint.machine and lab.hosts[endpoint.host].hypervisor is Hypervisor.HYPERV:
        return GuestSystem.WINDOWS
    return GuestSystem.LINUX


def _migration(settings: Mapping[str, Level], campaign: Campaign) -> MigrationOrder:
    return MigrationOrder(
        mover=Side(str(settings["mover"])),
        at=float(settings["migrate_at"]),
        back=bool(settings["migrate_back"]),
        bandwidth=_whole(settings, "migrate_bandwidth"),
        auto_converge=bool(settings["auto_converge"]),
        post_copy=bool(settings["post_copy"]),
        deadline=campaign.timeouts.migration,
    )


def _prepare(campaign: Campaign, settings: Mapping[str, Level]) -> tuple[tuple[str, ...], ...]:
    """The commands with the levels of one's own settings in place; each stays one argument, whatever it holds."""
    return tuple(
        tuple(PLACEHOLDER.sub(lambda match: str(settings.get(match[1], "")), argument) for argument in command)
        for command in campaign.prepare
    )


def _whole(settings: Mapping[str, Level], name: str) -> int | None:
    level = settings.get(name, DEFAULT)
    return None if level == DEFAULT else int(level)


def _switches(settings: Mapping[str, Level], family: str) -> dict[str, bool]:
    """The settings of a family of switches that are on or off, without those that are left as they are."""
    return {
        name.removeprefix(family): bool(level)
        for name, level in settings.items()
        if name.startswith(family) and level != DEFAULT
    }


def _text(settings: Mapping[str, Level], name: str) -> str:
    level = settings.get(name, DEFAULT)
    return "" if level == DEFAULT else str(level)


def _switch(settings: Mapping[str, Level], name: str) -> bool | None:
    level = settings.get(name, DEFAULT)
    return None if level == DEFAULT else bool(level)

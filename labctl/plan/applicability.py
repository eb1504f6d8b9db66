"""Which cells can't be run in a lab, and why: known before anything is started, and free of cost.

Every rule names the settings that it reads. That is what lets a matrix of a million cells be judged by the few
combinations that matter instead of cell by cell (`labctl.plan.matrix`). The first rule with a reason gives the cell's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import Accelerator, GuestSystem, Lab
from labctl.model.nic import NIC_MODELS, Hypervisor
from labctl.model.offloads import HOST_OFFLOAD, OFFLOAD
from labctl.model.order import Placement
from labctl.model.scenario import OWN_HOST, Scenario
from labctl.model.settings import SETTINGS, Concern, Level, find_setting
from labctl.model.tools import FILECOPY_SETTINGS, LIMITS, SYSTEM_SETTINGS, Limit, off_system
from labctl.plan.hypervisors import ONLY_KVM, acts_nowhere, hosts_for_vms, not_on_hyperv
from labctl.plan.offloads import hosts_with_offload, not_in_guests, not_on_host
from labctl.plan.placement import FACT_PREFIX, find_placements, hosts_for, hosts_with_fact
from labctl.plan.settings import settings_of
from labctl.spec.values import DEFAULT

HOSTS = "hosts"
"""What rules read beside settings: the names of the hosts that have all facts and offloads that the cell asks for."""

Readable = Level | frozenset[str] | None
"""What a rule may read. None: left to the tool or the system."""


@dataclass(frozen=True, slots=True)
class View:
    """The part of a cell that a rule reads: its scenario, and the readables that the rule named."""

    scenario: Scenario
    levels: Mapping[str, Readable]

    def __getitem__(self, name: str) -> Readable:
        return self.levels[name]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that may stand against a cell. `judge` gives the reason in a sentence, or an empty text."""

    reads: tuple[str, ...]
    judge: Callable[[View], str]


def reason(campaign: Campaign, cell: Cell, lab: Lab) -> str:
    """Why the cell can't be run in the lab, in a sentence; empty when it can. For many cells: `planned_cells`."""
    settings = settings_of(campaign, cell)
    for rule in rules(campaign, lab, also=cell.levels):
        why = rule.judge(View(cell.scenario, {name: _read(name, settings, lab) for name in rule.reads}))
        if why:
            return why
    return ""


def placements(campaign: Campaign, cell: Cell, lab: Lab) -> tuple[Placement, ...]:
    """All placements that a run of the cell may have, in the order of the lab's hosts; empty when there is none."""
    settings = settings_of(campaign, cell)
    found, _ = find_placements(
        cell.scenario,
        lab,
        hosts=hosts_for(settings, lab),
        nic_model=str(settings.get("nic_model", "")),
        image=str(settings.get("image", "")),
        peer=str(settings.get("peer", OWN_HOST)),
    )
    return found


def rules(campaign: Campaign, lab: Lab, *, also: Iterable[str] = ()) -> tuple[Rule, ...]:
    """All rules that can speak against a cell of this campaign in this lab, in the order in which they are asked.

    `also` names settings of cells that the campaign itself doesn't name.
    """
    names = sorted({*_named(campaign), *also})
    chosen = {*_named(campaign, overrides=False), *also}
    facts = [name for name in names if name.startswith(FACT_PREFIX)]
    offloads = [name for name in names if name.startswith(OFFLOAD)]
    host_offloads = [name for name in names if name.startswith(HOST_OFFLOAD)]
    return (
        Rule(reads=(HOSTS, "nic_model", "image"), judge=partial(_can_migrate, lab)),
        *(Rule(reads=(name,), judge=partial(_declared, name, lab)) for name in facts),
        *(Rule(reads=(name,), judge=partial(_on_a_host, name, lab)) for name in host_offloads),
        Rule(reads=(HOSTS, "nic_model", "image", "peer"), judge=partial(_has_placement, lab)),
        Rule(reads=("image", "nic_model"), judge=partial(_has_driver, lab)),
        *(
            Rule(reads=(HOSTS, "nic_model", "image", name), judge=partial(_acts, name, name in chosen, lab))
            for name in ONLY_KVM
            if name in names
        ),
        *(Rule(reads=("image", "nic_model", name), judge=partial(_has_offload, name, lab)) for name in offloads),
        Rule(reads=("nic_model", "queues"), judge=_can_have_queues),
        Rule(reads=("queues", "vcpus"), judge=_enough_vcpus),
        Rule(reads=(HOSTS, "nic_model", "vhost"), judge=partial(_vhost_acts, lab)),
        Rule(reads=("mtu",), judge=partial(_network_carries, lab)),
        *(
            Rule(reads=("tool", name), judge=partial(_whole_seconds, name))
            for name in ("seconds", *(("warmup_seconds",) if campaign.warmups else ()))
        ),
        Rule(reads=("tool", "interval"), judge=_tool_interval),
        Rule(reads=("seconds", "interval"), judge=_interval_fits),
        Rule(reads=("tool", "streams"), judge=_tool_streams),
        *(Rule(reads=limit.reads, judge=partial(_tool_can, limit)) for limit in LIMITS),
        Rule(reads=(*SYSTEM_SETTINGS, "image", "peer"), judge=partial(_fits_systems, lab)),
        Rule(reads=("tool", "direction"), judge=partial(_simulated_can, lab)),
        Rule(reads=("tool", "size", "medium", "memory"), judge=_fits_memory),
        *(
            Rule(reads=("tool", name), judge=partial(_varies_the_copy, name))
            for name in FILECOPY_SETTINGS
            if name in campaign.factors
        ),
        Rule(reads=("tool",), judge=_shows_migration),
        Rule(reads=("tool", "protocol", "rate"), judge=_udp_rate),
        Rule(reads=("protocol", "buffer"), judge=_udp_buffer),
        Rule(reads=("seconds", "interval", "migrate_at", "migrate_back"), judge=_room_to_migrate),
        Rule(reads=("auto_converge", "post_copy"), judge=_one_way_to_end),
        Rule(reads=("migrate_back",), judge=partial(_starts_at_home, campaign.transfers)),
    )


def _named(campaign: Campaign, *, overrides: bool = True) -> set[str]:
    """All settings that the campaign file names anywhere, or elsewhere than in its overrides."""
    parts: list[Iterable[str]] = [campaign.factors, campaign.settings]
    parts += [selection.levels for selection in campaign.include]
    parts += [override.settings for override in campaign.overrides if overrides]
    return {name for part in parts for name in part}


def _read(name: str, settings: Mapping[str, Level], lab: Lab) -> Readable:
    if name == HOSTS:
        return hosts_for(settings, lab)
    return effective(name, settings.get(name))


def effective(name: str, level: Level | None) -> Level | None:
    """The level that acts: the setting's default when none is given, None when it is left to the tool or the system."""
    if level is None:
        setting = find_setting(name)
        return setting.default if setting is not None else None
    if level == DEFAULT:
        return None
    return level


def _can_migrate(lab: Lab, view: View) -> str:
    if not view.scenario.migrates:
        return ""
    model, hosts = NIC_MODELS[str(view["nic_model"])], view[HOSTS]
    assert isinstance(hosts, frozenset)
    kinds = {host.hypervisor for host in hosts_for_vms(hosts, model.name, str(view["image"]), lab)}
    if model.migratable or (kinds and kinds <= model.migrates_on):
        return ""
    return f"{model.name} gives the VM {model.what}, which can't be migrated"


def _declared(name: str, lab: Lab, view: View) -> str:
    level = view[name]
    if level is None or hosts_with_fact(name, level, lab):
        return ""
    return f"no host of the lab declares the fact {name.removeprefix(FACT_PREFIX)} = {level}"


def _has_placement(lab: Lab, view: View) -> str:
    hosts = view[HOSTS]
    assert isinstance(hosts, frozenset)
    peer = str(view["peer"] or OWN_HOST)
    model, image = str(view["nic_model"]), str(view["image"])
    _, why = find_placements(view.scenario, lab, hosts=hosts, nic_model=model, image=image, peer=peer)
    return why


def _has_driver(lab: Lab, view: View) -> str:
    if not view.scenario.vms:
        return ""
    name, model = str(view["image"]), str(view["nic_model"])
    image = lab.images.get(name)
    if image is None:
        return f"the lab has no image named {name}"
    if image.drivers and model not in image.drivers and not NIC_MODELS[model].passthrough:
        return f"the image {name} has no driver for {model}"
    hyperv = image.hypervisors == {Hypervisor.HYPERV} or lab.simulated is not None
    return not_on_hyperv(NIC_MODELS[model], image, lab.network()) if hyperv else ""


def _acts(name: str, chosen: bool, lab: Lab, view: View) -> str:
    hosts, level = view[HOSTS], view[name]
    if not view.scenario.vms or (name in _OF_MIGRATION and not view.scenario.migrates):
        return ""
    assert isinstance(hosts, frozenset)
    assert not isinstance(level, frozenset)
    there = hosts_for_vms(hosts, str(view["nic_model"]), str(view["image"]), lab)
    return acts_nowhere(name, level, there, chosen=chosen)


def _on_a_host(name: str, lab: Lab, view: View) -> str:
    level = view[name]
    if level is None or isinstance(level, frozenset) or hosts_with_offload(name, level, lab):
        return ""
    return next((not_on_host(name.removeprefix(HOST_OFFLOAD), host) for host in lab.hosts.values()), "")


def _has_offload(name: str, lab: Lab, view: View) -> str:
    image = lab.images.get(str(view["image"]))
    if view[name] is None or not view.scenario.vms or image is None:
        return ""
    return not_in_guests(name.removeprefix(OFFLOAD), NIC_MODELS[str(view["nic_model"])], image)


def _can_have_queues(view: View) -> str:
    model, queues = NIC_MODELS[str(view["nic_model"])], view["queues"]
    if view.scenario.vms and isinstance(queues, int) and queues > 1 and not model.multiqueue:
        return f"{model.name} has one queue pair only"
    return ""


def _enough_vcpus(view: View) -> str:
    queues, vcpus = view["queues"], view["vcpus"]
    if view.scenario.vms and isinstance(queues, int) and isinstance(vcpus, int) and queues > vcpus:
        return f"{queues} queue pairs need as many virtual CPUs, and the VM has {vcpus}"
    return ""


def _vhost_acts(lab: Lab, view: View) -> str:
    if not view.scenario.vms or view["vhost"] is not True:
        return ""
    model, hosts = NIC_MODELS[str(view["nic_model"])], view[HOSTS]
    if not model.vhost:
        return f"{model.name} has no in-kernel back end (vhost)"
    assert isinstance(hosts, frozenset)
    if all(lab.hosts[name].accelerator is Accelerator.TCG for name in hosts):
        return "under software emulation (tcg) vhost is not used: on and off would be the same run"
    return ""


def _network_carries(lab: Lab, view: View) -> str:
    mtu, network = view["mtu"], lab.network()
    if view.scenario.vms and isinstance(mtu, int) and mtu > network.mtu:
        return f"an MTU of {mtu} is more than the {network.mtu} of the network {network.name}"
    return ""


def _whole_seconds(name: str, view: View) -> str:
    seconds = view[name]
    if view["tool"] in ("iperf3", "ntttcp") and isinstance(seconds, float) and not seconds.is_integer():
        return f"{view['tool']} takes whole seconds only, and {name} is {seconds:g}"
    return ""


def _tool_interval(view: View) -> str:
    interval = view["interval"]
    if view["tool"] == "iperf3" and isinstance(interval, float) and not 0.1 <= interval <= 60:
        return f"iperf3 reports intervals of 0.1 to 60 s, and interval is {interval:g} s"
    return ""


def _interval_fits(view: View) -> str:
    interval, seconds = view["interval"], view["seconds"]
    if isinstance(interval, float) and isinstance(seconds, float) and interval > seconds:
        return "the interval is longer than the transfer"
    return ""


def _tool_streams(view: View) -> str:
    streams = view["streams"]
    if view["tool"] == "iperf3" and isinstance(streams, int) and streams > _IPERF3_STREAMS:
        return f"iperf3 makes at most {_IPERF3_STREAMS} streams, and {streams} are asked for"
    return ""


def _tool_can(limit: Limit, view: View) -> str:
    return limit.why({name: _level(view[name]) for name in limit.reads})


def _level(found: Readable) -> Level | None:
    assert not isinstance(found, frozenset)
    return found


def _fits_systems(lab: Lab, view: View) -> str:
    systems = set()
    if view.scenario.vms:
        image = lab.images.get(str(view["image"]))
        systems = {image.system} if image is not None else set()
    if view.scenario.has_peer or not view.scenario.vms:
        systems |= {_peer_system(lab, str(view["peer"] or OWN_HOST))}
    if not systems:
        return ""
    return off_system({name: _level(view[name]) for name in SYSTEM_SETTINGS}, min(systems), max(systems))


def _peer_system(lab: Lab, peer: str) -> GuestSystem:
    """Of a plain machine: POSIX; of hosts: that of all of them, for a lab is of one kind of hypervisor or the plan can't tell."""
    hyperv = all(host.hypervisor is Hypervisor.HYPERV for host in lab.hosts.values())
    return GuestSystem.WINDOWS if hyperv and peer not in lab.machines else GuestSystem.LINUX


def _simulated_can(lab: Lab, view: View) -> str:
    if lab.simulated is None:
        return ""
    if view["tool"] not in ("iperf3", "iperf"):
        return f"simulated endpoints have iperf3 and iperf, and no {view['tool']}"
    return "simulated endpoints move data one way at a time" if view["direction"] == "both" else ""


def _fits_memory(view: View) -> str:
    size, memory = view["size"], view["memory"]
    if view["tool"] != "filecopy" or view["medium"] != "ram" or not view.scenario.vms:
        return ""
    if isinstance(size, int) and isinstance(memory, int) and size > memory // 2:
        return f"a file of {size} bytes in RAM is more than half of the VM's memory ({memory} bytes)"
    return ""


def _varies_the_copy(name: str, view: View) -> str:
    return "" if view["tool"] == "filecopy" else f"{name} acts on filecopy only, and the tool is {view['tool']}"


def _shows_migration(view: View) -> str:
    if view.scenario.migrates and view["tool"] == "ntttcp":
        return "ntttcp reports no intervals with their times, so that a migration could not be seen"
    return ""


def _udp_rate(view: View) -> str:
    if view["tool"] != "ntttcp" and view["protocol"] == "udp" and view["rate"] is None:
        return "without a rate, UDP is sent at the tool's own 1 Mbit/s, which measures nothing; name a rate"
    return ""


def _udp_buffer(view: View) -> str:
    buffer = view["buffer"]
    if view["protocol"] == "udp" and isinstance(buffer, int) and buffer > _UDP_PAYLOAD:
        return f"a UDP datagram carries at most {_UDP_PAYLOAD} bytes, and buffer is {buffer}"
    return ""


def _room_to_migrate(view: View) -> str:
    if not view.scenario.migrates:
        return ""
    seconds, interval, share = view["seconds"], view["interval"], view["migrate_at"]
    assert isinstance(seconds, float)
    assert isinstance(interval, float)
    assert isinstance(share, float)
    before, rest = share * seconds, (1 - share) * seconds
    migrations = 2 if view["migrate_back"] else 1
    if before < _INTERVALS_BESIDE * interval or rest < migrations * (
        _INTERVALS_BESIDE * interval + _SHORTEST_MIGRATION
    ):
        many = "two migrations" if migrations == 2 else "a migration"
        return (
            f"the transfer is too short to show {many}: {_INTERVALS_BESIDE} intervals must lie before its start, "
            f"and as many and {_SHORTEST_MIGRATION:g} s after it"
        )
    return ""


def _starts_at_home(transfers: int, view: View) -> str:
    if view.scenario.migrates and transfers > 1 and not view["migrate_back"]:
        return "only the first transfer of a run starts before the migration: ask for migrate_back, or for one transfer"
    return ""


def _one_way_to_end(view: View) -> str:
    if view.scenario.migrates and view["auto_converge"] and view["post_copy"]:
        return "auto_converge and post_copy are two ways to end a migration; one run can show one of them"
    return ""


_OF_MIGRATION = [name for name in ONLY_KVM if SETTINGS[name].concern is Concern.MIGRATION]
_IPERF3_STREAMS = 128
"""MAX_STREAMS of iperf3 (src/iperf.h)."""
_UDP_PAYLOAD = 65507
"""65535 bytes less the headers of IPv4 (20) and UDP (8)."""
_INTERVALS_BESIDE = 3
"""Intervals that are needed before, and after, to tell what a migration changed."""
_SHORTEST_MIGRATION = 1.0
"""Seconds; a migration takes longer than this wherever it was measured."""

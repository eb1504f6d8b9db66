"""Why nothing of a campaign is started now, in words for people.

Times are by the clock of the machine that says so, with its zone. Those of a window come first by the clock that the
window itself goes by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

from labctl.campaign.known import Spots
from labctl.model.lab import Lab
from labctl.model.outcome import HostState
from labctl.plan.resources import host_resource, machine_resource, migration_slots
from labctl.plan.windows import Opening
from labctl.store import HostRecord

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WEEK = 6 * 86_400.0
_FEW = 4
"""So many hosts are named."""
_OPENS = "window opens "
_TOO_LONG = "nothing that is left fits before "


def opens(opening: Opening, zone: str, now: float) -> str:
    """No window is open."""
    return f"{_OPENS}{_by_both(opening.start, zone, now)}"


def too_long(opening: Opening, zone: str, now: float) -> str:
    """A window is open, but closes before any run would end."""
    return f"{_TOO_LONG}{_by_both(opening.end, zone, now)}"


def never_fits(shortest: float, longest: float) -> str:
    """No window will ever be long enough."""
    return (
        f"What is left fits in none of its windows: a run takes {shortest / 60:,.1f} min at the least, as those before did, "
        f"and the longest window {longest / 60:,.1f} min"
    )


def is_of_window(hold: str) -> bool:
    """Whether it is a window that keeps a campaign from starting runs."""
    return hold.startswith((_OPENS, _TOO_LONG))


def backing_off(moment: float, now: float) -> str:
    """All that is left waits until it may be tried again."""
    return f"what is left had lab-errors and is tried again from {_here(moment, now)} on"


def _by_both(instant: float, zone: str, now: float) -> str:
    """A time of a window: `Mon 22:00 Europe/Dublin (21:00 UTC)`, once where this machine's clock shows the same."""
    there, here = datetime.fromtimestamp(instant, ZoneInfo(zone)), datetime.fromtimestamp(instant).astimezone()
    text = f"{_wall_time(there, datetime.fromtimestamp(now, there.tzinfo))} {zone}"
    if there.utcoffset() == here.utcoffset():
        return text
    return f"{text} ({here:%H:%M %Z})" if there.date() == here.date() else f"{text} ({_here(instant, now)})"


def _here(instant: float, now: float) -> str:
    """`21:00 UTC`, with the day when it is not today."""
    here = datetime.fromtimestamp(instant).astimezone()
    return f"{_wall_time(here, datetime.fromtimestamp(now).astimezone())} {here:%Z}"


def _wall_time(moment: datetime, now: datetime) -> str:
    """`22:00` when that is today, else with the day, and with the date when it is not within a week."""
    time = f"{moment:%H:%M}"
    if moment.date() == now.date():
        return time
    day = _DAYS[moment.weekday()]
    return f"{day} {time}" if 0 <= (moment - now).total_seconds() < _WEEK else f"{day} {moment:%Y-%m-%d} {time}"


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What stands on the hosts of a lab: who leases what, for whom something is kept, and which hosts are not good."""

    lessees: Mapping[str, int]
    """The campaign that leases a resource, by its name."""
    unclean: frozenset[str] = frozenset()
    """What is leased until the leftovers of its attempt are removed."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """The campaign for whose waiting run a resource is kept, by its name."""
    bad: Mapping[str, HostRecord] = field(default_factory=dict)
    """Hosts that are not good, by name."""


def busy(ground: Ground, campaign_id: int, lab: Lab, spots: Spots) -> str:
    """What keeps runs of a campaign from all of their hosts. Empty when that is only the campaign itself."""
    if spots.placements[0].destination and (turn := _slots(ground, campaign_id, lab)):
        return turn
    bad: list[str] = []
    unclean: list[str] = []
    leased: dict[int, list[str]] = {}
    kept: dict[int, list[str]] = {}
    for name in spots.hosts:
        if name in ground.bad:
            bad.append(_not_good(ground.bad[name]))
            continue
        machine = (lab.hosts.get(name) or lab.machines[name]).machine
        resources = host_resource(name), machine_resource(machine)
        lessee = next((ground.lessees[one] for one in resources if one in ground.lessees), None)
        holder = next((ground.kept[one] for one in resources if one in ground.kept), None)
        if not ground.unclean.isdisjoint(resources):
            unclean.append(name)
        elif lessee is not None:
            leased.setdefault(lessee, []).append(name)
        elif holder is not None:
            kept.setdefault(holder, []).append(name)
    said = bad[:_FEW] + ([f"and {len(bad) - _FEW} more hosts are not good"] if len(bad) > _FEW else [])
    said += [f"{_hosts(unclean)} leased until what an attempt left there is removed"] if unclean else []
    said += [f"{_hosts(names)} leased by campaign {other}" for other, names in leased.items() if other != campaign_id]
    said += [
        f"{_hosts(names)} kept for a run of campaign {other}" for other, names in kept.items() if other != campaign_id
    ]
    return "; ".join(said)


def _not_good(host: HostRecord) -> str:
    state = "out" if host.state is HostState.OUT else host.state.value
    return f"host {host.host} is {state}: {host.why}".removesuffix(": ").removesuffix(".")


def _hosts(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"host {names[0]} is"
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"hosts {', '.join(names[:_FEW])}{more} are"


def _slots(ground: Ground, campaign_id: int, lab: Lab) -> str:
    """Who migrates, when nobody else may meanwhile."""
    slots = migration_slots(lab)
    migrating = [ground.lessees[slot] for slot in slots if slot in ground.lessees]
    others = sorted(set(migrating) - {campaign_id})
    if len(migrating) < len(slots) or not others:
        return ""
    runs = "run" if len(slots) == 1 else "runs"
    return f"the lab allows {len(slots)} migrating {runs} at once: {_campaigns(others)}"


def _campaigns(numbers: Sequence[int]) -> str:
    return f"campaign{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"

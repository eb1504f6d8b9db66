"""Offloads of the hosts of a run: set before its VMs are placed, read back, and restored when it ends, however it ends.

What a setting was is recorded in the store before it is changed. It is restored by the attempt's release; when its worker
has died by who cleans after it; and what is left even then (a host that did not answer) by the next attempt on the host,
before that changes or measures anything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from labctl.errors import AttemptCancelled, LabError
from labctl.model.result import Fact
from labctl.store import Adjustment, Change, ClaimedAttempt, Store
from workers.channels.windows import WindowsChannel
from workers.guard import Guard
from workers.machines import Machines
from workers.stack.base import Knob, Reading, Stack
from workers.stack.linux import LinuxStack
from workers.stack.windows import WindowsStack
from workers.together import together

log = logging.getLogger(__name__)

BUSY = "settings-busy"
"""The kind of error of settings that another process is restoring: nobody's fault, and over in a moment."""


def set_up(claimed: ClaimedAttempt, machines: Machines, store: Store, guard: Guard) -> Mapping[str, Mapping[str, Fact]]:
    """Give the hosts of an attempt the offloads that it asks for, after restoring what earlier attempts have left changed
    there. Returns how they stand, as facts of each host.

    Raises `LabError`: `offload-missing`, `offload-mismatch`, `not-restored`, `settings-busy`, or what the channel to the host
    raises.
    """
    hosts = _hosts(claimed, machines)
    if not hosts:
        return {}
    left = [item for item in store.idle_adjustments(machines.lab.name) if item.host in hosts]
    for error in restore_left(left, machines, store).values():
        raise error
    if not claimed.order.host_offloads:
        return {}

    def one(host: str) -> Mapping[str, Fact]:
        return _set_up(host, claimed, machines, store, guard)

    return dict(zip(hosts, together(hosts, one), strict=True))


def verify(claimed: ClaimedAttempt, machines: Machines) -> Mapping[str, Mapping[str, Fact]]:
    """How the offloads that an attempt asks for stand on its hosts now, as facts of each host. Raises `LabError`
    (`offload-mismatch`) where somebody has changed them meanwhile."""
    hosts = _hosts(claimed, machines) if claimed.order.host_offloads else ()

    def one(host: str) -> Mapping[str, Fact]:
        stack = stack_of(machines, host)
        stack.look()
        return _verified(host, stack, claimed.order.host_offloads, said="")

    return dict(zip(hosts, together(hosts, one), strict=True))


def release(claimed: ClaimedAttempt, machines: Machines, store: Store, guard: Guard) -> tuple[str, ...]:
    """Restore what an attempt in progress has changed on its hosts. Returns a sentence for each host on which that did not
    work; it stays recorded then. Raises `AttemptCancelled` when the attempt was given up: others restore it then."""
    mine = store.adjustments_of(claimed.id) if claimed.order.host_offloads else ()
    if not mine:
        return ()
    guard.confirm()
    errors = _restore(mine, machines, store)
    return tuple(error.what for error in errors.values())


def restore_left(left: Iterable[Adjustment], machines: Machines, store: Store) -> dict[str, LabError]:
    """Restore what attempts that are no longer in progress have left changed. Returns the hosts on which something is not
    what it was, each with the reason."""
    busy: dict[str, LabError] = {}
    taken: list[Adjustment] = []
    for item in left:
        if store.take_adjustment(item):
            taken.append(item)
        elif any(item.id == still.id for still in store.open_adjustments(item.lab, host=item.host)):
            busy[item.host] = LabError(
                f"Settings of host {item.host} are just being restored by somebody else.", kind=BUSY, host=item.host
            )
    return busy | _restore(taken, machines, store)


def stack_of(machines: Machines, host: str) -> Stack:
    """The network stack of a host. Raises `LabError` (`no-channel`) when the lab file gives no way to it."""
    channel, network = machines.channel(host), machines.lab.network()
    address = machines.lab.hosts[host].address
    where = {"bridge": network.bridge, "address": str(address.ip) if address is not None else ""}
    if isinstance(channel, WindowsChannel):
        return WindowsStack(channel.powershell, **where)
    return LinuxStack(channel, **where)


def _hosts(claimed: ClaimedAttempt, machines: Machines) -> tuple[str, ...]:
    """The hosts of an attempt that have settings: plain machines are nobody's to change, and simulated hosts pretend."""
    if machines.lab.simulated is not None:
        return ()
    return tuple(name for name in claimed.order.placement.hosts if name in machines.lab.hosts)


def _set_up(host: str, claimed: ClaimedAttempt, machines: Machines, store: Store, guard: Guard) -> Mapping[str, Fact]:
    asked, stack = claimed.order.host_offloads, stack_of(machines, host)
    stack.look()
    knobs = [knob for offload, on in asked.items() for knob in _changes(host, stack, offload, on)]
    if not knobs:
        return _verified(host, stack, asked, said="")
    guard.confirm()
    store.record_adjustments(machines.lab.name, claimed.id, [_change(host, stack, knob) for knob in knobs])
    guard.confirm()
    said = stack.set(knobs)
    stack.look()
    return _verified(host, stack, asked, said=said)


def _changes(host: str, stack: Stack, offload: str, on: bool) -> tuple[Knob, ...]:
    """What has to be set so that an offload is on, or off, on all adapters that have it."""
    readings = stack.readings(offload)
    if not readings:
        among = f"Its adapters there: {', '.join(stack.adapters())}." if stack.adapters() else "It has none there."
        raise LabError(
            f"Host {host} has no adapter under the test network with an offload {offload}.",
            kind="offload-missing",
            why=among,
            todo=f"Leave out host_offload.{offload}, or connect the test network to an adapter of the host that has it.",
            host=host,
        )
    return tuple(knob for reading in readings if reading.on is not on for knob in reading.changes)


def _change(host: str, stack: Stack, knob: Knob) -> Change:
    before = stack.value(knob.adapter, knob.name)
    assert before is not None
    return Change(host=host, adapter=knob.adapter, name=knob.name, before=before, asked=knob.value)


def _verified(host: str, stack: Stack, asked: Mapping[str, bool], *, said: str) -> Mapping[str, Fact]:
    """How the offloads stand, as facts, if that is what was asked for."""
    facts: dict[str, Fact] = {"test_adapters": ", ".join(stack.adapters()) or None}
    for offload, on in asked.items():
        for reading in stack.readings(offload):
            if reading.on is not on:
                raise _mismatch(host, offload, on, reading, said)
            name = f"{reading.adapter}.{offload}" if reading.adapter else offload
            facts[f"offload.{name}"] = "on" if reading.on else "off"
    return facts


def _mismatch(host: str, offload: str, on: bool, reading: Reading, said: str) -> LabError:
    of = f" of adapter {reading.adapter}" if reading.adapter else ""
    return LabError(
        f"Host {host}: offload {offload}{of} is {reading.found}, though {'on' if on else 'off'} was asked for.",
        kind="offload-mismatch",
        why=said or ("Something else has changed it." if reading.changes else "The driver keeps it fixed."),
        todo=f"Leave out this level of host_offload.{offload}, and keep other tools off the host's adapters.",
        host=host,
    )


def _restore(taken: Sequence[Adjustment], machines: Machines, store: Store) -> dict[str, LabError]:
    """Restore adjustments that are ours to restore, host by host, and say in the store what came of each."""
    by_host = {
        host: [item for item in taken if item.host == host] for host in dict.fromkeys(each.host for each in taken)
    }
    errors: dict[str, LabError] = {}
    for host, items in by_host.items():
        try:
            still = _restore_host(host, items, machines)
        except AttemptCancelled:
            raise
        except LabError as error:
            still = dict.fromkeys((item.id for item in items), f"{error.what} {error.why}".strip())
        for item in items:
            if item.id in still:
                store.explain_adjustment(item, why=still[item.id])
            else:
                store.close_adjustment(item)
        if still:
            errors[host] = _not_restored(host, [item for item in items if item.id in still], next(iter(still.values())))
            log.warning("%s", errors[host])
    return errors


def _restore_host(host: str, items: Sequence[Adjustment], machines: Machines) -> dict[int, str]:
    """Restore settings of one host, those that are not what they were. Returns why some still are not, by their id."""
    if host not in machines.lab.hosts:
        return {item.id: "The lab has no such host any more." for item in items}
    stack = stack_of(machines, host)
    stack.look()
    wrong = [item for item in items if stack.value(item.adapter, item.name) not in (item.before, None)]
    said = ""
    if wrong:
        said = stack.set([Knob(adapter=item.adapter, name=item.name, value=item.before) for item in wrong])
        stack.look()
    found = {item.id: stack.value(item.adapter, item.name) for item in items}
    return {
        item.id: f"it is {found[item.id] or 'not there'}. {said}".strip()
        for item in items
        if found[item.id] != item.before
    }


def _not_restored(host: str, items: Sequence[Adjustment], why: str) -> LabError:
    names = ", ".join(f"{item.adapter} {item.name} {item.before}".strip() for item in items)
    return LabError(
        f"Settings of host {host} could not be restored to what they were before a run: {names}.",
        kind="not-restored",
        why=why,
        todo=f"Set them by hand, then `labctl hosts release {host}`.",
        host=host,
    )

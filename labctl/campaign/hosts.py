"""What the hosts of labs do and how they have behaved, and what people ask of them: take one out, let one back in."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.errors import SpecError
from labctl.model.outcome import HostState
from labctl.spec.values import nearest
from labctl.store import ActiveAttempt, Adjustment, HostRecord, LeaseLine, Store

_PREFIX = "host:"


@dataclass(frozen=True, kw_only=True)
class HostLine:
    """One host, or plain machine, of a lab. `lease` says for whom it works; `attempt` what is done on it."""

    record: HostRecord
    lease: LeaseLine | None = None
    attempt: ActiveAttempt | None = None
    """None while it is leased: it is being cleaned after an attempt that was lost or left something behind."""
    changed: tuple[Adjustment, ...] = ()
    """Its settings that attempts have changed, and that are not restored yet."""


def host_lines(store: Store, lab: str | None = None) -> tuple[HostLine, ...]:
    """All hosts of a lab, or of all labs, in the order of the newest campaign's lab file; hosts that are known from
    elsewhere only come last. Raises `SpecError` when no campaign was ever submitted for the lab."""
    attempts = {attempt.id: attempt for attempt in store.active_attempts()}
    lines: list[HostLine] = []
    for name, newest in _labs(store, lab).items():
        found = {record.host: record for record in store.hosts(name)}
        leases = {line.resource.removeprefix(_PREFIX): line for line in _leases(store, name)}
        here, changed = store.head(newest).lab, store.open_adjustments(name)
        for host in dict.fromkeys([*here.hosts, *here.machines, *found, *leases, *(item.host for item in changed)]):
            lease = leases.get(host)
            lines.append(
                HostLine(
                    record=found.get(host) or HostRecord(lab=name, host=host),
                    lease=lease,
                    attempt=attempts.get(lease.attempt_id) if lease is not None else None,
                    changed=tuple(item for item in changed if item.host == host),
                )
            )
    return tuple(lines)


def release_host(store: Store, lab: str, host: str) -> None:
    """Give a host runs again that is quarantined or out; its lab-errors and failed checks are forgotten. Settings of it that
    could not be restored are taken to be right by now: whoever lets it back in has seen to them.

    Raises `SpecError` when there is no such host.
    """
    _require(store, lab, host)
    for left in store.idle_adjustments(lab, host=host):
        if left.why:
            store.close_adjustment(left)
    store.set_host(lab, host, HostState.GOOD)


def take_host_out(store: Store, lab: str, host: str, *, why: str) -> None:
    """Give a host no more runs until a person lets it back in; what is in progress on it finishes.

    Raises `SpecError` when there is no such host, or no reason.
    """
    _require(store, lab, host)
    if not why.strip():
        raise SpecError("A host is taken out for a reason.", todo="Say it with --why, for those who wonder tomorrow.")
    store.set_host(lab, host, HostState.OUT, why=why.strip())


def _labs(store: Store, lab: str | None) -> dict[str, int]:
    """The labs asked for, each with its newest campaign."""
    labs = store.labs()
    if lab is None:
        return labs
    if lab not in labs:
        near = nearest(lab, labs)
        raise SpecError(
            f"No campaign was ever submitted for a lab {lab}.",
            why=f"Labs of this store: {', '.join(labs) or 'none'}.",
            todo=f"Did you mean {near}?" if near else "Name the lab as its file does under `lab`.",
        )
    return {lab: labs[lab]}


def _leases(store: Store, lab: str) -> list[LeaseLine]:
    return [line for line in store.leases(lab) if line.resource.startswith(_PREFIX)]


def _require(store: Store, lab: str, host: str) -> None:
    hosts = [line.record.host for line in host_lines(store, lab)]
    if host not in hosts:
        near = nearest(host, hosts)
        raise SpecError(
            f"The lab {lab} has no host {host}.",
            why=f"Its hosts: {', '.join(hosts)}.",
            todo=f"Did you mean {near}?" if near else "",
        )

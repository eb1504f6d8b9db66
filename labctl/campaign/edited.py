"""What is different between two states of a lab file. A campaign keeps the lab that it was submitted with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass, replace

from labctl.model.lab import Host, Lab, Machine


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One key of the lab and what it was and is, as text. None: it was, or is, not there."""

    key: str
    """Where, as a path: `hosts.a.uri`."""
    kept: str | None
    now: str | None

    def __str__(self) -> str:
        if self.kept is None:
            return f"{self.key} is new"
        if self.now is None:
            return f"{self.key} is gone"
        return f"{self.key} was {self.kept or 'empty'} and is {self.now or 'empty'}"


def differences(kept: Lab, now: Lab) -> tuple[Difference, ...]:
    """What is different in `now`, in the order of the model; nothing for two labs that are the same.

    A host that is only in one of them is one difference: neither the migration paths from and to it are told, nor, where
    labctl chooses the addresses, that those of others have moved up.
    """
    alone = (kept.hosts.keys() ^ now.hosts.keys()) | (kept.machines.keys() ^ now.machines.keys())
    if alone and _has_chosen_addresses(kept) and _has_chosen_addresses(now):
        now = replace(
            now,
            hosts={name: _host_at(host, kept.hosts.get(name, host)) for name, host in now.hosts.items()},
            machines={name: _machine_at(box, kept.machines.get(name, box)) for name, box in now.machines.items()},
        )
    return tuple(_differences("", _without_paths(kept, alone), _without_paths(now, alone)))


def _has_chosen_addresses(lab: Lab) -> bool:
    """Whether the addresses of the lab are not in its file."""
    return lab.simulated is not None or lab.embedded is not None


def _host_at(host: Host, other: Host) -> Host:
    """A host with the addresses of another."""
    return replace(host, address=other.address, migration_address=other.migration_address, ssh=other.ssh)


def _machine_at(machine: Machine, other: Machine) -> Machine:
    """A plain machine with the addresses of another."""
    return replace(machine, address=other.address, ssh=other.ssh)


def _without_paths(lab: Lab, hosts: Set[str]) -> Lab:
    """The lab without the migration paths from and to some hosts."""
    return replace(lab, migration_pairs=frozenset(pair for pair in lab.migration_pairs if hosts.isdisjoint(pair)))


def _differences(path: str, kept: object, now: object) -> Iterator[Difference]:
    if kept == now:
        return
    if is_dataclass(kept) and type(kept) is type(now):
        for field in fields(kept):
            name = f"{path}.{field.name}" if path else field.name
            yield from _differences(name, getattr(kept, field.name), getattr(now, field.name))
    elif isinstance(kept, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*kept, *now]):
            if key in kept and key in now:
                yield from _differences(f"{path}.{key}", kept[key], now[key])
            else:
                yield _one_sided(f"{path}.{key}", there=key in kept)
    elif isinstance(kept, frozenset) and isinstance(now, frozenset):
        for item in sorted(kept ^ now):
            yield _one_sided(f"{path}[{_text(item)}]", there=item in kept)
    else:
        yield Difference(key=path, kept=_text(kept), now=_text(now))


def _one_sided(key: str, *, there: bool) -> Difference:
    return Difference(key=key, kept="there" if there else None, now=None if there else "there")


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(_text(item) for item in value)
    if is_dataclass(value) and type(value).__str__ is object.__str__:
        return "given"
    return "not given" if value is None else str(value)

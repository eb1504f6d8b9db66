"""What became of a night: a verdict, and when a promise was broken a timeline that is good enough to find out why."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.schedules.lines import Line, read_lines
from tests.schedules.night import Night
from tests.schedules.promises import Left, broken
from workers.hypervisors.simulated.faults import hits

FILE = "verdict.json"
_ORDINARY = frozenset({"locate", "run", "ready", "read_back", "host_facts", "check_migration", "finished", "output", "answer",
                       "host_load", "wait_ready", "store.change_vm", "store.record_vm", "store.tell"})  # fmt: skip
"""Lines that the timeline leaves out."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a night ended. `met` counts what it met: troubles, runs by outcome, attempts given up, ..."""

    seed: int
    seconds: float
    broken: tuple[str, ...]
    met: dict[str, int]
    timeline: tuple[str, ...]

    def to_text(self) -> str:
        """For a file."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Verdict:
        """What `to_text` wrote."""
        values = json.loads(text)
        return Verdict(**values | {"broken": tuple(values["broken"]), "timeline": tuple(values["timeline"])})


def judge(night: Night, *, seconds: float) -> Verdict:
    """Look at what a night has left."""
    lines = tuple(read_lines(night.directory))
    left = Left(
        database=night.crew.state / "labctl.sqlite",
        world=night.world,
        lab=night.lab,
        lines=lines,
        strangers=night.strangers,
        processes=night.crew.left(),
        paused_for_good=frozenset(night.paused_for_good),
        reopened=night.reopened,
        logs=tuple(sorted([*night.crew.logs.glob("service-*.log"), *night.crew.state.glob("logs/*.log")])),
    )
    found = (*night.broken, *broken(left))
    return Verdict(
        seed=night.schedule.seed,
        seconds=seconds,
        broken=found,
        met=_met(night, left),
        timeline=tuple(_timeline(night, left)),
    )


def _met(night: Night, left: Left) -> dict[str, int]:
    met = {"nights": 1, "services started": sum("is started, process" in note.text for note in night.notes)}
    for happening in night.schedule.happenings:
        if any(note.text == str(happening) for note in night.notes):
            met[f"trouble: {happening.trouble}"] = 1
    for strike in hits(night.world):
        met[f"strike: {strike.kind}"] = met.get(f"strike: {strike.kind}", 0) + 1
    for line in left.lines:
        if line.what in ("killed", "stopped"):
            word = f"{line.role} {line.what} at a line"
            met[word] = met.get(word, 0) + 1
    for row in left.rows("SELECT state, outcome, count(*) AS n FROM runs GROUP BY state, outcome"):
        met[f"runs: {row['outcome'] or row['state']}"] = row["n"]
    for row in left.rows("SELECT state, kind, count(*) AS n FROM attempts GROUP BY state, kind"):
        met[f"attempts: {row['state']} {row['kind'] or ''}".strip()] = row["n"]
    return met


def _timeline(night: Night, left: Left) -> Iterable[str]:
    """All that happened, in order, by the second of the night."""
    zero = night.began
    entries = [(note.at, f"## {note.text}") for note in night.notes]
    entries += [(line.at, _said(line)) for line in left.lines if line.what not in _ORDINARY]
    entries += [
        (strike.at, f"!! {strike.kind} {strike.operation} {strike.host} {strike.vm}") for strike in hits(night.world)
    ]
    yield from (f"{at - zero:9.3f}  {text}" for at, text in sorted(entries))
    for table in ("campaigns", "runs", "attempts", "leases", "vms", "hosts", "workers", "events"):
        for row in left.rows(f"SELECT * FROM {table}"):
            short = {
                key: value for key, value in row.items() if not key.endswith(("document", "_text", "shape", "versions"))
            }
            yield f"{table}: {short}"
    for log in left.logs:
        yield f"--- {log.name}"
        with suppress(OSError):
            yield from log.read_text(errors="replace").splitlines()[-400:]


def _said(line: Line) -> str:
    return f"{line.role} {line.pid} {line.actor}: {line.what} {line.host} {line.vm} {line.said}".rstrip()


def read_verdict(directory: Path) -> Verdict | None:
    """The verdict of a night; None when it has not come to one."""
    with suppress(FileNotFoundError):
        return Verdict.from_text((directory / FILE).read_text())
    return None

"""What processes of a night do, written down line by line, and lines before which they are killed or stopped.

A line is an operation on the simulated lab, a call of the store (before it and after it), or a line of Python. What was
done is kept in one file, to which every process appends whole lines, so that one that is killed leaves what it had done.
Occurrences are counted in files over all processes.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

FILE = "lines.jsonl"
PLAN = "deaths.json"
MORNING = "morning"
"""A file that is there from when on nobody dies any more."""
OPERATION, STORE, PYTHON = "operation", "store", "python"
"""Kinds of lines."""
ENGINE, WORKER = "engine", "worker"
"""Roles of processes."""

_STORE_CALLS = ("start_attempts", "claim", "record_vm", "change_vm", "take_parked", "park_vm", "take_idle", "accept",
                "lose_attempts", "cleaned", "set_state", "finish", "add_runs", "end_pending", "set_host", "check_failed",
                "delay_check", "submit", "tell")  # fmt: skip
"""Calls of the store that write, but for signs of life."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """Before the n-th line of a kind, counted over all processes of a role, the process is killed, or stopped."""

    role: str
    kind: str
    nth: int
    stop: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """What a process did. `at` is in seconds of the monotonic clock of the machine."""

    at: float
    pid: int
    role: str
    actor: str
    """`attempt 7`, `cleaning 1`, or empty."""
    what: str
    host: str = ""
    vm: str = ""
    said: str = ""
    confirmed: float = 0.0
    """When its thread last asked whether its token is good, and was told so."""


class Lines:
    """The lines of this process."""

    def __init__(self, directory: Path, role: str) -> None:
        self.role = role
        self.actor = ""
        self._directory = directory
        self._file = os.open(directory / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._deaths = [
            (number, death) for number, death in enumerate(read_deaths(directory)) if death.role == role
        ]  # fmt: skip
        self.confirmed = threading.local()
        self._left = 0
        """How many lines of Python are left until the process is killed."""

    def write(self, what: str, *, host: str = "", vm: str = "", said: str = "") -> None:
        """Write down what is done."""
        line = Line(at=time.monotonic(), pid=os.getpid(), role=self.role, actor=self.actor, what=what, host=host, vm=vm,
                    said=said, confirmed=getattr(self.confirmed, "at", 0.0))  # fmt: skip
        os.write(self._file, (json.dumps(asdict(line)) + "\n").encode())

    def reach(self, kind: str) -> None:
        """A line is reached: whoever is to die here dies."""
        for number, death in self._deaths:
            if death.kind == kind and self._count(number) == death.nth and not self._is_morning():
                self.write("stopped" if death.stop else "killed", said=f"before its line {death.nth} ({kind})")
                os.kill(os.getpid(), signal.SIGSTOP if death.stop else signal.SIGKILL)

    def trace(self) -> None:
        """From now on, count lines of Python, if there is one before which this process is to die."""
        if not self._left:
            self._left = next((death.nth for number, death in self._deaths if self._takes(number, death)), 0)
        if self._left:
            threading.settrace(self._trace_call)
            sys.settrace(self._trace_call)

    def _takes(self, number: int, death: Death) -> bool:
        """Whether this process is the one in which lines of Python are counted: only one is."""
        return death.kind == PYTHON and self._count(number) == 1

    def _trace_call(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        ours = any(f"/{room}/" in frame.f_code.co_filename for room in ("labctl", "workers"))
        return self._trace_line if ours and "site-packages" not in frame.f_code.co_filename else None

    def _trace_line(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        self._left -= 1
        if self._left == 0 and not self._is_morning():
            self.write("killed", said=f"before line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}")
            os.kill(os.getpid(), signal.SIGKILL)
        return self._trace_line

    def _is_morning(self) -> bool:
        """Whether it is too late to die."""
        return (self._directory / MORNING).exists()

    def _count(self, number: int) -> int:
        """How often a line was reached: one byte is appended for each, and where it came to lie is the number."""
        file = os.open(self._directory / f"count-{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, b".")
            return os.lseek(file, 0, os.SEEK_CUR)
        finally:
            os.close(file)


def watch_store(lines: Lines) -> None:
    """Have every call of the store that writes written down, and make it two lines: one before it, one after it."""
    from labctl.store import Store

    for name in _STORE_CALLS:
        setattr(Store, name, _watched(name, getattr(Store, name), lines))


def _watched(name: str, call: Callable[..., Any], lines: Lines) -> Callable[..., Any]:
    @functools.wraps(call)
    def watched(store: object, *args: Any, **named: object) -> object:
        if name in _OF_MANY and not args[_OF_MANY[name]]:
            return call(store, *args, **named)
        lines.reach(STORE)
        found = call(store, *args, **named)
        said = _SAID.get(name, _plainly)(args, found)
        lines.write(f"store.{name}", said=said)
        lines.reach(STORE)
        return found

    return watched


_OF_MANY = {"start_attempts": 1, "lose_attempts": 0}
"""Calls that do something to several things, with the position of those: for none they are no line."""


Says = Callable[[tuple[Any, ...], Any], str]
"""What is written down of a call, from its arguments and what it gave."""


def _plainly(_: tuple[Any, ...], found: Any) -> str:
    return "" if found is None else str(found)[:200]


def _given_up(_: tuple[Any, ...], found: Any) -> str:
    return json.dumps(list(found))


_SAID: Mapping[str, Says] = {
    "start_attempts": lambda _, found: json.dumps([handle.id for handle in found if handle is not None]),
    "claim": lambda args, found: f"{args[0].id} {'claimed' if found is not None else 'refused'}",
    "accept": lambda args, found: (
        f"{args[0].id} {'refused' if found is None else args[1].detail.outcome} {args[1].detail.kind}"
        f"{' again' if args[2].again else ''}"
    ),
    "lose_attempts": _given_up,
    "cleaned": lambda args, _: str(args[0]),
    "record_vm": lambda _, found: found.name,
    "change_vm": lambda args, _: str(args[0]),
    "set_state": lambda args, found: f"{args[0]} {args[1]} {found}",
    "tell": lambda args, found: f"{args[0].kind} {found}",
}


def watch_lab(lines: Lines, *, call_seconds: float) -> None:
    """Have every operation on the simulated lab written down, with whose it is; and shorten its deadline."""
    from workers import attempt, cleaning
    from workers.fence import Fence
    from workers.hypervisors.simulated.world import World

    before, confirm = World.before, Fence.confirm
    mine: dict[str, set[str]] = {}

    def watched(world: World, operation: str, host: str, vm: str = "", *, seconds: float = call_seconds,
                interruptible: bool = False) -> bool:  # fmt: skip
        lines.write(operation, host=host, vm=vm)
        lines.reach(OPERATION)
        mine.setdefault(lines.actor, set()).add(vm)
        if operation == "start":
            _write_company(lines, world, host, mine[lines.actor])
        return before(world, operation, host, vm, seconds=seconds, interruptible=interruptible)

    def confirmed(fence: Fence) -> None:
        asked = time.monotonic()
        confirm(fence)
        lines.confirmed.at = asked

    World.before = watched  # type: ignore[method-assign,assignment]
    Fence.confirm = confirmed  # type: ignore[method-assign,assignment]
    carry_out, clean_campaign = attempt.Attempt.carry_out, cleaning.clean_campaign

    def carried_out(work: attempt.Attempt) -> object:
        lines.actor = f"attempt {work._claimed.id}"
        result = carry_out(work)
        lines.write("ended", said=f"{result.detail.outcome} {result.detail.kind}: {result.detail.what}"[:300])
        return result

    def cleaned(store: Any, campaign_id: int) -> None:
        lines.actor = f"cleaning {campaign_id}"
        clean_campaign(store, campaign_id)
        lines.write("cleaned")

    attempt.Attempt.carry_out = carried_out  # type: ignore[method-assign,assignment]
    cleaning.clean_campaign = cleaned


def _write_company(lines: Lines, world: Any, host: str, mine: set[str]) -> None:
    """Write down which running VMs of other attempts are on the machine on which a transfer is about to start."""
    from workers.hypervisors.simulated import vm as vms

    hosts = world.lab.hosts
    beside = [name for name in hosts if host in hosts and hosts[name].machine == hosts[host].machine]
    for vm in (found for name in beside for found in vms.everything(world, name)):
        if vm.mark is not None and vm.mark.lab == world.lab.name and not vm.paused and vm.name not in mine:
            lines.write("company", host=host, vm=vm.name, said=str(vm.mark.attempt))


def write_deaths(directory: Path, deaths: list[Death]) -> None:
    """Say who is to die where. Processes that start from now on know it."""
    (directory / PLAN).write_text(json.dumps([asdict(death) for death in deaths]))


def read_deaths(directory: Path) -> list[Death]:
    """Who is to die where."""
    return [Death(**entry) for entry in json.loads((directory / PLAN).read_text())]


def read_lines(directory: Path) -> list[Line]:
    """All that was done, oldest first."""
    try:
        text = (directory / FILE).read_text()
    except FileNotFoundError:
        return []
    return sorted((Line(**json.loads(line)) for line in text.splitlines()), key=lambda line: line.at)

"""One simulated world as a process sees it: its directory, its figures and faults, and the lines that faults strike.

What exists is files, so that all processes of a lab share it, and one that is killed leaves exactly what it would leave
on a real lab:

| path | what |
|---|---|
| `hosts/HOST/VM` | a VM, on the host that it is on now |
| `figures.json` | how long things take, where that is not as usual |
| `faults.json` | the faults to come |
| `hits.jsonl`, `faults/` | the faults that struck, and how often their operations happened |
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from labctl import clock
from labctl.errors import LabError
from labctl.model.lab import Host, Lab
from workers.guard import Guard
from workers.hypervisors.simulated.faults import FaultKind, Faults
from workers.hypervisors.simulated.figures import Figures, read_figures
from workers.hypervisors.simulated.lines import Lines

CALL_SECONDS = 20.0
"""Deadline of an ordinary call."""


class NoAnswerError(LabError):
    """A host or an endpoint did not answer. `late` when it was waited for until the deadline."""

    def __init__(self, what: str, *, host: str, late: bool) -> None:
        super().__init__(
            what,
            kind="host-unreachable",
            why="The rehearsal's faults say so.",
            todo="Nothing: it is a simulated lab.",
            host=host,
        )
        self.late = late


class World:
    """A simulated world for the length of one attempt: what processes run in endpoints is kept here, not in files."""

    def __init__(self, lab: Lab, guard: Guard) -> None:
        if lab.simulated is None:
            raise ValueError(f"lab {lab.name} is not simulated")
        self.lab = lab
        self.guard = guard
        self.seed = lab.simulated.seed
        self.directory = Path(lab.simulated.directory)
        self.figures: Figures = read_figures(self.directory)
        self.faults = Faults.read(self.directory)
        self.lines = Lines()
        self._hosts = f"{self.directory}/hosts"

    def host(self, name: str) -> Host:
        """The host of this name. `LabError` (`host-unreachable`) when the lab has none."""
        try:
            return self.lab.hosts[name]
        except KeyError:
            raise LabError(f"The lab has no host {name}.", kind="host-unreachable", host=name) from None

    def before(
        self, operation: str, host: str, vm: str = "", *, seconds: float = CALL_SECONDS, interruptible: bool = False
    ) -> bool:
        """The line before every operation on a host or inside an endpoint, at which faults strike.

        Returns whether the operation must fail (fault `fail`). Raises `NoAnswerError`: at once when the host is lost,
        after `seconds` when the call hangs; `AttemptCancelled` when an interruptible one hangs and the attempt must end.
        """
        fault = self.faults.hit(operation, host, vm)
        if fault is FaultKind.HOST_LOST:
            raise NoAnswerError(f"Host {host} doesn't answer.", host=host, late=False)
        if fault is FaultKind.HANG:
            if interruptible:
                self.guard.sleep(seconds)
            else:
                clock.sleep(seconds)
            raise NoAnswerError(f"Host {host} did not answer within {seconds:.0f} s.", host=host, late=True)
        if fault is FaultKind.VANISH and vm:
            with suppress(FileNotFoundError):
                Path(self.path(host, vm)).unlink()
        return fault is FaultKind.FAIL

    def spend(self, seconds: float, host: str) -> None:
        """Let the time pass that something takes on a host. Raises `AttemptCancelled` when the attempt must end."""
        self.guard.sleep(seconds * self.slowness(host))

    def take(self, seconds: float, host: str) -> None:
        """Let the time pass that something takes which nobody interrupts."""
        if seconds:
            clock.sleep(seconds * self.slowness(host))

    def slowness(self, host: str) -> float:
        """How many times longer than usual everything takes on a host now."""
        return self.faults.factor(FaultKind.SLOW, host, otherwise=1.0)

    def path(self, host: str, vm: str = "") -> str:
        """The file of a VM on a host, or the folder of the host's VMs. Text, because it is asked for all the time."""
        return f"{self._hosts}/{host}/{vm}"

    def like(self, spread: float, *what: object) -> float:
        """A factor around 1 that belongs to these words for ever: equal in every process and every rehearsal."""
        return _drawn(self.seed, spread, *what)


@lru_cache(maxsize=4096)
def _drawn(seed: int, spread: float, *what: object) -> float:
    if not spread:
        return 1.0
    return max(0.2, random.Random(f"{seed}:{what!r}").gauss(1.0, spread))  # noqa: S311 - noise, not a secret

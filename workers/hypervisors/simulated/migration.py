"""Live migration between simulated hosts: memory is copied in passes until what is left fits into a short pause.

A VM that is being moved runs on its source until the hand-over, which is one step, so that a migration whose worker dies
has never been: as with a managed migration of libvirt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labctl import clock
from labctl.errors import AttemptCancelled
from labctl.model.lab import Lab
from labctl.model.order import MigrationOrder
from labctl.model.result import MigrationSample
from workers.hypervisors.base import MigrationOutcome, Vm
from workers.hypervisors.simulated import vm as vms
from workers.hypervisors.simulated.faults import FaultKind
from workers.hypervisors.simulated.lines import Move
from workers.hypervisors.simulated.world import NoAnswerError, World

PAUSE_SECONDS = 0.3
"""What is left may take so long while the VM stands still."""
_USED_SHARE = 0.5
"""How much of a VM's memory holds anything, and is copied at all."""
_HAND_OVER = 0.02
_MOST_PASSES = 1000
_MOST_SAMPLES = 10


def check_inventory(lab: Lab, source: str, destination: str) -> str:
    """Why the lab file rules out a migration between two hosts, in a sentence; empty when it doesn't."""
    if source == destination:
        return f"Source and destination are the same host, {source}."
    if (source, destination) not in lab.migration_pairs:
        return f"The lab has no migration path from host {source} to host {destination}."
    if lab.hosts[destination].migration_address is None:
        return f"Host {destination} has no migration address in the lab file."
    return ""


def not_started(kind: str, error: str) -> MigrationOutcome:
    """The outcome of a migration that was not even begun."""
    now = clock.now()
    return MigrationOutcome(completed=False, started=now, ended=now, error=error, error_kind=kind)


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a migration goes, known beforehand: seconds of copying, of standing still; bytes; passes over memory.

    `copying` is for ever when it doesn't converge.
    """

    copying: float
    pause: float
    bytes: int
    passes: int


def course(used: int, *, bandwidth: float, dirty: float) -> Course:
    """The course for so many bytes of used memory, bandwidth and dirtying in bit/s."""
    left, seconds, moved, passes = used * 8.0, 0.0, 0.0, 0
    while left > bandwidth * PAUSE_SECONDS:
        if passes == _MOST_PASSES or dirty >= bandwidth:
            return Course(copying=float("inf"), pause=0.0, bytes=int(moved / 8), passes=passes)
        took = left / bandwidth
        seconds, moved, passes = seconds + took, moved + left, passes + 1
        left = dirty * took
    pause = left / bandwidth + _HAND_OVER
    return Course(copying=seconds, pause=pause, bytes=int((moved + left) / 8) + 1, passes=passes + 1)


def migrate(
    world: World,
    vm: Vm,
    *,
    source: str,
    destination: str,
    order: MigrationOrder,
    on_sample: Callable[[MigrationSample], None] | None,
) -> MigrationOutcome:
    """Move the VM and say how that went; see `VmDriver.migrate`."""
    presence = vms.find(world, source, vm.name)
    if presence is None:
        return not_started("refused", f"The VM {vm.name} doesn't run on host {source}.")
    try:
        if world.before("migrate", source, vm.name) or world.before("migrate", destination):
            return not_started("refused", "The faults of this simulated lab say so.")
    except NoAnswerError as error:
        return not_started("unreachable", error.what)
    going = _course(world, presence, order)
    if world.faults.changes(FaultKind.NEVER_CONVERGES, "migrate", source, vm.name):
        going = Course(copying=float("inf"), pause=0.0, bytes=0, passes=0)
    return _Migration(world, vm, presence, destination, order, going, on_sample).run()


def _course(world: World, presence: vms.Presence, order: MigrationOrder) -> Course:
    used = int(presence.shape.memory * _USED_SHARE)
    bandwidth = float(order.bandwidth or world.figures.migration) / world.slowness(presence.host)
    found = course(used, bandwidth=bandwidth, dirty=world.figures.dirty)
    if found.copying == float("inf") and (order.post_copy or order.auto_converge):
        once = used * 8 / bandwidth
        return Course(copying=2 * once, pause=PAUSE_SECONDS, bytes=2 * used, passes=2)
    return found


class _Migration:
    """One migration that is under way."""

    def __init__(
        self,
        world: World,
        vm: Vm,
        presence: vms.Presence,
        destination: str,
        order: MigrationOrder,
        going: Course,
        on_sample: Callable[[MigrationSample], None] | None,
    ) -> None:
        self._world = world
        self._vm = vm
        self._presence = presence
        self._destination = destination
        self._deadline = order.deadline
        self._course = going
        self._on_sample = on_sample
        self._samples: list[MigrationSample] = []

    def run(self) -> MigrationOutcome:
        started, begun = clock.now(), clock.monotonic()
        total = self._course.copying + self._course.pause
        late = total > self._deadline
        move = Move(
            start=begun,
            down=None if late else begun + self._course.copying,
            end=begun + (self._deadline if late else total),
            source=self._presence.host,
            destination=self._destination,
        )
        self._world.lines.moves.setdefault(self._vm.name, []).append(move)
        try:
            self._watch(begun, min(self._deadline, total))
        except AttemptCancelled:
            return self._taken_back(move, started, "cancelled", "The attempt was asked to end.")
        if late:
            return self._taken_back(move, started, "deadline", f"It was not done after {self._deadline:g} s.")
        return self._hand_over(move, started)

    def _watch(self, begun: float, seconds: float) -> None:
        for number in range(1, _MOST_SAMPLES + 1):
            due = begun + seconds * number / _MOST_SAMPLES
            self._world.guard.sleep(due - clock.monotonic())
            if number < _MOST_SAMPLES:
                self._sample(clock.monotonic() - begun, number / _MOST_SAMPLES)

    def _sample(self, at: float, share: float) -> None:
        memory = self._presence.shape.memory
        processed = int(self._course.bytes * share)
        sample = MigrationSample(
            at=at,
            memory_total=memory,
            memory_processed=processed,
            memory_remaining=max(0, int(memory * _USED_SHARE) - processed),
            iteration=1 + int(self._course.passes * share),
        )
        self._samples.append(sample)
        if self._on_sample is not None:
            self._on_sample(sample)

    def _hand_over(self, move: Move, started: float) -> MigrationOutcome:
        try:
            self._world.before("hand-over", self._destination, self._vm.name)
        except NoAnswerError as error:
            return self._taken_back(move, started, "unreachable", error.what)
        if not vms.move(self._world, self._presence, self._destination):
            return self._taken_back(move, started, "failed", "The VM ended in the middle of its migration.")
        return MigrationOutcome(
            completed=True,
            started=started,
            ended=clock.now(),
            total_ms=max(1, round(1000 * (move.end - move.start))),
            downtime_ms=max(1, round(1000 * self._course.pause)),
            bytes_moved=self._course.bytes,
            iterations=self._course.passes,
            stats_source="simulated",
            samples=tuple(self._samples),
        )

    def _taken_back(self, move: Move, started: float, kind: str, error: str) -> MigrationOutcome:
        move.down, move.end = None, clock.monotonic()
        return MigrationOutcome(
            completed=False,
            started=started,
            ended=clock.now(),
            error=error,
            error_kind=kind,
            samples=tuple(self._samples),
        )

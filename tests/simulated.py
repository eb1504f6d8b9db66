"""Simulated labs for tests, and attempts on them under a virtual clock: nights in milliseconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeVar

from labctl import clock
from labctl.campaign import commands
from labctl.conductor import Conductor
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.result import AttemptResult
from labctl.plan.applicability import placements
from labctl.plan.resolve import resolve
from labctl.spec.simulated import SimulatedSpec, expand_simulated
from labctl.store import After, AttemptStart, Store
from labctl.virtual_clock import VirtualClock
from workers.attempt import Attempt
from workers.guard import Guard
from workers.hypervisors.simulated.faults import Fault, write_faults
from workers.hypervisors.simulated.figures import Figures, write_figures

T = TypeVar("T")

WALL = 1_792_850_400.0
"""The wall time at which virtual nights begin."""
PATIENCE = 60.0
"""Real seconds after which something that a test waits for is taken as never coming."""


def a_simulated_lab(
    directory: Path,
    *,
    hosts: Sequence[str] = ("a", "b"),
    machines: Sequence[str] = ("box",),
    seed: int = 1,
    figures: Figures | None = None,
    faults: Sequence[Fault] = (),
) -> Lab:
    """A lab whose world is in this directory."""
    if figures is not None:
        write_figures(directory, figures)
    if faults:
        write_faults(directory, faults)
    directory.mkdir(parents=True, exist_ok=True)
    spec = SimulatedSpec(hosts=tuple(hosts), machines=tuple(machines), seed=seed, directory=PurePosixPath(directory))
    return expand_simulated("simulated", "tests", spec)


def vms_left(lab: Lab) -> list[str]:
    """`HOST/VM` of every VM in the lab's world."""
    assert lab.simulated is not None
    folders = (Path(lab.simulated.directory) / "hosts").glob("*/*")
    return sorted(f"{path.parent.name}/{path.name}" for path in folders if not path.name.startswith("."))


def attempt(store: Store, lab: Lab, campaign: Campaign, *, guard: Guard | None = None) -> AttemptResult:
    """Submit a campaign and carry out the first attempt of its first run."""
    campaign_id = commands.submit(store, campaign, lab, campaign_text=f"{time.monotonic()}", lab_text="")
    return next_attempt(store, campaign_id, guard=guard)


def next_attempt(store: Store, campaign_id: int, *, guard: Guard | None = None) -> AttemptResult:
    """Carry out the next attempt of a campaign, in the first placement that the lab offers; its result is the run's."""
    head = store.head(campaign_id)
    run = store.pending_runs(campaign_id, limit=1)[0]
    placement = placements(head.campaign, run.cell, head.lab)[0]
    order = resolve(head.campaign, run.cell, head.lab, placement=placement)
    start = AttemptStart(run_id=run.id, order=order, resources=frozenset({"host:a"}))
    (handle,) = store.start_attempts(head.lab.name, [start])
    assert handle is not None
    claimed = store.claim(handle, worker="tests:1")
    assert claimed is not None
    result = Attempt(claimed, store=store, guard=guard or Guard()).carry_out()
    assert store.accept(handle, result, After(again=False)) is not None
    return result


@contextmanager
def virtual_time(directory: Path) -> Iterator[Conductor]:
    """This process has a virtual clock, and this thread conducts it."""
    conductor = Conductor(directory, wall=WALL)
    try:
        with clock.using(VirtualClock(directory)):
            yield conductor
    finally:
        conductor.close()


def conducted(conductor: Conductor, work: Callable[[], T], *, meanwhile: Callable[[float], None] | None = None) -> T:
    """What `work` gives, carried out in a thread while the clock goes on as fast as it can.

    `meanwhile` is called with the moment before each move of the clock; it may make somebody busy.
    """
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with clock.working("test"):
                found.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while thread.is_alive():
        assert time.monotonic() < deadline, f"still busy with {conductor.busy} at {conductor.moment}"
        conductor.hear(0.01)
        if conductor.working and not conductor.busy and conductor.earliest is not None:
            if meanwhile is not None:
                meanwhile(conductor.moment)
            if not conductor.busy:
                conductor.go_on(conductor.earliest)
    thread.join()
    if errors:
        raise errors[0]
    return found[0]

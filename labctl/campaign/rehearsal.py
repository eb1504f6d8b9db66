"""Rehearsals: a whole campaign through the real engine, on simulated hosts, by a clock of its own, in seconds.

All is as in a real night: a store (in a temporary directory), a private Redis, a Celery worker, the service with its scheduler.
Only the hosts pretend, and time goes on as soon as everybody waits. So what a rehearsal shows of order, windows and recovery
is what a real night does; its figures are made up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from labctl import clock
from labctl.campaign import commands, liveness
from labctl.campaign.incidents import Incident, Incidents
from labctl.campaign.pacing import Pace, Shift
from labctl.campaign.service import Asked, serve
from labctl.campaign.serving import MOST_SLOTS, SLOTS_FOR_CLEANING, Serving
from labctl.campaign.session import Session
from labctl.campaign.supervisor import kill_group
from labctl.conductor import Conductor
from labctl.errors import LabError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab, Network, SimulatedLayout
from labctl.model.outcome import CampaignState
from labctl.model.patience import VARIABLE as PATIENCE
from labctl.model.result import CampaignRecord
from labctl.plan.resources import machines_of
from labctl.spec.simulated import DATA, GUESTS
from labctl.store import LeaseLine, Store, VmRecord, open_store
from labctl.store.database import sqlite_url
from labctl.virtual_clock import VirtualClock

_IMPATIENT = '{"beat": 0.5, "silent": 5, "unclaimed": 4, "clean_again": 1}'
"""In a rehearsal a real second is long: what is lost is noticed soon."""
_END_SECONDS = 90.0
"""Real seconds in which everything must be cleaned that was not when the campaign ended."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What a rehearsal has shown. `seconds` are those that went by in it, `real_seconds` those that it took; it began at the
    wall time `began`."""

    campaign: Campaign
    lab: Lab
    record: CampaignRecord
    state: CampaignState
    shifts: tuple[Shift, ...]
    began: float
    seconds: float
    real_seconds: float
    incidents: tuple[Incident, ...]
    hold: str
    """Why nothing more was started of a campaign that had not ended."""
    stuck: bool
    """It had to be ended, because nothing went on any more although something was left to be done."""
    leases: tuple[LeaseLine, ...]
    vms: tuple[VmRecord, ...]
    """Those that the store believes to exist at the end."""


def simulated(lab: Lab, directory: Path) -> Lab:
    """The same lab on simulated hosts, whose world is in this directory. Nothing of the real one is touched."""
    seed = lab.simulated.seed if lab.simulated is not None else SimulatedLayout.seed
    layout = SimulatedLayout(directory=PurePosixPath(directory), seed=seed)
    networks = {name: _without_dhcp(network) for name, network in lab.networks.items()}
    return replace(lab, simulated=layout, embedded=None, networks=networks)


def _without_dhcp(network: Network) -> Network:
    """Nobody gives simulated guests their addresses but labctl."""
    if network.is_static:
        return network
    return replace(network, addressing="static", guest_range=GUESTS, prefix_length=DATA.prefixlen)


def rehearse(
    campaign: Campaign,
    lab: Lab,
    *,
    directory: Path,
    begin: float,
    incidents: tuple[Incident, ...] = (),
    texts: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Rehearsal:
    """Work a campaign off on a lab that is `simulated` already, from the wall time `begin` on.

    Everything is kept in `directory`, which has a short path (Unix sockets are in it). `texts` are those of the two files.
    Raises `SpecError` for a campaign that would be refused, and `LabError` when Redis or the worker can't be started.
    """
    if lab.simulated is None:
        raise ValueError(f"lab {lab.name} is real")
    started = time.monotonic()
    conductor = Conductor(directory / "clock", wall=begin)
    planned = Incidents(incidents)
    try:
        with _by_its_own_clock(directory / "clock"):
            store = open_store(directory / "state")
            try:
                texts = texts or {}
                campaign_id = commands.submit(
                    store,
                    replace(campaign, notify=()),
                    lab,
                    campaign_text=texts.get("campaign_text", ""),
                    lab_text=texts.get("lab_text", ""),
                )
                slots = min(machines_of(lab) + SLOTS_FOR_CLEANING, MOST_SLOTS)
                pace = Pace(store, conductor, planned, slots=slots)
                _work_off(store, campaign_id, pace, directory / "state", slots, say)
                return Rehearsal(
                    campaign=campaign,
                    lab=lab,
                    record=store.record(campaign_id),
                    state=store.state(campaign_id),
                    shifts=tuple(pace.shifts),
                    began=begin,
                    seconds=conductor.moment,
                    real_seconds=time.monotonic() - started,
                    incidents=tuple(planned.happened),
                    hold=store.head(campaign_id).hold,
                    stuck=pace.stuck,
                    leases=store.leases(lab.name),
                    vms=store.live_vms(lab.name),
                )
            finally:
                store.close()
    finally:
        conductor.close()


def _work_off(store: Store, campaign_id: int, pace: Pace, state: Path, slots: int, say: Callable[[str], None]) -> None:
    """Serve the campaign until it has ended, and until what it left is cleaned."""
    serving = Serving(state=state, store_url=sqlite_url(state), only=campaign_id, slots=slots)
    serve(
        store,
        serving,
        asked=Asked(end=pace),
        say=say,
        write_report=lambda _: "",
        on_look=pace.looked,
        at_end=lambda running: _clean_up(store, campaign_id, running, pace),
    )


def _clean_up(store: Store, campaign_id: int, running: Session, pace: Pace) -> None:
    """Let what is still going on come to its end, and have removed what is left."""
    if store.active_attempts():
        commands.interrupt(store, campaign_id)
    pace.clear()
    cleaning = liveness.Cleaning()
    running.worker.files.park_no_more()
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline and not pace.stuck:
        if not (store.active_attempts() or store.leases() or store.live_vms()):
            break
        with suppress(LabError):
            running.look()
            cleaning.look(store, running.dispatcher)
        pace.looked()
        pace.wait(0.1)
    if running.kept.process is not None and not store.active_attempts():
        # Nothing is at work any more, and a worker that is asked to end takes seconds.
        kill_group(running.kept.process.pid)


@contextmanager
def _by_its_own_clock(directory: Path) -> Iterator[None]:
    """This process, and those that it starts, live by the rehearsal's clock."""
    own = {clock.VARIABLE: f"{clock.VIRTUAL}{directory}", PATIENCE: os.environ.get(PATIENCE) or _IMPATIENT}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        with clock.using(VirtualClock(directory)):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

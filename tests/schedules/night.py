"""One night: a schedule carried out with real services, workers and Redis, and a real store, on simulated hosts."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import redis
from kombu.exceptions import OperationalError

from labctl.campaign import commands
from labctl.errors import LabError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab, SimulatedLayout
from labctl.model.outcome import CampaignState
from labctl.store import Store, open_store
from tests.schedules.crew import Crew, Service
from tests.schedules.lines import ENGINE, MORNING, OPERATION, PYTHON, STORE, WORKER, Death, write_deaths
from tests.schedules.programs import step_clocks
from tests.schedules.schedule import Happening, Schedule, Stranger, Trouble
from workers.hypervisors.simulated.faults import FOR_EVER, Fault, write_faults
from workers.hypervisors.simulated.figures import Figures, write_figures

FIGURES = Figures(create=0.03, boot=0.12, command=0.004, connect=0.01, destroy=0.02)
START_SECONDS = 60.0
MORNING_SECONDS = 90.0
"""Campaigns that have not ended so long after their beginning never will."""
QUIET_SECONDS = 40.0
"""How long after their ends nothing of them may be left on any host."""
END_SECONDS = 40.0
_STEP = 0.03
_DEATHS: dict[Trouble, Callable[[Happening], Death]] = {
    Trouble.WORKER_DIES_AT_LINE: lambda each: Death(role=WORKER, kind=PYTHON, nth=each.nth),
    Trouble.WORKER_DIES_AT_STORE: lambda each: Death(role=WORKER, kind=STORE, nth=each.nth),
    Trouble.WORKER_STOPS_AT_OPERATION: lambda each: Death(role=WORKER, kind=OPERATION, nth=each.nth, stop=True),
    Trouble.SERVICE_DIES_AT_LINE: lambda each: Death(role=ENGINE, kind=PYTHON, nth=each.nth),
    Trouble.SERVICE_DIES_AT_STORE: lambda each: Death(role=ENGINE, kind=STORE, nth=each.nth),
}
"""Troubles to which processes come by themselves."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that happened, and when, in seconds of the monotonic clock."""

    at: float
    text: str


class Night:
    """A night in progress. `directory` is that of its fork server; `happen` makes one thing happen and says whether it
    could: it is asked again until it could."""

    def __init__(self, schedule: Schedule, directory: Path, happen: Callable[[Night, Happening], bool]) -> None:
        self.schedule = schedule
        self.directory = directory
        self.world = directory / "world"
        self.crew = Crew(
            directory, services=schedule.services, shared_redis=schedule.shared_redis, say=self.note
        )  # fmt: skip
        self.lab: Lab = replace(
            schedule.lab, simulated=SimulatedLayout(directory=PurePosixPath(self.world), seed=schedule.seed)
        )
        self.began = 0.0
        """When its first campaign came, in seconds of the monotonic clock."""
        self.notes: list[Note] = []
        self.broken: list[str] = []
        """Promises that were seen to be broken in its course."""
        self.campaigns: list[int] = []
        self.strangers: dict[Path, bytes] = {}
        """Files of the VMs that were there before, with their contents."""
        self.paused_for_good: set[int] = set()
        self.reopened = 0
        """How often a person sent runs back."""
        self._happen = happen
        self._later: list[tuple[float, Callable[[], None]]] = []
        self.store: Store = self._prepare()

    def carry_out(self) -> None:
        """All of it, from the evening to the morning. The processes have ended then, as far as they do."""
        if not self.schedule.cold:
            self._start_services()
            self.wait_until("the services are up", self._all_up, seconds=START_SECONDS)
        self._begin()
        if self.schedule.cold:
            self._start_services()
        self._go_on()
        self._mend()
        self.wait_until("no lease and no VM is left", self._quiet, seconds=QUIET_SECONDS)
        self._end_services()

    # What others need

    def note(self, text: str) -> None:
        """Write down what happens."""
        self.notes.append(Note(at=time.monotonic(), text=text))

    def after(self, seconds: float, finish: Callable[[], None]) -> None:
        """Have something done later, at the latest before the morning. It is done again when the store or Redis refuse."""
        self._later.append((time.monotonic() + seconds, finish))

    def wait_until(self, what: str, found: Callable[[], bool], *, seconds: float) -> None:
        """Wait for something that must come; it is a broken promise when it doesn't."""
        deadline = time.monotonic() + seconds
        while not found():
            if time.monotonic() > deadline:
                self.broken.append(f"waited {seconds:.0f} s in vain until {what}: {self._stand()}")
                return
            self._look()
            time.sleep(_STEP)

    # From the evening ...

    def _prepare(self) -> Store:
        for name in ("logs", "tmp"):
            (self.directory / name).mkdir()
        step_clocks(self.directory, engines=0.0, workers=0.0)
        deaths = [_DEATHS[each.trouble](each) for each in self.schedule.happenings if each.trouble in _DEATHS]
        write_deaths(self.directory, deaths)
        write_figures(self.world, FIGURES)
        dies = [each for each in self.schedule.happenings if each.trouble in _DEATHS and each.seconds]
        self.crew.pause = max([self.crew.pause, *(each.seconds for each in dies)])
        self.crew.start_redis()
        store = open_store(self.crew.state)
        for stranger in self.schedule.strangers:
            path = self.world / "hosts" / stranger.host / stranger.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(vm_of(stranger, self.lab, store.identity)))
            self.strangers[path] = path.read_bytes()
        return store

    def _start_services(self) -> None:
        for service in self.crew.services:
            self.crew.start(service)

    def _all_up(self) -> bool:
        rows = [row for row in self.store.workers() if row.role == "worker"]
        return len(rows) == len(self.crew.services)

    def _begin(self) -> None:
        self.began = time.monotonic()
        faults = [fault for happening in self.schedule.happenings for fault in happening.faults]
        write_faults(self.world, [self._timed(fault) for fault in faults])
        for each in self.schedule.campaigns:
            self.after(each.at, lambda campaign=each.campaign: self._submit(campaign))  # type: ignore[misc]

    def _timed(self, fault: Fault) -> Fault:
        end = fault.end if fault.end == FOR_EVER else fault.end + self.began
        return replace(fault, start=fault.start + self.began if fault.start else 0.0, end=end)

    def _submit(self, campaign: Campaign) -> None:
        made = commands.submit(self.store, campaign, self.lab, campaign_text=f"{uuid.uuid4()}", lab_text="")
        self.campaigns.append(made)
        self.note(f"campaign {made} ({campaign.name}) is submitted")

    # ... through the night ...

    def _go_on(self) -> None:
        waiting = [each for each in self.schedule.happenings if not each.faults and each.trouble not in _DEATHS]
        while time.monotonic() - self.began < MORNING_SECONDS:
            self._look()
            now = time.monotonic()
            for happening in [each for each in waiting if self.began + each.at <= now]:
                if self._try(str(happening.trouble), lambda happening=happening: self._happen(self, happening)):  # type: ignore[misc]
                    self.note(str(happening))
                    waiting.remove(happening)
            if not self._later and self._over():
                break
            time.sleep(_STEP)
        else:
            self.broken.append(f"not all campaigns ended within {MORNING_SECONDS:.0f} s: {self._stand()}")
        for happening in waiting:
            self.note(f"came too late: {happening.trouble}")

    def _look(self) -> None:
        """Do what is due, and see to the processes."""
        now = time.monotonic()
        due = [item for item in self._later if item[0] <= now]
        self._later = [item for item in self._later if item[0] > now]
        for item in due:
            if not self._try("something that was to be done later", lambda item=item: item[1]() is None):  # type: ignore[misc]
                self._later.append((now + 0.2, item[1]))
        for happening in self.schedule.happenings:
            if happening.trouble is Trouble.WORKER_STOPS_AT_OPERATION:
                self.crew.find_stopped(happening.seconds)
        self.crew.look()

    def _try(self, what: str, do: Callable[[], bool]) -> bool:
        """Do it, unless what it needs can't be used just now: then it is tried again, as people do."""
        try:
            return do()
        except (LabError, redis.RedisError, OperationalError, OSError) as error:
            self.note(f"not yet: {what}: {error}")
            return False

    def _over(self) -> bool:
        if self.store.active_attempts():
            return False
        return all(self.store.state(each).ended or self._stays_paused(each) for each in self.campaigns)

    def _stays_paused(self, campaign_id: int) -> bool:
        return campaign_id in self.paused_for_good and self.store.state(campaign_id) is CampaignState.PAUSED

    # ... to the morning

    def _mend(self) -> None:
        """Nobody dies or is stopped any more, and hosts that were lost are back."""
        (self.directory / MORNING).touch()
        self.crew.let_all_go_on()
        write_faults(self.world, [])
        self.note("it is morning")

    def _quiet(self) -> bool:
        """Only a paused campaign may keep VMs for its next runs as long as a service runs."""
        left = [
            vm for vm in self.store.live_vms() if vm.state != "parked" or vm.campaign_id not in self.paused_for_good
        ]
        return not left and not self.store.leases()

    def _end_services(self) -> None:
        for service in self.crew.services:
            if service.process is None:
                continue
            code = self.crew.end(service, seconds=END_SECONDS)
            if code is None:
                self.broken.append(f"service {service.number} did not end within {END_SECONDS:.0f} s of SIGTERM")
            elif code != 0 and not (code == -signal.SIGTERM and self._never_served(service)):
                self.broken.append(f"service {service.number} ended with {code} after SIGTERM")
        self.crew.end_redis()

    def _never_served(self, service: Service) -> bool:
        """Whether the latest process of a service was asked to end before it had begun to hear what it is asked."""
        said = (self.crew.logs / f"service-{service.number}.log").read_text(errors="replace")
        return said.count("Starting;") < len(service.codes)

    def _stand(self) -> str:
        """Where everything stands, in short."""
        campaigns = "; ".join(
            f"campaign {each} {self.store.state(each)} {self.store.head(each).hold} {self.store.run_counts(each)}"
            for each in self.campaigns
        )
        leases = ", ".join(f"{line.resource} by attempt {line.attempt_id}" for line in self.store.leases())
        vms = ", ".join(f"{vm.name} {vm.state}" for vm in self.store.live_vms())
        hosts = ", ".join(f"{host.host} {host.state} (next check in {host.next_check - time.time():.1f} s)"
                          for host in self.store.hosts() if host.state != "good")  # fmt: skip
        return f"{campaigns}; leases: {leases or 'none'}; VMs: {vms or 'none'}; hosts: {hosts or 'all good'}"


def vm_of(stranger: Stranger, lab: Lab, store: str) -> dict[str, object]:
    """The file of a VM that is not this lab's and store's."""
    mark = {
        "lab": "elsewhere" if stranger.mark == "other lab" else lab.name,
        "campaign": 1,
        "run": 1,
        "attempt": 1,
        "role": "receiver",
        "store": "another" if stranger.mark == "other store" else store,
    }
    shape = {"image": "probe", "nic_model": "virtio", "vcpus": 1, "memory": 2**27, "queues": 1, "machine_type": "q35"}
    return {
        "uuid": str(uuid.uuid4()),
        "mac": "52:54:00:ff:ff:01",
        "address": "",
        "shape": shape,
        "mark": None if stranger.mark == "none" else mark,
        "ready": 0.0,
        "paused": False,
    }

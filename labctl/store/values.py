"""What the store takes and gives, beside the words of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from labctl.model.campaign import Campaign, Cell
from labctl.model.lab import Lab
from labctl.model.order import RunOrder
from labctl.model.outcome import AttemptState, CampaignState, HostState, Outcome, OutcomeDetail, Purpose

WORKER_LOST = OutcomeDetail(
    outcome=Outcome.LAB_ERROR,
    kind="worker-lost",
    what="The worker died in the middle of the attempt.",
    why="It gave no sign of life any more: its process, or its machine, is gone.",
    todo="See the worker's log in the state directory; the kernel's log says whether it ran out of memory.",
)
MESSAGE_LOST = OutcomeDetail(
    outcome=Outcome.CANCELLED,
    kind="message-lost",
    what="No worker took the attempt up.",
    why="Its message was lost with the broker, or no worker listens for this lab.",
)
NOT_WANTED = OutcomeDetail(
    outcome=Outcome.CANCELLED,
    kind="not-wanted",
    what="The attempt was given back before it began.",
    why="Its campaign was paused, stopped or cancelled meanwhile, or its window would have closed before its end.",
)
"""Why an attempt was given up. One that nobody took up never touched a host, so it costs its run no try."""


@dataclass(frozen=True, kw_only=True)
class CampaignHead:
    """What is needed to work on a campaign: its checked documents and its state."""

    id: int
    name: str
    state: CampaignState
    stop_attempts: bool
    campaign: Campaign
    lab: Lab
    submitted: float
    purpose: Purpose
    priority: int
    why: str
    """Why it is paused, stopped or cancelled, in a sentence; empty when a person did it and said nothing."""
    hold: str
    """What keeps an active campaign from starting runs now, in a sentence; empty when nothing does."""
    ended: float | None
    """When it ended (epoch seconds); None as long as it may go on by itself."""
    forgiven: int
    """Troubles of its attempts up to this id are forgiven: a person sent runs back, or let it go on after its end."""


@dataclass(frozen=True, kw_only=True)
class QueuedCampaign:
    """An active campaign as the scheduler ranks it. `share` is the machine seconds that it was given, for fairness."""

    id: int
    lab: str
    priority: int
    share: float
    purpose: Purpose
    hold: str


@dataclass(frozen=True, kw_only=True)
class CampaignLine:
    """One campaign in a list, with how many runs stand where."""

    id: int
    name: str
    lab: str
    state: CampaignState
    submitted: float
    priority: int
    purpose: Purpose
    why: str
    hold: str
    runs: Mapping[str, int]
    """Count of runs by outcome for those that are done, else by state."""


@dataclass(frozen=True, kw_only=True)
class PendingRun:
    """A run that waits for its hosts."""

    id: int
    cell: Cell
    replicate: int
    sequence: int
    attempts: int
    """How many tries it has had; cancelled attempts are none."""
    purpose: Purpose
    seconds: float | None
    """Mean seconds that a run of its cell has kept its hosts so far; None before one has ended."""


@dataclass(frozen=True, kw_only=True)
class AttemptStart:
    """An attempt to be started: its run, what it is to do, what it leases, and for how many seconds presumably. After
    `claim_by` (epoch seconds) it is not begun any more, because its window would close too early; None: at any time."""

    run_id: int
    order: RunOrder
    resources: frozenset[str]
    estimate: float = 0.0
    claim_by: float | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptHandle:
    """What the message to a worker holds."""

    id: int
    token: str


@dataclass(frozen=True, kw_only=True)
class ClaimedAttempt:
    """An attempt that a worker has claimed, with all that it needs."""

    id: int
    token: str
    number: int
    run_id: int
    campaign_id: int
    order: RunOrder
    lab: Lab


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Whose an attempt is, what it used, and how it ended, if it has."""

    campaign_id: int
    purpose: Purpose
    cell: str
    """The id of its cell."""
    run_id: int
    replicate: int
    tries: int
    """How many tries its run has had, this one included; cancelled attempts are none."""
    hosts: tuple[str, ...]
    state: AttemptState
    outcome: Outcome | None
    kind: str
    campaign: Campaign
    lab: Lab


@dataclass(frozen=True, kw_only=True)
class ActiveAttempt:
    """An attempt in progress, as people are shown it."""

    id: int
    campaign_id: int
    run_id: int
    cell: Cell
    replicate: int
    number: int
    state: AttemptState
    phase: str
    hosts: tuple[str, ...]
    created: float
    claimed: float | None
    estimate: float
    worker: str
    """`MACHINE:PID` of the process that has claimed it; empty before."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A sign of life: `beats` grows with every heartbeat. Whoever watches judges silence by a clock of its own."""

    attempt_id: int
    state: AttemptState
    beats: int
    worker: str


@dataclass(frozen=True, kw_only=True)
class After:
    """What follows from a result, beside its being stored (`labctl.campaign.policy` decides it).

    With `again` the run goes back and is not started before `not_before` (epoch seconds). A lab-error of the `blamed`
    hosts is counted against them, and the count of the `cleared` ones begins anew. A blamed host with
    `quarantine_after` lab-errors in a row is quarantined.
    """

    again: bool = False
    not_before: float = 0.0
    blamed: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    quarantine_after: int = 3
    check_at: float = 0.0
    """When a host that this quarantines is due for its first health check (epoch seconds)."""


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A result was stored. `quarantined` names the hosts that this result put into quarantine."""

    quarantined: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """How often attempts of a cell ended in the same way, other than `ok` and `cancelled`."""

    cell: str
    outcome: Outcome
    kind: str
    hosts: frozenset[str]
    """The hosts of these attempts: the blamed one, or all that the attempt used, joined by `+`."""
    attempts: int
    recorded: int
    """How many of these attempts ended their runs for good."""
    latest: int
    """The id of the latest of these attempts."""


class Leased(NamedTuple):
    """Which campaign has a resource, and presumably until when (epoch seconds). Not `in_progress`: its attempt has ended or
    was given up, and what it left on its hosts is being removed."""

    campaign_id: int
    expected: float
    in_progress: bool


@dataclass(frozen=True, kw_only=True)
class LeaseLine:
    """Who holds a resource of a lab, since when and presumably until when (epoch seconds)."""

    resource: str
    campaign_id: int
    campaign: str
    attempt_id: int
    taken: float
    expected: float


@dataclass(frozen=True, kw_only=True)
class VmRecord:
    """A VM that labctl made or is about to make. `state` is `live`, `parked` (paused, waiting for reuse) or `gone`."""

    uuid: str
    name: str
    lab: str
    host: str
    campaign_id: int
    run_id: int
    attempt_id: int
    role: str
    mac: str
    address: str
    """With its prefix length; empty until a DHCP server has given one."""
    shape: str
    state: str
    migrations: int = 0


@dataclass(frozen=True, kw_only=True)
class Change:
    """A setting of a host that is about to be changed. `adapter` is empty when it is no adapter's; `before` and `asked` are
    the system's own words (`on`, `0`), of which the store understands nothing."""

    host: str
    adapter: str
    name: str
    before: str
    asked: str


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """A setting of a host that an attempt has changed, or was about to, and that is not restored yet."""

    id: int
    lab: str
    host: str
    adapter: str
    name: str
    before: str
    """What it has to be again."""
    asked: str
    attempt_id: int
    why: str
    """Why it could not be restored when that was last tried; empty when it was not tried."""

    @property
    def sentence(self) -> str:
        """What is to be said of it as long as it is open."""
        of = f" of adapter {self.adapter}" if self.adapter else ""
        why = f": {self.why}" if self.why else ""
        return f"{self.name}{of} was {self.before}, was set to {self.asked} and is not restored{why}"


@dataclass(frozen=True, kw_only=True)
class HostRecord:
    """How a host of a lab has behaved. `strikes` counts its lab-errors in a row, `checks` its failed health checks."""

    lab: str
    host: str
    state: HostState = HostState.GOOD
    strikes: int = 0
    why: str = ""
    since: float = 0.0
    checks: int = 0
    next_check: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    """A process that works: an `engine` (schedules, supervises) or a `worker` (carries out attempts)."""

    name: str
    """Unique: `ROLE@MACHINE:PID`."""
    role: str
    machine: str
    pid: int
    version: str
    queues: tuple[str, ...]
    slots: int
    started: float
    beats: int = 0
    seen: float = 0.0
    doing: str = ""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """How much is in a store: numbers of rows, and the bytes in which raw outputs are kept."""

    campaigns: int
    runs: int
    attempts: int
    raw: int
    """Raw outputs whose content is kept."""
    raw_bytes: int
    forgotten: int
    """Raw outputs whose content was pruned."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that people may want to hear of. Of one `scope` and `key` there is only ever one."""

    scope: str
    """`campaign-12`, or `lab-NAME`."""
    key: str
    """`started`, `quarantine-a-7`, ..."""
    kind: str
    what: str
    at: float
    campaign_id: int | None = None
    id: int = 0

"""What follows from how an attempt ended: one table that people can read (`labctl policy` prints it)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from labctl.model.campaign import LONGEST_BACK_OFF, Campaign
from labctl.model.lab import Lab
from labctl.model.outcome import Outcome, OutcomeDetail


class Action(StrEnum):
    """What becomes of a run after an attempt."""

    RECORD = "record"
    """The attempt's result is the run's, for good."""
    RETRY = "retry"
    """The run goes back and is tried again after a back-off, as long as it has tries left; then the result is recorded."""
    RETURN = "return"
    """The run goes back as if the attempt had not been."""


class Blame(StrEnum):
    """Against which hosts a strike is counted."""

    NOBODY = "nobody"
    NAMED = "the host that is named"
    HOSTS = "the host that is named, else all of the run"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row: a class of outcomes, what it leads to, and why."""

    name: str
    outcome: Outcome
    kinds: frozenset[str] = frozenset()
    """The kinds of the outcome that belong to the class; empty: all that no other row names."""
    action: Action
    blame: Blame = Blame.NOBODY
    clears: bool = False
    """Whether it shows that the hosts of the run work: their strikes are forgotten."""
    stops_cell: bool = False
    """Whether a cell that ends so on two hosts is stopped."""
    stops_campaign: bool = False
    """Whether a campaign most of whose cells end so, and only so, is stopped."""
    why: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How often is too often. Times in seconds."""

    strikes: int = 3
    """Lab-errors in a row that quarantine a host."""
    cells: int = 4
    """A campaign is stopped when at least so many of its cells end alike, ..."""
    attempts: int = 8
    """... in at least so many attempts (more than it takes to quarantine two hosts), ..."""
    share: float = 0.5
    """... and they are more than this share of the cells that were tried."""
    longest_back_off: float = LONGEST_BACK_OFF
    """No run waits longer than this for its next try."""


LIMITS = Limits()


def _kinds(words: str) -> frozenset[str]:
    return frozenset(words.split())


POLICY = (
    Rule(
        name="a figure",
        outcome=Outcome.OK,
        action=Action.RECORD,
        clears=True,
        why="What the campaign is for.",
    ),
    Rule(
        name="the system under test did not do it",
        outcome=Outcome.FAILED,
        action=Action.RECORD,
        clears=True,
        stops_cell=True,
        stops_campaign=True,
        why="A result: a retry would hide it, and repeating what fails everywhere tells nothing new.",
    ),
    Rule(
        name="somebody stopped it, or nobody began it",
        outcome=Outcome.CANCELLED,
        action=Action.RETURN,
        why="It was not the run's fault, so it costs none of its tries.",
    ),
    Rule(
        name="a host is out of reach",
        outcome=Outcome.LAB_ERROR,
        kinds=_kinds("host-unreachable libvirt channel-unreachable endpoint-silent migration-unreachable"),
        action=Action.RETRY,
        blame=Blame.HOSTS,
        why="Says nothing about the cell. Quarantine keeps runs off the host until a health check has passed.",
    ),
    Rule(
        name="a host, or a VM on it, did not do its part",
        outcome=Outcome.LAB_ERROR,
        kinds=_kinds(
            "create-failed boot-timeout vm-gone moved leftovers vm-mismatch nic-missing "
            "nic-mismatch offload-mismatch mtu-mismatch link-down address-missing channel-timeout "
            "channel-refused command-failed migration-failed migration-refused server-failed "
            "server-died server-busy connect-refused client-hung truncated-output unparseable "
            "no-data not-restored"
        ),
        action=Action.RETRY,
        blame=Blame.HOSTS,
        stops_cell=True,
        stops_campaign=True,
        why="The host's fault if it goes on with other cells; the cell's if it happens on other hosts too.",
    ),
    Rule(
        name="the lab, the image or the campaign lacks what the run needs",
        outcome=Outcome.LAB_ERROR,
        kinds=_kinds(
            "tool-missing missing-program prepare-failed nic-unsupported accelerator-unknown "
            "no-driver no-device no-address no-channel no-host migration-impossible offload-missing"
        ),
        action=Action.RETRY,
        stops_cell=True,
        stops_campaign=True,
        why="No host did anything wrong; it may work on another one, and until it is mended it is the same every time.",
    ),
    Rule(
        name="another labctl uses a host",
        outcome=Outcome.LAB_ERROR,
        kinds=_kinds("host-shared"),
        action=Action.RETRY,
        blame=Blame.HOSTS,
        why="Nothing can be measured there. Quarantine keeps runs off it until a health check finds it free.",
    ),
    Rule(
        name="something else is in the way",
        outcome=Outcome.LAB_ERROR,
        kinds=_kinds("not-quiet name-taken mac-taken not-ours addresses secret-unavailable clock-step settings-busy"),
        action=Action.RETRY,
        stops_campaign=True,
        why="Neither the host's fault nor the cell's; it may pass, and a campaign that only meets this is saved for later.",
    ),
    Rule(
        name="labctl's own machinery broke",
        outcome=Outcome.LAB_ERROR,
        kinds=_kinds("worker-lost store broker"),
        action=Action.RETRY,
        why="Worker, store or broker: no fault of host or cell. The tries are capped: a run that kills workers ends too.",
    ),
    Rule(
        name="a bug of labctl",
        outcome=Outcome.LAB_ERROR,
        kinds=_kinds("bug"),
        action=Action.RETRY,
        stops_cell=True,
        stops_campaign=True,
        why="No host's fault; what it happens to every time is not tried all night.",
    ),
    Rule(
        name="any other lab-error",
        outcome=Outcome.LAB_ERROR,
        action=Action.RETRY,
        blame=Blame.NAMED,
        stops_cell=True,
        stops_campaign=True,
        why="Whose fault it is nobody knows, but for a host that the error names.",
    ),
)
"""The whole policy. The first row that names the outcome and its kind holds, else the row without kinds."""


def rule_of(outcome: Outcome, kind: str) -> Rule:
    """The row for an outcome that an attempt can have."""
    rows = [row for row in POLICY if row.outcome is outcome]
    return next((row for row in rows if kind in row.kinds), rows[-1])


def goes_back(detail: OutcomeDetail, *, tries: int, retries: int) -> bool:
    """Whether a run goes back after an attempt that ended so. `tries` counts the attempts so far, this one included."""
    action = rule_of(detail.outcome, detail.kind).action
    return action is Action.RETURN or (action is Action.RETRY and tries <= retries)


def back_off(campaign: Campaign, detail: OutcomeDetail, *, tries: int) -> float:
    """How many seconds a run that goes back waits at least: doubled with every try, none after a cancelled attempt."""
    if rule_of(detail.outcome, detail.kind).action is not Action.RETRY:
        return 0.0
    return campaign.back_off_after(tries)


def blamed(detail: OutcomeDetail, *, used: Collection[str], lab: Lab) -> tuple[str, ...]:
    """The hosts that an outcome counts a strike against. `used` names hosts and plain machines of the attempt; plain
    machines are never blamed, because nothing else could be done without them."""
    blame = rule_of(detail.outcome, detail.kind).blame
    if blame is Blame.NOBODY:
        return ()
    if detail.host:
        return (detail.host,) if detail.host in lab.hosts else ()
    return _hosts(used, lab) if blame is Blame.HOSTS else ()


def cleared(detail: OutcomeDetail, *, used: Collection[str], lab: Lab) -> tuple[str, ...]:
    """The hosts that an outcome shows to work."""
    return _hosts(used, lab) if rule_of(detail.outcome, detail.kind).clears else ()


def _hosts(used: Collection[str], lab: Lab) -> tuple[str, ...]:
    return tuple(name for name in used if name in lab.hosts)

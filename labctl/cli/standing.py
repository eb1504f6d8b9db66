"""How a campaign stands, in words for people and as plain data for programs: what `status` and `watch` say of it."""

from __future__ import annotations

from typing import Any

from labctl.campaign.progress import Left, Progress
from labctl.cli.words import between, durations, listed, many, moment, stamp
from labctl.model.outcome import AttemptState, CampaignState, Outcome
from labctl.store import ActiveAttempt, CampaignLine, HostRecord, Store

EXIT_OK, EXIT_FAILED_RUNS = 0, 1


def exit_code(now: Progress) -> int:
    """0 for a campaign that is done without a failed run, else 1."""
    failed = now.counts.get(Outcome.FAILED, 0) + now.counts.get(Outcome.LAB_ERROR, 0)
    return EXIT_OK if now.state is CampaignState.DONE and not failed else EXIT_FAILED_RUNS


def in_progress(store: Store, campaign_id: int, *, stopped: bool) -> str:
    """What becomes of the attempts of a campaign that are in progress while it is paused or cancelled."""
    attempts = store.active_attempts(campaign_id)
    if not attempts:
        return "nothing of it is in progress"
    one = len(attempts) == 1
    becomes = ("is" if one else "are") + " being stopped" if stopped else "finishes" if one else "finish"
    return f"{many(len(attempts), 'attempt')} in progress {becomes}"


def rate(now: Progress) -> str:
    """Runs per hour lately; empty when that can't be told, or when it is over."""
    if now.rate is None or now.state.ended:
        return ""
    return f"{now.rate:,.0f} runs/h" if now.rate >= 10 else f"{now.rate:.1f} runs/h"


def times_left(now: Progress) -> str:
    """How long a campaign will still take and when it will be done, as ranges, with what they rest on; empty when nothing
    is left, or nothing will be done."""
    left = now.left
    if now.done == now.total or now.state.ended:
        return ""
    basis = f"from {many(left.measured, 'attempt')}" if left.measured else "as the plan estimates"
    text = f"about {durations(*left.seconds)} of work left ({basis})"
    return f"{text}{_done(left)}" if now.state is CampaignState.ACTIVE else text


def _done(left: Left) -> str:
    """When it will be done."""
    early, late = left.done
    nights = f", in {many(left.nights, 'night')}" if left.nights > 1 else ""
    if early is None:
        return f"; the windows have no room for all of it{nights}"
    if late is None:
        return f"; done {moment(early)} at the earliest, but the windows may have no room for all of it"
    return f"; done {between(early, late)}{nights}"


def beside(now: Progress) -> str:
    """Who else wants hosts of the lab, in a sentence; empty for nobody."""
    if not now.beside:
        return ""
    others = listed([f"campaign {campaign_id}" for campaign_id in now.beside])
    return (
        f"{others} {'wants' if len(now.beside) == 1 else 'want'} hosts of the lab, too: all takes longer by their share"
    )


def bad_host(record: HostRecord) -> str:
    """Why a host is given no runs, in words."""
    check = f"; next health check {moment(record.next_check)}" if record.next_check else ""
    return f"host {record.host} is {record.state} since {moment(record.since)}: {record.why}{check}"


def activity(item: ActiveAttempt, at: float) -> tuple[str, ...]:
    """An attempt in progress in words: hosts, cell, which one, phase, for how long."""
    which = f"replicate {item.replicate}" + (f", attempt {item.number}" if item.number > 1 else "")
    return "+".join(item.hosts), item.cell.key, which, doing(item), f"{_seconds(item, at):.0f} s"


def doing(item: ActiveAttempt) -> str:
    """What an attempt in progress does, in words: its phase, or that it has none yet."""
    return item.phase or ("waits for a slot" if item.state is AttemptState.SENT else "begins")


def line_facts(line: CampaignLine) -> dict[str, Any]:
    """A campaign in a list, as plain data."""
    return {
        "id": line.id,
        "name": line.name,
        "lab": line.lab,
        "state": line.state.value,
        "why": line.why,
        "hold": line.hold,
        "priority": line.priority,
        "purpose": line.purpose.value,
        "submitted": stamp(line.submitted),
        "runs": dict(line.runs),
    }


def work_facts(now: Progress) -> dict[str, Any]:
    """How far a campaign is, how fast it goes and what is left of it, as plain data. Instants are ISO 8601 in UTC, ranges
    are [low, high]."""
    left = now.left
    return {
        "at": stamp(now.at),
        "total": now.total,
        "done": now.done,
        "runs_per_hour": None if now.rate is None else round(now.rate, 2),
        "left": {
            "seconds": [round(bound, 1) for bound in left.seconds],
            "done": [None if bound is None else stamp(bound) for bound in left.done],
            "nights": left.nights,
            "from_attempts": left.measured,
        },
        "beside": list(now.beside),
    }


def progress_facts(now: Progress) -> dict[str, Any]:
    """All of a campaign at one moment, as plain data."""
    head = now.head
    return {
        "id": head.id,
        "name": head.name,
        "lab": head.lab.name,
        "state": head.state.value,
        "why": head.why,
        "hold": head.hold,
        "priority": head.priority,
        "purpose": head.purpose.value,
        "submitted": stamp(head.submitted),
        "runs": dict(now.counts),
        **work_facts(now),
        "attempts": [
            {
                "id": item.id,
                "hosts": list(item.hosts),
                "cell": item.cell.key,
                "replicate": item.replicate,
                "attempt": item.number,
                "phase": item.phase or item.state.value,
                "seconds": round(_seconds(item, now.at), 1),
                "expected_seconds": round(item.estimate, 1),
                "worker": item.worker,
            }
            for item in now.active
        ],
        "bad_hosts": [
            {
                "host": record.host,
                "state": record.state.value,
                "why": record.why,
                "since": stamp(record.since),
                "next_check": stamp(record.next_check) if record.next_check else None,
            }
            for record in now.bad_hosts
        ],
    }


def _seconds(item: ActiveAttempt, at: float) -> float:
    return max(0.0, at - (item.claimed or item.created))

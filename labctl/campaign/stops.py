"""Stops: what fails the same way everywhere is not tried all night.

A cell is stopped when none of its runs gave a figure, one of them ended badly for good, and attempts at it ended in that
same way on two hosts, so that no one host can be the reason. A campaign is stopped when most of its cells end alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labctl import clock
from labctl.campaign.commands import CELL_STOPPED
from labctl.campaign.policy import LIMITS, Blame, rule_of
from labctl.model.lab import Lab
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail
from labctl.store import CampaignHead, Event, Store, Trouble


@dataclass(frozen=True, kw_only=True)
class Alike:
    """How most cells of a campaign end, in a sentence, and the latest attempt that ended so."""

    said: str
    latest: int


def stop_cells(store: Store, head: CampaignHead, troubles: Sequence[Trouble]) -> None:
    """End the runs that wait of every cell that fails the same way on two hosts."""
    suspects = [trouble for trouble in troubles if stops_cell(trouble)]
    if not suspects:
        return
    figures = store.cells_with_result(head.id)
    for trouble in suspects:
        if trouble.cell not in figures and store.cell_replicates(head.id, trouble.cell)[1]:
            reason = _reason(store, head.id, trouble)
            store.tell(
                Event(
                    scope=f"campaign-{head.id}",
                    key=f"{CELL_STOPPED}-{trouble.cell}-{head.forgiven}",
                    campaign_id=head.id,
                    kind=CELL_STOPPED,
                    what=f"Cell {trouble.cell} is stopped. {reason.why}",
                    at=clock.now(),
                )
            )
            store.end_pending(head.id, reason, cell_id=trouble.cell)


def stop_campaign(store: Store, head: CampaignHead, troubles: Sequence[Trouble]) -> None:
    """Stop a campaign most of whose cells end alike. Its attempts in progress finish; its other runs wait for a person."""
    if len({trouble.cell for trouble in troubles}) < LIMITS.cells:
        return
    alike = most_alike(troubles, store.cells_with_result(head.id), head.lab)
    if alike is None:
        return
    why = f"{alike.said} The latest: {_words(store, alike.latest)}"
    store.tell(
        Event(
            scope=f"campaign-{head.id}",
            key=f"campaign-stopped-{head.forgiven}",
            campaign_id=head.id,
            kind="campaign-stopped",
            what=f"Campaign {head.id} ({head.name}) is stopped. {why} When it is mended, `labctl resume {head.id}` goes on.",
            at=clock.now(),
        )
    )
    store.set_state(head.id, CampaignState.STOPPED, why=why, only_from=(CampaignState.ACTIVE,))


def stops_cell(trouble: Trouble) -> bool:
    """Whether a cell whose attempts ended so, and that has no figure, is to be stopped."""
    return bool(rule_of(trouble.outcome, trouble.kind).stops_cell and trouble.recorded and on_two_hosts(trouble))


def on_two_hosts(trouble: Trouble) -> bool:
    """Whether no one host had a part in all of the attempts that ended so."""
    return not frozenset.intersection(*(frozenset(names.split("+")) for names in trouble.hosts))


def most_alike(troubles: Iterable[Trouble], figures: Mapping[str, int], lab: Lab) -> Alike | None:
    """How most cells end, when that stops a campaign; else None.

    `figures` counts the runs that gave one, by cell id; such a cell doesn't end alike, and neither does one that ended in
    more than one way.
    """
    by_cell: dict[str, list[Trouble]] = defaultdict(list)
    for trouble in troubles:
        by_cell[trouble.cell].append(trouble)
    tried = len(by_cell.keys() | figures.keys())
    alike: dict[tuple[Outcome, str], list[Trouble]] = defaultdict(list)
    for cell, found in by_cell.items():
        if len(found) == 1 and cell not in figures and stops_campaign(found[0], lab):
            alike[found[0].outcome, found[0].kind].append(found[0])
    for (outcome, kind), found in alike.items():
        attempts = sum(trouble.attempts for trouble in found)
        if len(found) >= LIMITS.cells and attempts >= LIMITS.attempts and len(found) > LIMITS.share * tried:
            said = f"{len(found)} of the {tried} cells that were tried end as {outcome} ({kind}), in all {attempts} attempts."
            return Alike(said=said, latest=max(trouble.latest for trouble in found))
    return None


def stops_campaign(trouble: Trouble, lab: Lab) -> bool:
    """Whether it stops a campaign that most cells end so. What quarantine keeps runs away from does not; a plain machine
    has no quarantine."""
    rule = rule_of(trouble.outcome, trouble.kind)
    if rule.stops_campaign or rule.blame is not Blame.HOSTS:
        return rule.stops_campaign
    return any(name in lab.machines for names in trouble.hosts for name in names.split("+"))


def _words(store: Store, attempt_id: int) -> str:
    """What an attempt said of how it ended."""
    detail = store.detail(attempt_id)
    return " ".join(text for text in (detail.what, detail.why) if text) or detail.kind


def _reason(store: Store, campaign_id: int, trouble: Trouble) -> OutcomeDetail:
    hosts = " and ".join(sorted(trouble.hosts))
    return OutcomeDetail(
        outcome=Outcome.CANCELLED,
        kind=CELL_STOPPED,
        what="The run was not run: its cell is stopped.",
        why=f"{trouble.attempts} attempts at it ended as {trouble.outcome} ({trouble.kind}), on {hosts}, "
        f"and none of its runs gave a figure. The latest: {_words(store, trouble.latest)}",
        todo=f"See what failed; when it is mended, `labctl retry {campaign_id}` runs it.",
    )

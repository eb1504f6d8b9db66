"""A worker whose code is another one than that of the service that started an attempt claims nothing and ends itself."""

from __future__ import annotations

import logging

from labctl import clock
from labctl.campaign.liveness import withdraw
from labctl.campaign.processes import this_machine
from labctl.campaign.versions import code_version
from labctl.model.outcome import Outcome, OutcomeDetail
from labctl.store import Event, Store
from workers.owner import refuse_to_work

log = logging.getLogger(__name__)


def is_of_another_version(store: Store, attempt_id: int, version: str) -> bool:
    """Whether an attempt was started by another version of labctl. Then it is given back, at no try of its run, people are
    told, and this worker ends."""
    mine = code_version()
    if version == mine:
        return False
    why = (
        f"The worker on {this_machine()} is labctl {mine}, but the service that starts runs is labctl {version or 'older'} "
        f"(version/revision of the store)."
    )
    log.error("attempt %s is given back. %s", attempt_id, why)
    campaign_id, _ = store.tries(attempt_id)
    withdraw(store, [attempt_id], why=_OTHER_VERSION)
    store.tell(
        Event(
            scope=f"lab-{store.head(campaign_id).lab.name}",
            key=f"version-{this_machine()}-{mine}-{version}",
            kind="version",
            what=f"{why} It has ended. Install the same version on all machines that share a store.",
            at=clock.now(),
            campaign_id=campaign_id,
        )
    )
    refuse_to_work(why)
    return True


_OTHER_VERSION = OutcomeDetail(
    outcome=Outcome.CANCELLED,
    kind="version",
    what="The attempt was given back.",
    why="The worker that got it is of another version of labctl.",
    todo="Install the same version on all machines that share a store.",
)

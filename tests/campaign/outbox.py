"""An outbox for tests of the engine: messages are kept instead of sent, and carried out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from labctl.campaign import commands, judgement
from labctl.model.lab import Lab
from labctl.model.result import AttemptResult
from labctl.store import AttemptHandle, CampaignHead, Store
from tests.values import a_campaign, a_lab


@dataclass
class Outbox:
    """Keeps the messages that would have been sent."""

    attempts: list[AttemptHandle] = field(default_factory=list)
    cleans: list[int] = field(default_factory=list)

    def attempt(self, lab: Lab, handle: AttemptHandle) -> None:
        self.attempts.append(handle)

    def clean(self, lab: Lab, campaign_id: int) -> None:
        self.cleans.append(campaign_id)


def submitted(store: Store, lab: Lab | None = None, **changes: object) -> CampaignHead:
    campaign_id = commands.submit(
        store, a_campaign(**{"back_off": 0.0} | changes), lab or a_lab(), campaign_text="c", lab_text="l"
    )
    return store.head(campaign_id)


def carry_out(store: Store, handle: AttemptHandle, result: AttemptResult) -> bool:
    assert store.claim(handle, worker="w:1") is not None
    return judgement.accept(store, handle, result)

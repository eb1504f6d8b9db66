"""The only place that speaks SQL."""

from labctl.store.store import (
    ActiveAttempt,
    AttemptHandle,
    CampaignHead,
    CampaignLine,
    ClaimedAttempt,
    LeaseLine,
    PendingRun,
    Store,
    VmRecord,
    open_store,
)

__all__ = [
    "ActiveAttempt",
    "AttemptHandle",
    "CampaignHead",
    "CampaignLine",
    "ClaimedAttempt",
    "LeaseLine",
    "PendingRun",
    "Store",
    "VmRecord",
    "open_store",
]

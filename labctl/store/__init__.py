"""The only place that speaks SQL."""

from labctl.store.store import (
    ENGINE_GONE,
    MESSAGE_LOST,
    WORKER_LOST,
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
    "ENGINE_GONE",
    "MESSAGE_LOST",
    "WORKER_LOST",
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

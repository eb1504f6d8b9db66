"""Finding the record of a campaign, for reports."""

from __future__ import annotations

from pathlib import Path

from labctl.errors import SpecError
from labctl.model.result import CampaignRecord
from labctl.store import open_store
from labctl.store.database import sqlite_url


def load(state: Path, campaign_id: int | None) -> CampaignRecord:
    """The record of a campaign, or of the newest one. Raises `SpecError` when there is none."""
    if not Path(sqlite_url(state).removeprefix("sqlite:///")).exists():
        raise SpecError(
            f"There is no store in {state}.",
            todo="Run a campaign first (`labctl run`), or name the state directory with --state.",
        )
    store = open_store(state)
    try:
        wanted = campaign_id if campaign_id is not None else store.newest_campaign()
        if wanted is None:
            raise SpecError("No campaign has been submitted yet.", todo="Run one: `labctl run CAMPAIGN --lab LAB`.")
        return store.record(wanted)
    finally:
        store.close()

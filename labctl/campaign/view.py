"""What a person is shown while a campaign is worked off."""

from __future__ import annotations

from labctl.campaign.progress import Progress
from labctl.store import LeaseLine


class View:
    """Shows a campaign to a person. The base shows nothing."""

    def show(self, now: Progress, waiting: tuple[LeaseLine, ...] = ()) -> None:
        """The state now. `waiting` names leases of others that keep this campaign from starting anything."""

    def say(self, text: str) -> None:
        """One line that stays."""

"""What a person is shown while a campaign is worked off."""

from __future__ import annotations

from labctl.campaign.progress import Progress


class View:
    """Shows a campaign to a person. The base shows nothing."""

    def show(self, now: Progress) -> None:
        """The state now."""

    def say(self, text: str) -> None:
        """One line that stays."""

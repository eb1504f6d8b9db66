"""An engine and a worker in one, for processes that hurry over one store."""

from __future__ import annotations

import random
import time

from labctl.campaign import scheduler
from tests.campaign.outbox import Outbox, carry_out
from tests.store.processes import opened
from tests.values import a_result

PATIENCE = 150.0


def hurry(url: str, seed: int) -> tuple[int, int]:
    """Advance, and carry out what was started here, until no campaign is active. Returns how many runs were started, and
    how many of them migrated at once at the most, as far as this process saw."""
    source, outbox, store = random.Random(seed), Outbox(), opened(url)
    started, most = 0, 0
    deadline = time.monotonic() + PATIENCE
    while store.queue():
        assert time.monotonic() < deadline, store.campaigns()
        started += scheduler.advance(store, outbox).started
        most = max(most, sum(line.resource.startswith("migration:") for line in store.leases()))
        source.shuffle(outbox.attempts)
        while outbox.attempts and source.random() < 0.8:
            assert carry_out(store, outbox.attempts.pop(), a_result())
    store.close()
    return started, most

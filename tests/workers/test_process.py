"""How the processes of a worker end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from billiard import pool

from workers.process import _end_soon


def test_a_child_that_ends_does_not_wait_long_for_a_main_process_that_reads_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT", 300)
    waits: list[float] = []
    monkeypatch.setattr(pool, "time", SimpleNamespace(sleep=waits.append))
    child = object.__new__(pool.Worker)
    child.on_ready_counter = SimpleNamespace(value=1)
    _end_soon()
    assert child._ensure_messages_consumed(1)
    assert not child._ensure_messages_consumed(2)
    assert 0 < sum(waits) <= 1.01

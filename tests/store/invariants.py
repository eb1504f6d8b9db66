"""What holds in a store at every moment, whatever was done to it and in whatever order; read past the store."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import Connection

# One row for each run, with what its attempts say.
_RUNS = """
SELECT runs.id, runs.state, runs.outcome, runs.tries, runs.retried, runs.detail, campaigns.state AS campaign,
  accepted.run_id AS accepted_run, accepted.state AS accepted_state, accepted.outcome AS accepted_outcome,
  count(attempts.id) AS attempts,
  sum(CASE WHEN attempts.state IN ('sent', 'claimed') THEN 1 ELSE 0 END) AS in_progress,
  sum(CASE WHEN attempts.id IS NOT NULL AND coalesce(attempts.outcome, '') <> 'cancelled' THEN 1 ELSE 0 END) AS tried,
  max(attempts.id) AS newest
FROM runs
JOIN campaigns ON campaigns.id = runs.campaign_id
LEFT JOIN attempts AS accepted ON accepted.id = runs.accepted_attempt
LEFT JOIN attempts ON attempts.run_id = runs.id
GROUP BY runs.id, runs.state, runs.outcome, runs.tries, runs.retried, runs.detail, campaigns.state,
  accepted.run_id, accepted.state, accepted.outcome
"""
_LEASES = """
SELECT leases.resource, leases.token, attempts.token AS token_of_attempt
FROM leases JOIN attempts ON attempts.id = leases.attempt_id
"""
_CELLS = """
SELECT cells.id, cells.timed, cells.seconds,
  sum(CASE WHEN attempts.state = 'ended' AND attempts.outcome IN ('ok', 'failed') THEN 1 ELSE 0 END) AS counted
FROM cells LEFT JOIN runs ON runs.cell_id = cells.id LEFT JOIN attempts ON attempts.run_id = runs.id
GROUP BY cells.id, cells.timed, cells.seconds
"""
_UNLEASED = """
SELECT attempts.id FROM attempts
WHERE attempts.state IN ('sent', 'claimed') AND NOT EXISTS (SELECT 1 FROM leases WHERE leases.attempt_id = attempts.id)
"""
_ADDRESSES = "SELECT lab, address FROM vms WHERE state <> 'gone'"


def check(db: Connection, *, reopened: bool = False) -> None:
    """Fail when anything doesn't hold. `reopened`: runs were sent back by a person, so that their tries began anew."""
    for run in db.exec_driver_sql(_RUNS):
        _check_run(run, reopened=reopened)
    for lease in db.exec_driver_sql(_LEASES):
        assert lease.token == lease.token_of_attempt, lease
    assert db.exec_driver_sql(_UNLEASED).all() == [], "attempts in progress without their leases"
    for cell in db.exec_driver_sql(_CELLS):
        assert cell.timed == (cell.counted or 0), cell
        assert cell.seconds >= 0, cell
    given = Counter(tuple(row) for row in db.exec_driver_sql(_ADDRESSES))
    assert all(count == 1 for count in given.values()), given


def _check_run(run: Any, *, reopened: bool) -> None:
    assert (run.in_progress or 0) <= 1, run
    assert run.tries <= (run.tried or 0), run
    assert reopened or run.tries == (run.tried or 0), run
    if run.state == "done":
        assert not run.in_progress, run
        assert run.outcome, run
        assert (run.accepted_run is None) != (run.detail is None), f"either a result or a reason: {run}"
        if run.accepted_run is not None:
            assert run.accepted_run == run.id, run
            assert run.accepted_state in ("ended", "lost"), run
            assert run.accepted_outcome == run.outcome, run
    else:
        assert (run.outcome, run.accepted_run, run.detail) == (None, None, None), run
    if run.state == "pending":
        assert not run.in_progress, run
        assert bool(run.retried) == (run.tries > 0), run
    if run.state == "active":
        assert run.tries >= 0, run
        assert run.newest is not None, run

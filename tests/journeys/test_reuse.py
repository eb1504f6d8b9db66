from __future__ import annotations

import pytest

from tests.desk import Desk, outcomes

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


def test_runs_take_parked_vms_and_leave_none_at_the_end(desk: Desk) -> None:
    campaign = desk.campaign(
        scenarios=["same-host"], factors={"streams": [1, 2]}, settings={"seconds": 1}, repeats=2, reuse=True
    )
    ended = desk.run(campaign).wait(seconds=500)
    assert ended.code == 0, ended.said
    assert outcomes(desk.record()) == {"ok": 4}
    made = desk.query("SELECT role, state, attempt_id FROM vms ORDER BY role")
    assert [role for role, _, _ in made] == ["receiver", "sender"], "four runs share one pair of VMs"
    assert {state for _, state, _ in made} == {"gone"}
    (last,) = {attempt for _, _, attempt in made}
    assert last == max(desk.query("SELECT id FROM attempts"))[0], "the pair was handed on to the last attempt"
    for run in desk.record().runs:
        assert run.result is not None
        phases = [name for name, _ in run.result.phases]
        for place, phase in enumerate(phases):
            assert phase not in ("warm-up", "transfer") or phases[place - 1] == "verify", (
                "each transfer is verified before"
            )
    assert "reused VMs" in desk.labctl("report", "1").out
    desk.assert_nothing_left()

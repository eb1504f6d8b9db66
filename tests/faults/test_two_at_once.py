"""Two commands on one lab: hosts are used by one at a time, and whoever waits says for whom."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.desk import Desk, outcomes, until, virsh
from tests.hypervisors.guests import guests_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def test_the_second_waits_and_says_so_and_one_campaign_has_one_engine(desk: Desk) -> None:
    first = desk.run(desk.campaign("first.yaml", scenarios=["same-host"], settings={"seconds": 18}))
    desk.phase(first, "transfer")
    second = desk.run(desk.campaign("second.yaml", scenarios=["vm-to-host"], settings={"seconds": 1}))
    third = desk.resume(1).wait()
    assert third.code == 3, third.said
    assert "Another `labctl run` works on campaign 1 now" in third.err
    until("the second says that it waits", lambda: "leased by campaign 1" in second.said)
    for command in (first, second):
        ended = command.wait()
        assert ended.code == 0, ended.said
    assert "leased by" not in first.said
    assert outcomes(desk.record(1)) == outcomes(desk.record(2)) == {"ok": 1}
    times = desk.query("SELECT created, ended, campaign_id FROM attempts ORDER BY created")
    assert len(times) == 2, "nobody's attempt was disturbed"
    for (_, ended_at, _), (began, _, _) in pairwise(times):
        assert ended_at <= began, "all hosts are one physical machine, so attempts never overlap"
    desk.assert_nothing_left()


def test_a_campaign_of_another_store_on_the_same_machine_is_no_company_to_be_measured_in(desk: Desk) -> None:
    with guests_of(desk.lab) as guests:
        stranger = guests.create("b")
        campaign = desk.campaign(scenarios=["vm-to-host"], settings={"seconds": 1}, retries=0)
        ended = desk.run(campaign).wait()
        assert ended.code == 1, ended.said
        (run,) = desk.record().runs
        assert run.result is not None
        assert (run.result.detail.outcome, run.result.detail.kind) == ("lab-error", "host-shared")
        assert stranger.name in run.result.detail.what
        assert run.result.transfers == (), "nothing was measured"
        assert virsh(desk.lab, "b", "domstate", stranger.name).stdout.strip() == "running"
    desk.assert_nothing_left()

"""Schedules are drawn so that a seed says all, and so that many seeds meet everything."""

from __future__ import annotations

from collections import Counter

import pytest

from labctl.model.scenario import Scenario
from labctl.plan.matrix import refuse_oversize
from tests.schedules.draw import MOST_RUNS, draw
from tests.schedules.schedule import IN_THE_LAB, Schedule, Trouble
from tests.schedules.seeds import SEEDS


@pytest.fixture(scope="module")
def many() -> list[Schedule]:
    """Those of the benchmark."""
    return [draw(seed) for seed in range(300)]


@pytest.mark.parametrize("seed", [0, 7, 123_456])
def test_a_seed_is_all_that_a_schedule_depends_on(seed: int) -> None:
    assert draw(seed) == draw(seed)
    assert draw(seed) != draw(seed + 1)


def test_every_trouble_comes_often(many: list[Schedule]) -> None:
    found = Counter(trouble for schedule in many for trouble in schedule.troubles)
    assert set(found) == set(Trouble)
    assert min(found.values()) >= 10


def test_the_suite_meets_every_trouble() -> None:
    assert set().union(*(draw(seed).troubles for seed in SEEDS)) == set(Trouble)


def test_labs_campaigns_and_services_are_of_all_kinds(many: list[Schedule]) -> None:
    labs = [schedule.lab for schedule in many]
    assert {len(lab.hosts) for lab in labs} == {2, 3, 4, 5, 6}
    assert any(len({host.machine for host in lab.hosts.values()}) < len(lab.hosts) for lab in labs)
    assert any(len(lab.migration_pairs) < len(lab.hosts) * (len(lab.hosts) - 1) for lab in labs)
    campaigns = [each.campaign for schedule in many for each in schedule.campaigns]
    assert {scenario for campaign in campaigns for scenario in campaign.scenarios} == set(Scenario)
    assert {campaign.reuse for campaign in campaigns} == {True, False}
    assert {campaign.adaptive is None for campaign in campaigns} == {True, False}
    assert {campaign.priority for campaign in campaigns} == {0, 5}
    assert {len(schedule.campaigns) for schedule in many} == {1, 2, 3}
    assert {(schedule.services, schedule.shared_redis) for schedule in many} == {
        (services, shared) for services in (1, 2) for shared in (True, False)
    }
    assert {stranger.mark for schedule in many for stranger in schedule.strangers} == {
        "none", "other lab", "other store",
    }  # fmt: skip


def test_every_campaign_can_be_run_and_is_small(many: list[Schedule]) -> None:
    for schedule in many:
        for each in schedule.campaigns:
            counts = refuse_oversize(each.campaign, schedule.lab)
            assert 1 <= counts.runs <= max(MOST_RUNS, counts.applicable)


def test_a_schedule_tells_all_that_happens_in_it(many: list[Schedule]) -> None:
    for schedule in many:
        text = str(schedule)
        assert f"seed {schedule.seed}:" in text
        assert all(str(happening.trouble) in text for happening in schedule.happenings)
        assert all(each.campaign.name in text for each in schedule.campaigns)
        for happening in schedule.happenings:
            assert bool(happening.faults) == (happening.trouble in IN_THE_LAB or _dies_in_the_lab(happening.trouble))


def _dies_in_the_lab(trouble: Trouble) -> bool:
    return trouble is Trouble.WORKER_DIES_AT_OPERATION

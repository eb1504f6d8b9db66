"""Anchors: one cell again and again between the others, so that drift shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.errors import SpecError
from labctl.model.campaign import Adaptive, Anchor, Campaign
from labctl.model.outcome import Purpose
from labctl.model.scenario import Scenario
from labctl.plan.matrix import (
    FIRST_ANCHOR_REPLICATE,
    anchor_position,
    block_order,
    count,
    planned_cells,
    refuse_oversize,
    work_order,
)
from labctl.spec.campaign import parse_campaign
from labctl.spec.lab import parse_lab

LAB = parse_lab("lab: two\nembedded: {hosts: [a, b]}\n")
PLAIN = Campaign(name="x", scenarios=(Scenario.SAME_HOST,), factors={}, settings={}, seed=42)
LEVELS = {"scenario": "same-host", "nic_model": "virtio"}


def anchored(every: int, **changes: object) -> Campaign:
    return replace(PLAIN, anchor=Anchor(levels=LEVELS, every=every), **changes)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 50), st.integers(0, 2**63 - 1))
def test_between_the_blocks_the_anchor_comes_after_every_so_many_runs(
    cells: int, repeats: int, every: int, seed: int
) -> None:
    campaign = anchored(every, repeats=repeats, seed=seed)
    order = list(work_order(campaign, cells, 0))
    measured = [(position, replicate) for position, replicate, purpose in order if purpose is Purpose.MEASURE]
    assert measured == [
        (position, replicate)
        for replicate in range(1, repeats + 1)
        for position in block_order(campaign, cells, replicate)
    ]
    anchors = [index for index, (_, _, purpose) in enumerate(order) if purpose is Purpose.ANCHOR]
    assert anchors == [(every + 1) * number - 1 for number in range(1, len(measured) // every + 1)]
    runs = Counter((position, replicate) for position, replicate, _ in order)
    assert set(runs.values()) == {1}
    assert order == list(work_order(campaign, cells, 0))


def test_replicates_of_anchors_are_apart_from_those_that_measure() -> None:
    order = list(work_order(anchored(2, repeats=2), 3, 1))
    anchors = [(position, replicate) for position, replicate, purpose in order if purpose is Purpose.ANCHOR]
    assert anchors == [(1, FIRST_ANCHOR_REPLICATE + number) for number in range(3)]


def test_without_an_anchor_the_order_is_that_of_the_blocks() -> None:
    assert [purpose for *_, purpose in work_order(replace(PLAIN, repeats=2), 3, None)] == [Purpose.MEASURE] * 6


def test_the_order_of_work_is_lazy() -> None:
    huge = anchored(2, repeats=100_000)
    assert len(list(islice(work_order(huge, 1000, 7), 5))) == 5


TEXT = """\
campaign: x
scenarios: [during-migration, same-host]
factors: {nic_model: [virtio, rtl8139, vt-d], offload.tso: [on, off]}
include:
  - {scenario: host-to-host}
  - {scenario: same-host, nic_model: vmxnet3}
exclude: [{scenario: same-host, nic_model: virtio, offload.tso: on}]
"""


def test_every_applicable_cell_can_be_the_anchor() -> None:
    campaign = parse_campaign(TEXT)
    applicable = [planned.cell for planned in planned_cells(campaign, LAB) if not planned.reason]
    assert len(applicable) > 4
    found = [anchor_position(replace(campaign, anchor=Anchor(levels=cell.levels, every=2)), LAB) for cell in applicable]
    assert found == list(range(len(applicable)))
    assert anchor_position(campaign, LAB) is None


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ({"scenario": "same-host", "nic_model": "vt-d", "offload.tso": True}, "not applicable: "),
        ({"scenario": "same-host", "nic_model": "virtio", "offload.tso": True}, "no such cell"),
        ({"scenario": "same-host", "nic_model": "virtio"}, "no such cell"),
        ({"scenario": "host-to-host", "nic_model": "virtio"}, "no such cell"),
        ({"scenario": "cross-host", "nic_model": "virtio", "offload.tso": False}, "no such cell"),
    ],
)
def test_a_cell_that_can_not_be_run_is_no_anchor(levels: dict[str, str | bool], words: str) -> None:
    campaign = replace(parse_campaign(TEXT), anchor=Anchor(levels=levels, every=2))
    with pytest.raises(SpecError) as caught:
        anchor_position(campaign, LAB)
    assert words in caught.value.why
    assert "nic_model=" in caught.value.what


def test_the_cap_counts_anchors_and_all_repeats_that_there_can_be() -> None:
    campaign = parse_campaign("campaign: x\nscenarios: same-host\nfactors: {nic_model: [virtio, e1000]}\nrepeats: 3\n")
    counts = count(campaign, LAB)
    assert (counts.runs, counts.most_runs) == (6, 6)
    adaptive = replace(campaign, adaptive=Adaptive(maximum=10, within=0.05), anchor=Anchor(levels=LEVELS, every=4))
    counts = count(adaptive, LAB)
    assert (counts.runs, counts.most_runs) == (6, 25)
    assert refuse_oversize(replace(adaptive, max_runs=25), LAB) == counts
    with pytest.raises(SpecError, match=r"25 runs; the cap is 24.*") as caught:
        refuse_oversize(replace(adaptive, max_runs=24), LAB)
    assert "up to 10 times, and a run of the anchor after every 4" in caught.value.why

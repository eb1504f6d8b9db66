from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.errors import SpecError
from labctl.model.campaign import Campaign, Cell, Order, Override, Selection
from labctl.model.scenario import Scenario
from labctl.model.settings import Level
from labctl.plan.applicability import reason
from labctl.plan.matrix import Matrix, block_order, cells, count, planned_cells, refuse_oversize
from labctl.plan.settings import concerns, matches, settings_of
from labctl.spec.campaign import parse_campaign
from labctl.spec.lab import parse_lab

LAB = parse_lab(
    "lab: two\nembedded: {hosts: [a, b], machines: [box], host_facts: {a: {rack: left, nic: x}, b: {rack: right, nic: x}}}\n"
)


def keys(campaign: Campaign) -> list[str]:
    return [cell.key for cell in cells(campaign)]


def test_settings_that_concern_nothing_are_dropped_and_what_is_equal_then_is_one_cell() -> None:
    campaign = parse_campaign(
        "campaign: x\nscenarios: [vm-to-host, host-to-host]\n"
        "factors: {nic_model: [virtio, e1000], peer: [own-host, other-host], migrate_at: [0.2, 0.5]}\n"
    )
    assert keys(campaign) == [
        "scenario=vm-to-host nic_model=virtio peer=own-host",
        "scenario=vm-to-host nic_model=virtio peer=other-host",
        "scenario=vm-to-host nic_model=e1000 peer=own-host",
        "scenario=vm-to-host nic_model=e1000 peer=other-host",
        "scenario=host-to-host peer=own-host",
        "scenario=host-to-host peer=other-host",
    ]


def test_what_is_included_is_a_product_of_its_own_and_merged_with_equal_cells() -> None:
    campaign = parse_campaign(
        "campaign: x\nscenarios: [same-host]\nfactors: {nic_model: [virtio, e1000]}\n"
        "include:\n"
        "  - {scenario: [same-host, cross-host], nic_model: [e1000, vmxnet3]}\n"
        "  - {scenario: cross-host, nic_model: vmxnet3}\n"
        "  - {streams: 4}\n"
    )
    assert keys(campaign) == [
        "scenario=same-host nic_model=virtio",
        "scenario=same-host nic_model=e1000",
        "scenario=same-host nic_model=vmxnet3",
        "scenario=cross-host nic_model=e1000",
        "scenario=cross-host nic_model=vmxnet3",
        "scenario=same-host streams=4",
    ]


def test_what_is_included_wins_over_what_is_excluded() -> None:
    campaign = parse_campaign(
        "campaign: x\nscenarios: [same-host]\nfactors: {nic_model: [virtio, e1000]}\n"
        "exclude: [{nic_model: e1000}]\ninclude: [{scenario: same-host, nic_model: e1000}]\n"
    )
    assert keys(campaign) == ["scenario=same-host nic_model=virtio", "scenario=same-host nic_model=e1000"]


def test_an_exclusion_by_a_setting_leaves_scenarios_alone_that_have_no_such_setting() -> None:
    campaign = parse_campaign(
        "campaign: x\nscenarios: [same-host, host-to-host]\nfactors: {nic_model: [virtio, e1000]}\n"
        "exclude: [{nic_model: [virtio, e1000]}]\n"
    )
    assert keys(campaign) == ["scenario=host-to-host"]


def test_reasons_are_counted() -> None:
    campaign = parse_campaign(
        "campaign: x\nscenarios: [same-host, during-migration]\nrepeats: 2\n"
        "factors: {nic_model: [virtio, rtl8139, vt-d], offload.tso: [on, off], own.a: [1, 2]}\n"
    )
    counts = count(campaign, LAB)
    assert counts.cells == 24
    assert counts.applicable == 8
    assert counts.runs == 16
    reasons = dict(counts.not_applicable_by_reason)
    assert reasons.pop("rtl8139 has no offload tso that can be switched") == 8
    assert sorted(reasons.values()) == [4, 4]
    assert any("can't be migrated" in text for text in reasons)
    assert any("devices" in text for text in reasons)


def test_the_cap_names_the_count_and_how_to_raise_it() -> None:
    """S6: too many runs are refused, unless they are asked for."""
    campaign = parse_campaign(
        "campaign: x\nscenarios: same-host\nfactors: {own.a: [1, 2, 3]}\nrepeats: 4\nlimits: {max_runs: 11}\n"
    )
    with pytest.raises(SpecError) as caught:
        refuse_oversize(campaign, LAB)
    text = str(caught.value)
    assert "12 runs" in text
    assert "cap is 11" in text
    assert "max_runs: 12" in text
    assert "--max-runs 12" in text


def test_a_campaign_without_an_applicable_cell_is_refused_with_the_reasons() -> None:
    campaign = parse_campaign("campaign: x\nscenarios: during-migration\nfactors: {nic_model: [vt-d, sr-iov]}\n")
    with pytest.raises(SpecError, match="can't be migrated") as caught:
        refuse_oversize(campaign, LAB)
    assert "Nothing was submitted.\nWhy: " in str(caught.value)
    assert all(line.endswith(".") for line in str(caught.value).splitlines())


def test_a_matrix_that_can_not_be_counted_is_refused_not_tried() -> None:
    levels = ", ".join(str(number) for number in range(1, 2001))
    campaign = parse_campaign(
        f"campaign: x\nscenarios: same-host\nfactors: {{own.a: [{levels}], own.b: [{levels}], own.c: [{levels}]}}\n"
        "exclude: [{own.a: 1, own.b: 1, own.c: 1}]\n"
    )
    with pytest.raises(SpecError, match="8,000,000,000 combinations"):
        count(campaign, LAB)


def test_factors_that_nothing_reads_only_multiply() -> None:
    levels = ", ".join(str(number) for number in range(1, 2001))
    campaign = parse_campaign(
        f"campaign: x\nscenarios: same-host\nfactors: {{own.a: [{levels}], own.b: [{levels}], own.c: [{levels}]}}\n"
        "exclude: [{own.a: 1}]\n"
    )
    assert count(campaign, LAB).cells == 1999 * 2000 * 2000


@given(st.integers(0, 300), st.integers(1, 50), st.integers(0, 2**63 - 1))
def test_a_block_is_a_permutation(number: int, replicate: int, seed: int) -> None:
    campaign = Campaign(name="x", scenarios=(Scenario.SAME_HOST,), factors={}, settings={}, seed=seed)
    order = block_order(campaign, number, replicate)
    assert sorted(order) == list(range(number))
    assert order == block_order(campaign, number, replicate)


def test_blocks_differ_by_replicate_and_by_seed() -> None:
    campaign = Campaign(name="x", scenarios=(Scenario.SAME_HOST,), factors={}, settings={}, seed=42)
    other = Campaign(name="x", scenarios=(Scenario.SAME_HOST,), factors={}, settings={}, seed=43)
    orders = [block_order(campaign, 20, 1), block_order(campaign, 20, 2), block_order(other, 20, 1)]
    assert len({tuple(order) for order in orders}) == 3


def test_the_order_of_a_seed_never_changes() -> None:
    """A recorded seed must give the same order for ever; this is the order that the first version gave."""
    campaign = Campaign(name="x", scenarios=(Scenario.SAME_HOST,), factors={}, settings={}, seed=42)
    assert list(block_order(campaign, 10, 1)) == [2, 9, 0, 1, 5, 4, 7, 6, 3, 8]


def test_every_first_place_is_equally_likely() -> None:
    campaign = Campaign(name="x", scenarios=(Scenario.SAME_HOST,), factors={}, settings={}, seed=7)
    first = Counter(block_order(campaign, 5, replicate)[0] for replicate in range(1, 2001))
    assert set(first) == set(range(5))
    chi_squared = sum((number - 400) ** 2 / 400 for number in first.values())
    assert chi_squared < 18.47, "the 0.1 % point of chi squared with 4 degrees of freedom"


def test_sequential_order_is_that_of_the_file() -> None:
    campaign = Campaign(
        name="x", scenarios=(Scenario.SAME_HOST,), factors={}, settings={}, seed=7, order=Order.SEQUENTIAL
    )
    assert list(block_order(campaign, 6, 3)) == [0, 1, 2, 3, 4, 5]


LEVELS: dict[str, tuple[Level, ...]] = {
    "nic_model": ("virtio", "e1000", "rtl8139", "vmxnet3", "vt-d"),
    "offload.tso": (True, False, "default"),
    "offload.lro": (True, False),
    "offload.lso": (True, "default"),
    "host_offload.tso": (True, "default"),
    "host_offload.vmq": (True, "default"),
    "queues": (1, 2, 4),
    "vcpus": (1, 2),
    "vhost": (True, False),
    "mtu": (1400, 1500, 9000),
    "peer": ("own-host", "other-host", "box", "nobody"),
    "image": ("probe", "debian"),
    "seconds": (2.0, 5.0, 5.5),
    "interval": (0.05, 0.1, 1.0, 3.0),
    "tool": ("iperf3", "iperf"),
    "streams": (1, 200),
    "protocol": ("tcp", "udp"),
    "rate": (1000, "default"),
    "migrate_at": (0.1, 0.5),
    "migrate_back": (True, False),
    "host.rack": ("left", "right", "cellar"),
    "host.nic": ("x", "y"),
    "own.a": ("1", "2"),
}


def subsets(levels: tuple[Level, ...]) -> st.SearchStrategy[tuple[Level, ...]]:
    return st.lists(st.sampled_from(levels), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def selections(draw: st.DrawFn, *, scenario: bool) -> Selection:
    names = draw(st.lists(st.sampled_from(sorted(LEVELS)), min_size=0 if scenario else 1, max_size=3, unique=True))
    levels = {name: draw(subsets(LEVELS[name])) for name in names}
    if scenario or draw(st.booleans()):
        levels["scenario"] = draw(subsets(tuple(each.value for each in Scenario)))
    return Selection(levels=levels)


@st.composite
def campaigns(draw: st.DrawFn) -> Campaign:
    names = draw(st.lists(st.sampled_from(sorted(LEVELS)), max_size=4, unique=True))
    fixed = draw(st.lists(st.sampled_from(sorted(set(LEVELS) - set(names))), max_size=3, unique=True))
    free = sorted(set(LEVELS) - set(names))
    overrides = [
        Override(
            when=draw(selections(scenario=False)),
            settings={name: draw(st.sampled_from(LEVELS[name]))},
        )
        for name in draw(st.lists(st.sampled_from(free), max_size=2))
    ]
    return Campaign(
        name="x",
        scenarios=tuple(draw(st.lists(st.sampled_from(list(Scenario)), min_size=1, max_size=3, unique=True))),
        factors={name: draw(subsets(LEVELS[name])) for name in names},
        settings={name: draw(st.sampled_from(LEVELS[name])) for name in fixed},
        include=tuple(draw(st.lists(selections(scenario=True), max_size=2))),
        exclude=tuple(draw(st.lists(selections(scenario=False), max_size=2))),
        overrides=tuple(overrides),
        repeats=draw(st.integers(1, 3)),
        warmups=draw(st.integers(0, 1)),
    )


def by_hand(campaign: Campaign) -> list[Cell]:
    """The cells of a campaign as its documentation says, cell by cell."""
    found: dict[str, Cell] = {}
    for scenario in campaign.scenarios:
        for cell in combinations(campaign.factors, scenario):
            if not any(matches(selection, cell.levels) for selection in campaign.exclude):
                found.setdefault(cell.key, cell)
    for selection in campaign.include:
        levels = {name: values for name, values in selection.levels.items() if name != "scenario"}
        for word in selection.levels["scenario"]:
            for cell in combinations(levels, Scenario(str(word))):
                found.setdefault(cell.key, cell)
    return list(found.values())


def combinations(levels: dict[str, tuple[Level, ...]], scenario: Scenario) -> list[Cell]:
    names = [name for name in levels if concerns(name, scenario)]
    rows = product(*(levels[name] for name in names))
    return [Cell(levels={"scenario": scenario.value} | dict(zip(names, row, strict=True))) for row in rows]


@given(campaigns())
@settings(max_examples=150, deadline=None)
def test_the_arrays_agree_with_the_cells_one_by_one(campaign: Campaign) -> None:
    expected = by_hand(campaign)
    reasons = {cell.key: reason(campaign, cell, LAB) for cell in expected}
    assert sorted(keys(campaign)) == sorted(reasons)
    assert {planned.cell.key: planned.reason for planned in planned_cells(campaign, LAB)} == reasons
    counts = count(campaign, LAB)
    assert counts.cells == len(list(cells(campaign))) == len(expected)
    assert counts.applicable == sum(1 for text in reasons.values() if not text)
    assert counts.not_applicable_by_reason == Counter(text for text in reasons.values() if text)
    assert counts.runs == counts.applicable * campaign.repeats


@given(campaigns())
@settings(max_examples=100, deadline=None)
def test_tallies_agree_with_the_cells_one_by_one(campaign: Campaign) -> None:
    tally = Matrix(campaign, LAB).tally("seconds", "streams")
    applicable = [planned.cell for planned in planned_cells(campaign, LAB) if not planned.reason]
    resolved = [(cell.scenario, settings_of(campaign, cell)) for cell in applicable]
    assert tally == Counter((scenario, (found["seconds"], found["streams"])) for scenario, found in resolved)


def test_a_large_matrix_is_judged_in_parts_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = parse_campaign(
        "campaign: x\nscenarios: [same-host, during-migration]\n"
        "factors: {nic_model: [virtio, rtl8139, e1000], own.a: [1, 2, 3, 4, 5], offload.tso: [on, off], seconds: [2, 5]}\n"
        "exclude: [{own.a: [2, 3], seconds: 5, nic_model: e1000}]\n"
    )
    whole = {planned.cell.key: planned.reason for planned in planned_cells(campaign, LAB)}
    counts = count(campaign, LAB)
    monkeypatch.setattr("labctl.plan.matrix.CHUNK", 4)
    assert {planned.cell.key: planned.reason for planned in planned_cells(campaign, LAB)} == whole
    assert count(campaign, LAB) == counts


FREE = """\
campaign: million
scenarios: [same-host]
factors:
  nic_model: [virtio, e1000, e1000e, rtl8139, vmxnet3]
  offload.tso: [on, off]
  own.a: [{hundred}]
  own.b: [{hundred}]
  own.c: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
"""
BOUND = """\
campaign: million
scenarios: [during-migration]
factors:
  seconds: [{hundred}]
  interval: [{tenths}]
  migrate_at: [{shares}]
exclude:
  - {{seconds: [10, 20], interval: [0.1, 0.2], migrate_at: 0.5}}
"""
SCRIPT = """\
import sys
from labctl.plan.estimate import estimate
from labctl.plan.matrix import Matrix, count
from labctl.spec.campaign import parse_campaign
from labctl.spec.lab import parse_lab
lab = parse_lab("lab: two\\nembedded: {hosts: [a, b]}\\n")
campaign = parse_campaign(sys.stdin.read())
matrix = Matrix(campaign, lab)
counts = count(campaign, lab, matrix=matrix)
estimate(campaign, lab, matrix=matrix)
# VmHWM and not ru_maxrss, which a process inherits from the one that started it.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(counts.cells, counts.applicable, int(peak) // 1024)
"""


@pytest.mark.parametrize(("text", "expected"), [(FREE, 1_000_000), (BOUND, 1_000_000 - 4)])
def test_a_million_cells_are_counted_in_bounded_memory(text: str, expected: int) -> None:
    """S6, M22: counted before anything is expanded."""
    hundred = ", ".join(str(number) for number in range(1, 101))
    tenths = ", ".join(str(number / 10) for number in range(1, 101))
    shares = ", ".join(str(number / 200) for number in range(1, 101))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=text.format(hundred=hundred, tenths=tenths, shares=shares),
        capture_output=True,
        text=True,
        check=True,
    )
    found, applicable, mebibytes = (int(word) for word in done.stdout.split())
    assert found == expected
    assert 0 < applicable < expected
    assert mebibytes < 300


def test_listing_is_lazy() -> None:
    """S6, M22: the first of very many cells come without the others."""
    levels = ", ".join(str(number) for number in range(1, 1001))
    campaign = parse_campaign(f"campaign: x\nscenarios: same-host\nfactors: {{own.a: [{levels}], own.b: [{levels}]}}\n")
    first = next(planned_cells(campaign, LAB))
    assert first.cell.key == "scenario=same-host own.a=1 own.b=1"

"""Two campaigns beside each other: what changed, and by how much."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace

import pytest
from rich.console import Console

from labctl.analysis.comparison import Difference
from labctl.model.result import CampaignRecord, FactSet
from labctl.report import pair_to_json, print_pair
from labctl.report.pair import FactChange, pair_of
from tests.report.records import demo_campaign, matrix_record

DRIVERS = ("5.2.22.0", "6.0.60.0")


def measured(campaign_id: int, *, driver: str, faster: float = 1.0, only: slice = slice(None)) -> CampaignRecord:
    """A campaign on hosts with this NIC driver, some of whose cells may be missing."""
    record = matrix_record(demo_campaign(overrides=()))
    rng = random.Random(campaign_id)
    cells = record.cells[only]
    kept = {cell.id for cell in cells}
    runs = []
    for run in record.runs:
        if run.cell not in kept:
            continue
        result = run.result
        if result is not None:
            scale = faster * rng.uniform(0.99, 1.01)
            transfers = tuple(
                replace(
                    one,
                    reading=replace(
                        one.reading, bits_per_second=one.reading.bits_per_second and one.reading.bits_per_second * scale
                    ),
                )
                for one in result.transfers
            )
            facts = (*result.facts, FactSet(subject="host:a", when="before", facts={"nic.driver.version": driver}))
            result = replace(result, transfers=transfers, facts=facts)
        runs.append(replace(run, result=result))
    return replace(record, id=campaign_id, cells=cells, runs=tuple(runs))


@pytest.fixture(scope="module")
def before() -> CampaignRecord:
    return measured(3, driver=DRIVERS[0])


@pytest.fixture(scope="module")
def after() -> CampaignRecord:
    return measured(4, driver=DRIVERS[1], faster=1.5)


def test_the_driver_that_was_updated_is_found_without_anybody_naming_it(
    before: CampaignRecord, after: CampaignRecord
) -> None:
    pair = pair_of(before, after)
    assert pair.facts == (FactChange(subject="host:a", name="nic.driver.version", first=DRIVERS[0], second=DRIVERS[1]),)
    assert (pair.settings, pair.only_first, pair.only_second) == ((), (), ())


def test_every_cell_says_how_much_faster_it_became(before: CampaignRecord, after: CampaignRecord) -> None:
    rows = [row.against for row in pair_of(before, after).rows if row.against.ratio.ratio is not None]
    assert rows
    assert all(row.ratio.ratio == pytest.approx(1.5, rel=0.05) for row in rows)
    assert {row.ratio.difference for row in rows} <= {Difference.FASTER, Difference.NO_INTERVAL, Difference.NOT_TOLD}
    assert sum(row.ratio.difference is Difference.FASTER for row in rows) > len(rows) / 2


def test_nothing_changed_says_so(before: CampaignRecord) -> None:
    again = measured(5, driver=DRIVERS[0])
    pair = pair_of(before, again)
    assert (pair.facts, pair.settings) == ((), ())
    assert not {row.against.ratio.difference for row in pair.rows} & {Difference.FASTER, Difference.SLOWER}
    assert "nothing that both campaigns have a record of" in printed(before, again)


def test_cells_of_one_side_only_are_named(before: CampaignRecord) -> None:
    fewer = measured(6, driver=DRIVERS[0], only=slice(1, None))
    pair = pair_of(before, fewer)
    assert len(pair.only_first) == 1
    assert pair.only_second == ()
    assert f"Only in campaign 3: {pair.only_first[0]}" in printed(before, fewer)


def test_settings_that_were_fixed_differently_are_told(before: CampaignRecord) -> None:
    record = matrix_record(demo_campaign(overrides=(), settings={"seconds": 30.0}))
    longer = replace(record, id=8)
    assert [(one.name, one.second) for one in pair_of(before, longer).settings if one.name == "seconds"] == [
        ("seconds", 30.0)
    ]
    assert "setting seconds" in printed(before, longer)


def test_a_fact_that_is_not_even_the_same_within_a_campaign_is_no_change(
    before: CampaignRecord, after: CampaignRecord
) -> None:
    half = len(after.runs) // 2
    torn = replace(after, runs=(*before.runs[:half], *after.runs[half:]))
    pair = pair_of(before, torn)
    assert pair.facts == ()
    assert pair.unsteady == ("host:a nic.driver.version",)


def test_json_and_terminal_tell_the_same(before: CampaignRecord, after: CampaignRecord) -> None:
    document = json.loads(pair_to_json(before, after))
    assert document["schema"] == "labctl.pair/1"
    assert document["facts"][0]["second"] == DRIVERS[1]
    text = printed(before, after)
    assert f"host:a nic.driver.version: {DRIVERS[0]} to {DRIVERS[1]}" in text
    for row in document["rows"]:
        assert row["title"] in text
        assert set(row["flags"]) <= set(text.replace(",", " ").split())


def printed(first: CampaignRecord, second: CampaignRecord) -> str:
    out = io.StringIO()
    print_pair(first, second, Console(file=out, width=220))
    return out.getvalue()

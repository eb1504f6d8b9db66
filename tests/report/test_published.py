"""The published experiments: every figure, the arithmetic done again, and ours beside theirs."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from labctl.analysis.published import published_changes
from labctl.cli.published import published as command
from labctl.errors import SpecError
from labctl.model.outcome import RunState
from labctl.model.result import CampaignRecord, RunRecord
from labctl.report import beside_to_json, print_beside
from labctl.report.beside import beside_of, confounded_words
from labctl.spec.campaign import load_campaign
from labctl.spec.published import load_published, published_ids
from tests.report.records import EPOCH, campaign_record, cell_record, ok_result, reading

CAMPAIGNS = Path("configs/campaigns")


def measured(name: str) -> CampaignRecord:
    """The campaign that repeats a published experiment, with figures twice as high as the published ones."""
    published, campaign = load_published(name), load_campaign(CAMPAIGNS / f"{name}.yaml")
    rng = random.Random(1)
    every = [
        {"scenario": scenario.value, **dict(zip(campaign.factors, levels, strict=True))}
        for scenario in campaign.scenarios
        for levels in product(*campaign.factors.values())
    ]
    levels = [one for one in every if not any(_is(one, out.levels) for out in campaign.exclude)]
    cells, runs = [cell_record(one, at) for at, one in enumerate(levels)], []
    for cell in cells:
        words = {key: _word(level) for key, level in cell.levels.items()}
        theirs = next(
            one for one in published.cells
            if all(words.get(key, level) == level for key, level in one.as_campaign.items())
        )  # fmt: skip
        for replicate in (1, 2, 3):
            figure = 2 * theirs.bits_per_second * rng.uniform(0.99, 1.01)
            result = ok_result(rng, {"scenario": cell.levels["scenario"], "nic_model": "virtio"})
            transfers = tuple(replace(one, reading=reading(figure)) for one in result.transfers)
            runs.append(
                RunRecord(
                    id=len(runs) + 1, cell=cell.id, replicate=replicate, state=RunState.DONE, sequence=len(runs),
                    started=EPOCH, ended=EPOCH + 1, result=replace(result, transfers=transfers),
                )
            )  # fmt: skip
    return campaign_record(campaign, cells, runs)


def _is(levels: object, wanted: object) -> bool:
    assert isinstance(levels, dict)
    assert hasattr(wanted, "items")
    return all(levels.get(name) in allowed for name, allowed in wanted.items())


def _word(level: object) -> str:
    return {True: "on", False: "off"}[level] if isinstance(level, bool) else str(level)


def changes(name: str) -> dict[tuple[str, str], float]:
    return {
        (" ".join(one.baseline.levels.values()), " ".join(one.cell.levels.values())): one.percent
        for one in published_changes(load_published(name))
    }


def test_all_five_are_there() -> None:
    assert published_ids() == (
        "hyperv-flex10-drivers-2010", "hyperv-scenarios-2009", "hyperv-tcp-offload-2009", "kvm-nic-models-2010",
        "vsphere-vmxnet3-e1000-2014",
    )  # fmt: skip


def test_the_flex_10_update_is_20_and_327_percent_whatever_the_source_says() -> None:
    found = published_changes(load_published("hyperv-flex10-drivers-2010"))
    claimed = {one.claimed: one.percent for one in found if one.claimed}
    assert claimed == {"+21.7%": pytest.approx(20.46, abs=0.01), "+426%": pytest.approx(327.27, abs=0.01)}


def test_vmxnet3_against_the_emulated_adapters() -> None:
    found = changes("vsphere-vmxnet3-e1000-2014")
    assert found["windows-2008r2 e1000", "windows-2008r2 vmxnet3"] == pytest.approx(68.68, abs=0.01)
    assert found["windows-2012r2 e1000e", "windows-2012r2 vmxnet3"] == pytest.approx(147.87, abs=0.01)


def test_e1000_against_e1000e_is_confounded() -> None:
    (change,) = [
        one for one in published_changes(load_published("vsphere-vmxnet3-e1000-2014"))
        if (one.baseline.levels["nic_model"], one.cell.levels["nic_model"]) == ("e1000", "e1000e")
    ]  # fmt: skip
    assert change.confounded
    assert confounded_words(change) == "confounded: changes guest os and nic model at once"


def test_seconds_of_a_file_copy_become_bits_a_second() -> None:
    cells = load_published("hyperv-scenarios-2009").cells
    assert [round(cell.bits_per_second / 1e6) for cell in cells] == [461, 418, 402, 808]
    assert {cell.n for cell in cells} == {3}


@pytest.mark.parametrize(
    "name",
    ["vsphere-vmxnet3-e1000-2014", "hyperv-flex10-drivers-2010", "hyperv-tcp-offload-2009", "hyperv-scenarios-2009"],
)
def test_our_figures_stand_beside_theirs_cell_for_cell(name: str) -> None:
    found = beside_of(measured(name), load_published(name))
    assert all(row.beside.cell for row in found.rows)
    assert len({row.beside.cell for row in found.rows}) == len(found.rows)
    for row in found.rows:
        assert row.beside.ours.mean == pytest.approx(2 * row.beside.theirs.bits_per_second, rel=0.01)
    for change in found.changes:
        assert change.ours == pytest.approx(change.theirs.percent, abs=12)
    document = json.loads(beside_to_json(measured(name), load_published(name)))
    assert len(document["rows"]) == len(found.rows)
    out = io.StringIO()
    print_beside(measured(name), load_published(name), Console(file=out, width=200))
    assert out.getvalue().count("2.00×") + out.getvalue().count("1.99×") + out.getvalue().count("2.01×") >= 1


def test_a_campaign_of_something_else_has_no_such_cells() -> None:
    found = beside_of(measured("hyperv-scenarios-2009"), load_published("hyperv-tcp-offload-2009"))
    assert [row.beside.cell for row in found.rows if row.beside.theirs.levels["scenario"] == "vm-to-host"] == ["", ""]


def test_list_and_show_on_the_command_line() -> None:
    listed = CliRunner().invoke(command, ["list"])
    assert listed.exit_code == 0
    assert len(listed.output.splitlines()) == 5
    shown = CliRunner().invoke(command, ["show", "hyperv-flex10-drivers-2010"], env={"COLUMNS": "200"})
    assert "+327" in shown.output
    assert "+426%" in shown.output
    changes = json.loads(CliRunner().invoke(command, ["show", "hyperv-flex10-drivers-2010", "--json"]).output)[
        "changes"
    ]
    assert {round(one["percent"]) for one in changes if one["claimed"]} == {20, 327}


def test_an_unknown_one_names_the_nearest() -> None:
    with pytest.raises(SpecError) as caught:
        load_published("hyperv-flex10-driver-2010")
    assert "hyperv-flex10-drivers-2010" in caught.value.todo


def test_a_folder_without_any_says_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no published experiments"):
        published_ids(tmp_path)

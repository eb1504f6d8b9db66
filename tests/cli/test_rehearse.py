"""`labctl rehearse` as people and programs call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.cli.main import main

pytestmark = pytest.mark.services

LAB = "lab: pretended\nsimulated: {hosts: 2}\n"
CAMPAIGN = "campaign: small\nscenarios: [same-host]\nfactors: {nic_model: [virtio, e1000]}\nrepeats: 2\nwarmups: 0\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    campaign, lab = tmp_path / "campaign.yaml", tmp_path / "lab.yaml"
    campaign.write_text(CAMPAIGN)
    lab.write_text(LAB)
    return campaign, lab


def rehearse(files: tuple[Path, Path], *options: str) -> Result:
    campaign, lab = files
    arguments = ["--state", str(campaign.parent / "state"), "rehearse", str(campaign), "--lab", str(lab), *options]
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def test_a_person_sees_order_hours_hosts_and_the_verdict(files: tuple[Path, Path]) -> None:
    result = rehearse(files, "--at", "2026-10-24T18:00")
    assert result.exit_code == 0, result.output
    assert "no figure is a measurement" in result.output.splitlines()[0]
    assert "4 runs (4 ok)" in result.output
    for words in ("2026-10-24 18:00", "host-1", "host-2", "nic_model=virtio", "Lost runs: 0."):
        assert words in result.output
    assert not (files[0].parent / "state" / "labctl.sqlite").exists(), "the real store is left alone"


def test_programs_get_the_same_facts_and_what_went_wrong(files: tuple[Path, Path]) -> None:
    result = rehearse(files, "--faults", "7", "--json", "--at", "2026-10-24T18:00+01:00")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["simulated"] is True
    assert facts["began"] == "2026-10-24T17:00:00+00:00"
    assert sum(facts["outcomes"].values()) == 4
    assert (facts["lost_runs"], facts["doubled_runs"], facts["leases_left"], facts["vms_left"]) == (0, 0, [], [])
    assert facts["faults"]["seed"] == 7
    assert facts["broken"] == []


def test_a_time_that_is_none_is_refused(files: tuple[Path, Path]) -> None:
    result = rehearse(files, "--at", "tonight")
    assert result.exit_code == 2
    assert "'tonight' is no time" in result.output

"""`labctl rehearse` as people and programs call it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.cli.main import main
from tests.desk import LABCTL, PATIENCE, until

pytestmark = pytest.mark.services

LAB = "lab: pretended\nsimulated: {hosts: 2}\n"
CAMPAIGN = "campaign: small\nscenarios: [same-host]\nfactors: {nic_model: [virtio, e1000]}\nrepeats: 2\nwarmups: 0\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    campaign, lab = tmp_path / "campaign.yaml", tmp_path / "lab.yaml"
    campaign.write_text(CAMPAIGN)
    lab.write_text(LAB)
    return campaign, lab


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for what is temporary, with a short path, because Unix sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="labctl-test-") as name:
        yield Path(name)


def rehearse(files: tuple[Path, Path], *options: str) -> Result:
    campaign, lab = files
    arguments = ["--state", str(campaign.parent / "state"), "rehearse", str(campaign), "--lab", str(lab), *options]
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def test_a_person_sees_order_hours_hosts_and_the_verdict(files: tuple[Path, Path]) -> None:
    result = rehearse(files, "--at", "2026-10-24T18:00")
    assert result.exit_code == 0, result.output
    assert re.match(r"Rehearsal of \w+ on lab \w+: no machine is touched, and no figure is a ", result.output)
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


def test_a_path_that_is_too_long_is_told(files: tuple[Path, Path], tmp_path: Path) -> None:
    far = tmp_path / ("far-" * 20)
    far.mkdir()
    campaign, lab = files
    process = subprocess.run(
        [LABCTL, "rehearse", campaign, "--lab", lab],
        env=os.environ | {"TMPDIR": str(far)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 3
    assert "Set TMPDIR" in process.stderr
    assert not list(far.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_ended_leaves_nothing(files: tuple[Path, Path], temporary: Path, number: int) -> None:
    campaign, lab = files
    campaign.write_text(CAMPAIGN.replace("repeats: 2", "repeats: 2000"))
    process = subprocess.Popen(
        [LABCTL, "rehearse", campaign, "--lab", lab],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
    )
    until("a VM is there", lambda: any(temporary.glob("labctl-rehearsal-*/world/hosts/*/labctl-*")))
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    until("its directories are gone", lambda: not list(temporary.iterdir()))
    mark = f"TMPDIR={temporary}".encode()
    until("its processes are gone", lambda: not any(mark in environment for environment in environments()))


def environments() -> Iterator[bytes]:
    """What every process was started with."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield (entry / "environ").read_bytes()


@pytest.mark.parametrize("at", ["tonight", "18:00"])
def test_a_time_that_is_none_is_refused_with_what_to_write(files: tuple[Path, Path], at: str) -> None:
    result = rehearse(files, "--at", at)
    assert result.exit_code == 2
    assert f"--at {at} is no date with a time." in result.output
    assert "2026-10-24T18:00" in result.output

"""`labctl import`: a folder of outputs made by hand becomes a campaign that reports and comparisons know."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.cli.main import main
from tests.transfers.captured import CAPTURES

MAP = """
import: old-nics
lab: rack-2019
scenario: same-host
hosts: {esx1: {driver: ixgbe}}
outputs:
  - files: virtio/*.json
    levels: {nic_model: virtio}
    replicate: 'run(\\d+)'
    hosts: [esx1]
  - files: e1000/*.txt
    levels: {nic_model: e1000}
    server: "{stem}.server"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "outputs"
    (found / "virtio").mkdir(parents=True)
    (found / "e1000").mkdir()
    for number, case in ((1, "01"), (2, "15"), (10, "05")):
        _copy(case, found / "virtio" / f"run{number}.json")
    _copy("47", found / "e1000" / "a.txt")
    shutil.copy(next(CAPTURES.glob("47-*")) / "input.server.txt", found / "e1000" / "a.server")
    (found / "map.yaml").write_text(MAP)
    return found


def _copy(case: str, to: Path) -> None:
    source = next(CAPTURES.glob(f"{case}-*"))
    shutil.copy(next(path for path in source.glob("input.*") if path.name.count(".") == 1), to)


def labctl(folder: Path, *arguments: object) -> Result:
    state = folder.parent / "state"
    return CliRunner().invoke(main, ["--state", str(state), *map(str, arguments)])


def imported(folder: Path, *more: str) -> Result:
    return labctl(folder, "import", folder, "--map", folder / "map.yaml", *more)


def test_outputs_become_a_campaign_that_is_reported(folder: Path) -> None:
    told = json.loads(imported(folder, "--json").output)
    assert told == {"campaign": 1, "runs": 4, "cells": 2, "without_figure": 1}
    report = json.loads(labctl(folder, "report", "--json").output)
    assert (report["name"], report["state"], report["lab"]) == ("old-nics", "done", "imported:rack-2019")
    assert report["completeness"]["outcomes"] == {"ok": 3, "failed": 1}
    terminal = labctl(folder, "report").output
    assert "outputs made by hand" in terminal
    assert "connection-lost" in terminal
    assert "drift" not in terminal


def test_what_they_printed_is_kept(folder: Path) -> None:
    from labctl.store import open_store

    imported(folder)
    store = open_store(folder.parent / "state")
    record = store.record(1)
    runs = {(run.cell, run.replicate) for run in record.runs}
    assert len(runs) == 4
    assert sorted(run.replicate for run in record.runs) == [1, 1, 2, 10]
    assert {host for run in record.runs for host in run.hosts} == {"esx1"}
    facts = [set_.facts for run in record.runs if run.result for set_ in run.result.facts]
    assert {"driver": "ixgbe"} in facts
    raw = {output.name: output.content for attempt in range(1, 5) for output in store.raw(attempt)}
    store.close()
    assert raw["transfer-1/server.stdout"] == (folder / "e1000" / "a.server").read_bytes()


def test_the_same_outputs_are_imported_once(folder: Path) -> None:
    assert imported(folder).exit_code == 0
    second = imported(folder)
    assert second.exit_code == 2
    assert "already, as campaign 1" in second.output
    assert imported(folder, "--again").exit_code == 0
    assert (
        "old-nics" in labctl(folder, "compare", "1", "2").output or labctl(folder, "compare", "1", "2").exit_code == 0
    )


def test_nothing_of_it_can_be_run(folder: Path) -> None:
    imported(folder)
    for command in ("retry", "resume"):
        said = labctl(folder, command, "1")
        assert said.exit_code == 2, said.output
    assert "imported" in labctl(folder, "retry", "1").output


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("nic_model: virtio", "nic_modl: virtio", "nic_model"),
        ("virtio/*.json", "vmxnet3/*.json", "No file"),
        ("e1000/*.txt", "virtio/run1*", "of two entries"),
        ("run(\\d+)", "run\\d+", "one group"),
        ("run(\\d+)", "runs(\\d+)", "has no number"),
        ("run(\\d+)", "\\w+(\\d)", "replicate"),
        ("virtio/*.json", "../*.json", "below the folder"),
        ("import: old-nics", "imports: old-nics", "import"),
        ("levels: {nic_model: e1000}", "levels: {nic_model: e1000}\n    tool: iprf2", "iperf2"),
    ],
)
def test_mistakes_of_the_map_are_told_and_nothing_is_stored(folder: Path, old: str, new: str, words: str) -> None:
    text = (folder / "map.yaml").read_text()
    assert old in text
    if new == "\\w+(\\d)":
        _copy("01", folder / "virtio" / "run11.json")
        _copy("01", folder / "virtio" / "run21.json")
    (folder / "map.yaml").write_text(text.replace(old, new))
    said = imported(folder)
    assert said.exit_code == 2, said.output
    assert words in said.output
    assert not (folder.parent / "state" / "labctl.sqlite").exists()


def test_an_output_of_nobody_is_refused(folder: Path) -> None:
    (folder / "virtio" / "run3.json").write_text("hello")
    said = imported(folder)
    assert (said.exit_code, "doesn't tell which tool" in said.output) == (2, True)

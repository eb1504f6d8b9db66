from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl.cli.main import main

CONFIGS = Path(__file__).parents[2] / "configs"
LOCAL = str(CONFIGS / "labs" / "local.yaml")
DEMO = str(CONFIGS / "campaigns" / "kvm-nic-models.yaml")


def plan(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["plan", *arguments])


def written(folder: Path, text: str) -> str:
    path = folder / "c.yaml"
    path.write_text(text)
    return str(path)


def test_the_plan_for_people() -> None:
    result = plan(DEMO, "--lab", LOCAL)
    assert result.exit_code == 0, result.output
    assert "13 cells, 13 applicable; 39 runs" in result.stdout
    assert "seed 42" in result.stdout
    assert "201326592 bytes" in result.stdout, "values are shown as they were read"
    assert "scenario=during-migration nic_model=e1000" in result.stdout


def test_the_same_facts_for_programs() -> None:
    result = plan(DEMO, "--lab", LOCAL, "--json")
    facts = json.loads(result.stdout)
    assert (facts["cells"], facts["applicable"], facts["runs"], facts["seed"]) == (13, 13, 39, 42)
    assert facts["settings"]["memory"] == 192 * 2**20
    assert facts["not_applicable"] == []
    assert len(facts["listed"]) == 13
    assert facts["seconds"] == pytest.approx(sum(share["seconds"] for share in facts["scenarios"].values()), abs=0.3)
    assert facts["nights"] == 1


def test_not_applicable_cells_have_their_reasons() -> None:
    facts = json.loads(plan(str(CONFIGS / "campaigns" / "kvm-nic-models-2010.yaml"), "--lab", LOCAL, "--json").stdout)
    (reason,) = facts["not_applicable"]
    assert reason["cells"] == 4
    assert "vt-d" in reason["reason"]
    assert facts["applicable"] == facts["cells"] - 4


def test_only_the_first_cells_of_many_are_listed(tmp_path: Path) -> None:
    levels = ", ".join(str(number) for number in range(1000))
    text = f"campaign: x\nscenarios: same-host\nfactors: {{own.a: [{levels}]}}\n"
    result = plan(written(tmp_path, text), "--lab", LOCAL, "--cells", "3")
    assert "The first 3 of 1,000 cells" in result.stdout
    assert "own.a=2" in result.stdout
    assert "own.a=3" not in result.stdout


def test_the_cap_may_be_raised(tmp_path: Path) -> None:
    text = "campaign: x\nscenarios: same-host\nfactors: {own.a: [1, 2]}\nlimits: {max_runs: 5}\n"
    refused = plan(written(tmp_path, text), "--lab", LOCAL)
    assert refused.exit_code == 2
    assert "6 runs; the cap is 5" in refused.stderr
    assert plan(written(tmp_path, text), "--lab", LOCAL, "--max-runs", "6").exit_code == 0


def test_mistakes_end_with_2_and_are_told_on_stderr(tmp_path: Path) -> None:
    result = plan(written(tmp_path, "campaign: x\nscenarios: [same-hst]\n"), "--lab", LOCAL)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "c.yaml:2:13: scenarios[0]: is not one of the names (value: same-hst)" in result.stderr
    assert "did you mean 'same-host'?" in result.stderr


def test_missing_files_and_options_end_with_2(tmp_path: Path) -> None:
    assert plan(str(tmp_path / "none.yaml"), "--lab", LOCAL).exit_code == 2
    assert plan(DEMO).exit_code == 2
    assert plan(DEMO, "--lab", LOCAL, "--window", "late").exit_code == 2


@pytest.mark.parametrize(
    ("window", "seconds"), [("22:00-06:00", 8 * 3600), ("6:30-7:00", 1800), ("00:00-24:00", 86400)]
)
def test_the_length_of_a_window(window: str, seconds: int) -> None:
    facts = json.loads(plan(DEMO, "--lab", LOCAL, "--json", "--window", window).stdout)
    assert facts["window_seconds"] == seconds


@pytest.mark.parametrize("kind", ["campaign", "lab"])
def test_the_schema_is_json(kind: str) -> None:
    result = CliRunner().invoke(main, ["schema", kind])
    assert json.loads(result.stdout)["title"] == f"labctl {kind} file"

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from labctl import clock
from labctl.cli.main import main
from tests.campaign.wall import machine_in

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
    before = time.time()
    result = plan(DEMO, "--lab", LOCAL, "--json")
    facts = json.loads(result.stdout)
    assert (facts["cells"], facts["applicable"], facts["runs"], facts["seed"]) == (13, 13, 39, 42)
    assert facts["settings"]["memory"] == 192 * 2**20
    assert facts["not_applicable"] == []
    assert len(facts["listed"]) == 13
    assert facts["seconds"] == pytest.approx(sum(share["seconds"] for share in facts["scenarios"].values()), abs=0.3)
    assert facts["nights"] is None, "a campaign without windows has no nights"
    assert facts["windows"] is None
    started = datetime.fromisoformat(facts["end"]).timestamp() - facts["seconds"]
    assert before - 1 <= started <= time.time() + 1, "one run after the other, from now on"


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
    assert plan(DEMO, "--lab", LOCAL, "--window", "late", "--zone", "UTC").exit_code == 2
    assert "needs a time zone" in plan(DEMO, "--lab", LOCAL, "--window", "22:00-06:00").stderr


@pytest.mark.parametrize(
    ("window", "start", "end"),
    [("22:00-06:00", "22:00", "06:00"), ("6:30-7:00", "06:30", "07:00"), ("00:00-24:00", "00:00", "24:00")],
)
def test_the_window_of_an_option(window: str, start: str, end: str) -> None:
    facts = json.loads(plan(DEMO, "--lab", LOCAL, "--json", "--window", window, "--zone", "Asia/Kolkata").stdout)
    assert facts["windows"]["zone"] == "Asia/Kolkata"
    (time_of_day,) = facts["windows"]["times"]
    assert (time_of_day["start"], time_of_day["end"], len(time_of_day["days"])) == (start, end, 7)
    assert facts["nights"] in (1, 2), "asked within the window, what is left of it may be too short"
    assert facts["openings"][0]["end"].endswith("+05:30")


def test_the_option_takes_the_place_of_the_campaigns_own_windows(tmp_path: Path) -> None:
    campaign = written(tmp_path, NIGHTLY)
    own, other = (
        json.loads(plan(campaign, "--lab", LOCAL, "--json", *options).stdout)["windows"]
        for options in ((), ("--window", "01:00-02:30"))
    )
    assert (own["times"][0]["start"], other["times"][0]["start"]) == ("22:00", "01:00")
    assert other["zone"] == own["zone"] == "Europe/Berlin"
    assert other["blackout"] == ["2026-12-24"]


NIGHTLY = """\
campaign: x
scenarios: same-host
settings: {seconds: 3000}
factors: {own.a: [1, 2]}
repeats: {min: 10, max: 20, within: 5%}
anchor: {cell: {scenario: same-host, own.a: 1}, every: 10}
zone: Europe/Berlin
window: 22:00-06:00
blackout: [2026-12-24]
quiet: {wait: 90s, then: skip}
priority: 3
notify: ["env:NEWS"]
"""


@pytest.fixture
def an_autumn_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noon before the clock goes back in Berlin."""
    monkeypatch.setattr(clock, "now", lambda: datetime.fromisoformat("2026-10-24T12:00+02:00").timestamp())


@pytest.mark.usefixtures("an_autumn_noon")
def test_s4_nights_are_shown_with_their_real_length(tmp_path: Path) -> None:
    campaign = written(tmp_path, NIGHTLY)
    text = " ".join(plan(campaign, "--lab", LOCAL).stdout.split())
    assert "Sat 2026-10-24 22:00 CEST" in text
    assert "Sun 2026-10-25 06:00 CET" in text
    assert "9 h 00 min" in text
    assert "8 h 00 min" in text
    facts = json.loads(plan(campaign, "--lab", LOCAL, "--json").stdout)
    first, second = facts["openings"][:2]
    assert first == {
        "start": "2026-10-24T22:00:00+02:00", "end": "2026-10-25T06:00:00+01:00", "seconds": 9 * 3600
    }  # fmt: skip
    assert second["seconds"] == 8 * 3600


@pytest.mark.usefixtures("an_autumn_noon")
def test_adaptive_repeats_are_a_range_of_runs_hours_and_nights(tmp_path: Path) -> None:
    """50 min and a few seconds a run: ten fit into the long night, nine into the others."""
    campaign = written(tmp_path, NIGHTLY)
    facts = json.loads(plan(campaign, "--lab", LOCAL, "--json").stdout)
    assert (facts["runs"], facts["anchor"]["runs"], facts["adaptive"]["at_most"]["runs"]) == (22, 2, 44)
    assert (facts["nights"], facts["adaptive"]["at_most"]["nights"]) == (3, 5)
    text = " ".join(plan(campaign, "--lab", LOCAL).stdout.split())
    assert "2 cells, 2 applicable; 22 to 44 runs (10 to 20 of each cell" in text
    assert "2 to 4 further ones of the anchor: scenario=same-host own.a=1." in text
    assert "3 to 5 nights needed" in text
    assert "within 5 % of it" in text
    for word in ("22:00-06:00 on every day (Europe/Berlin)", "2026-12-24", "then skip", "priority", "env:NEWS"):
        assert word in text, "values are shown as they were read"


@pytest.mark.usefixtures("an_autumn_noon")
def test_runs_that_are_left_when_the_windows_end_are_said(tmp_path: Path) -> None:
    campaign = written(tmp_path, NIGHTLY + "until: 2026-10-26\n")
    facts = json.loads(plan(campaign, "--lab", LOCAL, "--json").stdout)
    assert (facts["end"], facts["nights"], facts["runs_left"]) == (None, 3, 1)
    text = " ".join(plan(campaign, "--lab", LOCAL).stdout.split())
    assert "1 run would be left when the windows end with 2026-10-26, after 3 nights" in text


@pytest.mark.usefixtures("an_autumn_noon")
def test_repeats_that_may_be_left_when_the_windows_end_are_said(tmp_path: Path) -> None:
    campaign = written(tmp_path, NIGHTLY + "until: 2026-10-28\n")
    with machine_in("America/New_York"):
        text = " ".join(plan(campaign, "--lab", LOCAL).stdout.split())
    assert "3 nights needed at the least, to end about Mon 2026-10-26 19:30 EDT" in text
    assert "5 runs may be left when the windows end with 2026-10-28." in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("until: 2026-10-20", "`until` is 2026-10-20"),
        ("transfers: 12", "shorter than one of its runs"),
        ("limits: {max_runs: 43}", "44 runs; the cap is 43"),
        ("exclude: [{own.a: 1}]", "anchor"),
    ],
)
@pytest.mark.usefixtures("an_autumn_noon")
def test_what_could_never_run_ends_with_2(tmp_path: Path, changes: str, words: str) -> None:
    result = plan(written(tmp_path, f"{NIGHTLY}{changes}\n"), "--lab", LOCAL)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr


@pytest.mark.parametrize("kind", ["campaign", "lab"])
def test_the_schema_is_json(kind: str) -> None:
    result = CliRunner().invoke(main, ["schema", kind])
    assert json.loads(result.stdout)["title"] == f"labctl {kind} file"

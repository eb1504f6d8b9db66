from __future__ import annotations

import json

from click.testing import CliRunner

from labctl.campaign.policy import POLICY
from labctl.cli.main import main


def test_the_policy_is_shown_with_every_row_and_kind() -> None:
    shown = CliRunner().invoke(main, ["policy"])
    assert shown.exit_code == 0
    for rule in POLICY:
        assert f"{rule.outcome}: {rule.name.split()[0]}" in shown.stdout
        assert all(kind in shown.stdout for kind in rule.kinds)
    assert "3 strikes in a row" in shown.stdout


def test_programs_get_the_same_facts() -> None:
    facts = json.loads(CliRunner().invoke(main, ["policy", "--json"]).stdout)
    assert [(rule["name"], rule["action"], set(rule["kinds"])) for rule in facts["rules"]] == [
        (rule.name, rule.action, rule.kinds) for rule in POLICY
    ]
    assert facts["limits"]["strikes"] == 3
    assert facts["patience"]["check_first"] == 60.0


def test_a_patience_that_makes_no_sense_is_the_users_input() -> None:
    shown = CliRunner().invoke(main, ["policy"], env={"LABCTL_PATIENCE": "soon"})
    assert shown.exit_code == 2
    assert "LABCTL_PATIENCE" in shown.stderr

"""The outcome policy as a table: every outcome has one row, and what the rows say is what is done."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import labctl
from labctl.campaign.policy import LIMITS, POLICY, Action, Blame, back_off, blamed, cleared, goes_back, rule_of
from labctl.errors import SpecError
from labctl.model.lab import Lab, Machine, SecretRef, SshAccess
from labctl.model.outcome import Outcome, OutcomeDetail
from labctl.model.patience import VARIABLE, Patience, patience
from tests.values import a_campaign, a_lab

ENDS = [outcome for outcome in Outcome if outcome is not Outcome.NOT_APPLICABLE]
KINDS = sorted({kind for row in POLICY for kind in row.kinds})


def detail(outcome: Outcome = Outcome.LAB_ERROR, kind: str = "boot-timeout", host: str = "") -> OutcomeDetail:
    return OutcomeDetail(outcome=outcome, kind=kind, host=host)


def with_a_plain_machine() -> Lab:
    ssh = SshAccess(address="198.18.0.9", user="root", key=SecretRef(scheme="env", locator="K"), known_hosts="/k")
    box = Machine(name="box", address=IPv4Interface("198.18.0.9/24"), ssh=ssh, machine="box")
    return replace(a_lab(), machines={"box": box})


@given(outcome=st.sampled_from(ENDS), kind=st.one_of(st.sampled_from(KINDS), st.text(max_size=20)))
def test_every_outcome_of_an_attempt_has_one_row(outcome: Outcome, kind: str) -> None:
    rule = rule_of(outcome, kind)
    assert rule.outcome is outcome
    assert kind in rule.kinds or (
        not rule.kinds and all(kind not in row.kinds for row in POLICY if row.outcome is outcome)
    )


def test_no_kind_is_in_two_rows_and_every_outcome_has_a_row_for_the_rest() -> None:
    assert [kind for kind, times in Counter(kind for row in POLICY for kind in row.kinds).items() if times > 1] == []
    for outcome in ENDS:
        rows = [row for row in POLICY if row.outcome is outcome]
        assert [bool(row.kinds) for row in rows] == [True] * (len(rows) - 1) + [False]


def test_kinds_of_the_table_are_said_somewhere_in_the_code() -> None:
    root = Path(labctl.__file__).parents[1]
    code = "\n".join(
        path.read_text()
        for room in ("labctl", "workers")
        for path in (root / room).rglob("*.py")
        if path.name != "policy.py"
    )
    said = set(re.findall(r'"([a-z-]+)"', code)) | {word.replace("_", "-") for word in re.findall(r'"([a-z_]+)"', code)}
    migrations = {f"migration-{kind}" for kind in ("failed", "refused", "unreachable")}
    assert [kind for kind in KINDS if kind not in said | migrations] == []


@pytest.mark.parametrize("outcome", ENDS)
def test_only_what_is_nobodys_doing_or_the_labs_goes_back(outcome: Outcome) -> None:
    assert goes_back(detail(outcome), tries=1, retries=2) is (outcome in (Outcome.LAB_ERROR, Outcome.CANCELLED))
    assert goes_back(detail(outcome), tries=3, retries=2) is (outcome is Outcome.CANCELLED)


def test_c3_a_run_whose_workers_die_is_not_tried_for_ever() -> None:
    lost = detail(kind="worker-lost")
    assert [goes_back(lost, tries=tries, retries=2) for tries in (1, 2, 3, 4)] == [True, True, False, False]


@given(tries=st.integers(1, 1000), base=st.floats(0.1, 600.0))
def test_the_back_off_doubles_with_every_try_and_is_an_hour_at_the_most(tries: int, base: float) -> None:
    campaign = a_campaign(back_off=base)
    now, after = back_off(campaign, detail(), tries=tries), back_off(campaign, detail(), tries=tries + 1)
    assert base <= now <= LIMITS.longest_back_off
    assert after == pytest.approx(min(2 * now, LIMITS.longest_back_off))
    assert back_off(campaign, detail(Outcome.CANCELLED), tries=tries) == 0.0


def test_a_named_host_is_blamed_alone_and_without_a_name_all_of_the_run_are() -> None:
    lab = with_a_plain_machine()
    assert blamed(detail(host="b"), used=("a", "b"), lab=lab) == ("b",)
    assert blamed(detail(), used=("a", "b", "box"), lab=lab) == ("a", "b")
    assert blamed(detail(host="box", kind="channel-unreachable"), used=("a", "box"), lab=lab) == ()
    assert blamed(detail(kind="worker-lost", host="a"), used=("a",), lab=lab) == ()
    assert blamed(detail(kind="never-heard-of"), used=("a",), lab=lab) == ()
    assert blamed(detail(kind="never-heard-of", host="a"), used=("a", "b"), lab=lab) == ("a",)


@pytest.mark.parametrize("outcome", ENDS)
def test_a_host_on_which_something_was_measured_is_cleared(outcome: Outcome) -> None:
    names = cleared(detail(outcome), used=("a", "box"), lab=with_a_plain_machine())
    assert names == (("a",) if outcome in (Outcome.OK, Outcome.FAILED) else ())


@given(kind=st.sampled_from(KINDS))
def test_nobody_is_blamed_for_what_is_cleared_or_not_retried(kind: str) -> None:
    rule = rule_of(Outcome.LAB_ERROR, kind)
    assert rule.action is Action.RETRY
    assert not rule.clears
    assert rule.blame in Blame


def test_patience_is_shortened_by_the_environment() -> None:
    assert patience({}) == Patience()
    short = patience({VARIABLE: '{"beat": 0.2, "silent": 2, "checks": 2}'})
    assert (short.beat, short.silent, short.checks, short.unclaimed) == (0.2, 2, 2, Patience.unclaimed)
    assert short.fresh < short.silent


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "no JSON"),
        ("[1]", "no JSON object"),
        ('{"silence": 3}', "there is no `silence`"),
        ('{"beat": 0}', "`beat` is 0"),
        ('{"beat": "2"}', "`beat` is '2'"),
        ('{"checks": 1.5}', "no whole number"),
        ('{"beat": 1, "silent": 2}', "less than three heartbeats"),
        ('{"fresh": 30}', "`fresh` is 30"),
    ],
)
def test_patience_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        patience({VARIABLE: text})

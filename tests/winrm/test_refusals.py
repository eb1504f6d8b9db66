"""Passwords that were refused are not tried again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from workers.winrm.refusals import MACHINES_OF_A_DOMAIN, Refusals, Trials, credentials


def test_the_same_password_on_the_same_machine() -> None:
    refusals = Refusals()
    refusals.add(credentials("HV1", "LAB\\op", "wrong"))
    assert refusals.refuse(credentials("hv1", "lab\\OP", "wrong"))
    assert not refusals.refuse(credentials("hv1", "LAB\\op", "another"))
    assert not refusals.refuse(credentials("hv1", "LAB\\other", "wrong"))


def test_a_domain_account_that_two_machines_refuse_is_tried_on_no_third() -> None:
    refusals = Refusals()
    for user in ("LAB\\op", "op@lab.example"):
        refusals.add(credentials("hv1", user, "wrong"))
        assert not refusals.refuse(credentials("hv2", user, "wrong"))
        refusals.add(credentials("hv2", user, "wrong"))
        assert refusals.refuse(credentials("hv3", user, "wrong"))


def test_local_accounts_of_machines_have_nothing_to_do_with_each_other() -> None:
    refusals = Refusals()
    for machine in ("hv1", "hv2", "hv3"):
        for user in ("Administrator", ".\\Administrator"):
            assert not refusals.refuse(credentials(machine, user, "wrong"))
            refusals.add(credentials(machine, user, "wrong"))


def test_passwords_are_kept_as_hashes_only() -> None:
    refused = credentials("hv1", "LAB\\op", "a secret")
    assert "a secret" not in repr(refused)
    assert b"a secret" not in refused.digest


def test_of_many_who_try_at_once_one_does_until_a_machine_has_taken_it() -> None:
    trials, refusals = Trials(), Refusals()
    tried: list[str] = []

    def ask(machine: str) -> None:
        mine = credentials(machine, "LAB\\op", "wrong")
        with trials.turn(mine, patience=30):
            if not refusals.refuse(mine):
                tried.append(machine)
                refusals.add(mine)

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(ask, [f"hv{number}" for number in range(8)]))
    assert len(tried) == MACHINES_OF_A_DOMAIN


def test_nobody_waits_for_a_machine_that_does_not_answer_or_once_one_has_answered() -> None:
    trials = Trials()
    mine = credentials("hv1", "LAB\\op", "right")
    with trials.turn(mine, patience=0), trials.turn(mine, patience=0.01):
        trials.took(mine)
        with trials.turn(mine, patience=30):
            pass

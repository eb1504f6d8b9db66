"""Passwords that were refused are not tried again."""

from __future__ import annotations

from workers.winrm.refusals import Refusals, credentials


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

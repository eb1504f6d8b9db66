"""A password that vCenter refused locks no account."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labctl import clock
from labctl.errors import LabError
from tests.hypervisors.vsphere_guests import driver_of, vsphere_lab
from tests.simulators.vcsim import VcSim, vcsim
from workers.check import check_members
from workers.hypervisors.vsphere.driver import VsphereDriver
from workers.hypervisors.vsphere.refused import REST_SECONDS, Refused

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def vc() -> Iterator[VcSim]:
    with vcsim() as made:
        yield made


def test_a_lab_that_is_checked_with_a_wrong_password_tries_it_once(vc: VcSim) -> None:
    """Every host, every path and every attempt of a worker asks for a session."""
    lab = vsphere_lab(vc)
    vc.ca_file.with_name("password").write_text("wrong")
    before = vc.calls().get("Login", 0)
    found = check_members(lab)
    assert all(item.problem for item in found)
    assert [item.problem for item in found if item.way.startswith("migration")] == [
        "host a itself can't be used",
        "host b itself can't be used",
    ]
    with pytest.raises(LabError) as caught:
        driver_of_same(vc).host_facts("a")
    assert "wrong" not in f"{caught.value.what}{caught.value.why}"
    assert vc.calls()["Login"] - before == 1


def driver_of_same(vc: VcSim) -> VsphereDriver:
    """Another driver, as the next attempt has, with the password that is in the file now."""
    driver = driver_of(vc)
    vc.ca_file.with_name("password").write_text("wrong")
    return driver


def test_another_password_is_tried_at_once_and_the_same_one_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    refusals = Refused()
    refusals.add("vc", "op", "wrong")
    assert refusals.rests("vc", "op", "wrong")
    assert not refusals.rests("vc", "op", "right")
    assert not refusals.rests("other", "op", "wrong")
    now += REST_SECONDS + 1
    assert not refusals.rests("vc", "op", "wrong")
    assert "wrong" not in repr(refusals.__dict__)

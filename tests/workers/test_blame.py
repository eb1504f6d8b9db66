"""Lab-errors of what is inside an endpoint name the host that it is on, so that the outcome policy knows whom to blame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import workers.attempt
from labctl.errors import LabError
from labctl.model.outcome import Outcome
from labctl.model.scenario import Scenario
from labctl.store import Store, open_store
from tests.simulated import a_simulated_lab, attempt
from tests.values import a_campaign
from workers.hypervisors.simulated.figures import Figures


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path / "state")
    yield opened
    opened.close()


@pytest.mark.parametrize(("look", "host"), [("verify_vm", "a"), ("read_machine", "b"), ("prepare", "a")])
def test_what_is_wrong_inside_an_endpoint_is_told_with_the_host_that_it_is_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str, host: str
) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise LabError("It is not what was asked for.", kind="nic-mismatch")

    monkeypatch.setattr(workers.attempt, look, wrong)
    lab = a_simulated_lab(tmp_path / "world", figures=Figures.instant())
    settings = {"tool": "iperf", "seconds": 0.5, "interval": 0.1, "peer": "other-host"}
    campaign = a_campaign(scenarios=(Scenario.VM_TO_HOST,), settings=settings, factors={"nic_model": ("virtio",)})
    detail = attempt(store, lab, campaign).detail
    assert (detail.outcome, detail.kind, detail.host) == (Outcome.LAB_ERROR, "nic-mismatch", host)

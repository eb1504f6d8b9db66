"""Bugs in the service's own work: what they end, and what goes on."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from labctl.campaign import health, scheduler
from labctl.campaign.mishaps import IN_A_ROW, Mishaps
from labctl.campaign.service import Asked, serve
from labctl.campaign.serving import Serving
from labctl.errors import LabError, SpecError
from labctl.model.outcome import CampaignState
from labctl.store import Store
from labctl.store.database import sqlite_url
from tests.campaign.post import Post, a_post
from tests.desk import until


def test_a_bug_is_passed_over_and_logged_once_until_it_goes_well(caplog: pytest.LogCaptureFixture) -> None:
    mishaps = Mishaps(lambda _: None, patient=True)
    for _ in range(3 * IN_A_ROW):
        with mishaps.passed_over("counting"):
            raise ZeroDivisionError("by nought")
    (record,) = caplog.records
    assert "counting went wrong" in record.getMessage()
    assert record.exc_info is not None
    with mishaps.passed_over("counting"):
        pass
    with mishaps.passed_over("counting"):
        raise ZeroDivisionError("by nought")
    assert len(caplog.records) == 2


def test_while_somebody_watches_a_bug_is_raised_when_it_comes_again_and_again() -> None:
    mishaps = Mishaps(lambda _: None, patient=False)
    for _ in range(IN_A_ROW - 1):
        with mishaps.passed_over("counting"):
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), mishaps.passed_over("counting"):
        raise ZeroDivisionError


def test_errors_of_the_lab_are_not_passed_over_and_said_once() -> None:
    said: list[str] = []
    mishaps = Mishaps(said.append, patient=True)
    error = LabError("There is no lab.", kind="lab")
    with pytest.raises(LabError), mishaps.passed_over("counting"):
        raise error
    mishaps.note("counting", error)
    mishaps.note("counting", error)
    assert said == ["counting went wrong; it is tried again. There is no lab."]


@pytest.mark.services
@pytest.mark.timeout(180)
def test_bugs_in_the_work_of_a_service_end_no_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One campaign that can't be advanced, a health check and a display that always fail, and a store that fails once: the
    other campaign is done."""
    caplog.set_level(logging.ERROR)
    with a_post(tmp_path) as post:
        bad, good = post.submit(), post.submit(seconds=0.1)
        advance = scheduler.advance

        def failing(store: Store, *rest: object, only: int | None = None, **options: object) -> scheduler.Advanced:
            if only in (None, bad) and store.state(bad) is CampaignState.ACTIVE:
                raise SpecError("This campaign can't be read.")
            return advance(store, *rest, only=only, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(scheduler, "advance", failing)
        monkeypatch.setattr(health, "due", lambda _: 1 / 0)
        with InThisProcess(post):
            until("the other one is done", lambda: post.store.state(good) is CampaignState.DONE)
        said = "\n".join(record.getMessage() for record in caplog.records)
        for work in (f"starting runs of campaign {bad}", "checking hosts", "showing what is going on"):
            assert said.count(f"{work} went wrong") == 1


class InThisProcess:
    """A service in a thread of this process, whose display fails."""

    def __init__(self, post: Post) -> None:
        self._post, self._asked = post, Asked()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._shown = 0
        self._failed: list[BaseException] = []

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._asked.end.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert self._failed == []

    def _show(self) -> None:
        self._shown += 1
        if self._shown == 1:
            raise LabError("The store could not be read.", kind="store")
        raise ZeroDivisionError

    def _serve(self) -> None:
        state = self._post.state
        try:
            serve(
                self._post.store, Serving(state=state, store_url=sqlite_url(state)), asked=self._asked,
                say=lambda _: None, write_report=lambda _: "", on_look=self._show,
            )  # fmt: skip
        except BaseException as error:
            self._failed.append(error)

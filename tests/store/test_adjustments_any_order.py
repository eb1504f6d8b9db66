"""Whatever attempts, cleaners and deaths come in which order: a setting ends as it was, and is nobody's who has not said so."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from labctl.errors import LabError
from labctl.store import WORKER_LOST, Adjustment, AttemptHandle, Change, open_store
from tests.store.steps import started_and_claimed, submit

BEFORE = "as it was"


class Host(RuleBasedStateMachine):
    """One setting of a host. Attempts change it and die at any line; cleaners restore it, and die over it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.store = open_store(Path(self.directory.name))
        self.campaign = submit(self.store, replicates=20)
        self.value = BEFORE
        self.attempt: AttemptHandle | None = None
        self.mine = ""
        """What the attempt in progress has changed it to."""
        self.number = 0
        self.noticed: tuple[Adjustment, ...] = ()
        """What a cleaner has read some time ago, and may act on late."""
        self.cleaner: Adjustment | None = None
        """What a cleaner has taken."""

    @precondition(lambda self: self.attempt is None)
    @rule()
    def an_attempt_starts(self) -> None:
        self.number += 1
        resources = frozenset({f"host:a{self.number}"})
        self.attempt = started_and_claimed(self.store, self.campaign, resources=resources)

    @precondition(lambda self: self.attempt is not None)
    @rule(dies=st.booleans())
    def it_records_and_changes(self, dies: bool) -> None:
        assert self.attempt is not None
        asked = f"changed by {self.attempt.id}"
        change = Change(host="a", adapter="", name="x", before=self.value, asked=asked)
        if self.cleaner is not None and self.store.open_adjustments():
            with pytest.raises(LabError, match="being restored"):
                self.store.record_adjustments("lab", self.attempt.id, [change], durable=False)
            return
        (recorded,) = self.store.record_adjustments("lab", self.attempt.id, [change], durable=False)
        assert recorded.before == BEFORE
        if not dies:
            self.value = self.mine = asked

    @precondition(lambda self: self.attempt is not None)
    @rule(restores=st.booleans())
    def it_ends(self, restores: bool) -> None:
        assert self.attempt is not None
        for mine in self.store.adjustments_of(self.attempt.id) if restores else ():
            self.value = mine.before
            self.store.close_adjustment(mine)
        self.store.lose_attempts([self.attempt.id], WORKER_LOST)
        self.attempt, self.mine = None, ""

    @rule()
    def a_cleaner_looks(self) -> None:
        self.noticed = self.store.idle_adjustments("lab")

    @precondition(lambda self: bool(self.noticed) and self.cleaner is None)
    @rule()
    def it_takes_what_it_saw(self) -> None:
        if self.store.take_adjustment(self.noticed[0]):
            self.cleaner = self.noticed[0]

    @precondition(lambda self: self.cleaner is not None)
    @rule(works=st.booleans())
    def it_restores(self, works: bool) -> None:
        assert self.cleaner is not None
        if works:
            self.value = self.cleaner.before
            self.store.close_adjustment(self.cleaner)
        else:
            self.store.explain_adjustment(self.cleaner, why="no route")
        self.cleaner = None

    @invariant()
    def what_is_changed_is_on_record(self) -> None:
        recorded = self.store.open_adjustments()
        assert len(recorded) <= 1
        assert self.value == BEFORE or [item.before for item in recorded] == [BEFORE]

    @invariant()
    def a_change_of_an_attempt_in_progress_stays(self) -> None:
        assert not self.mine or self.value == self.mine

    def teardown(self) -> None:
        self.store.close()
        self.directory.cleanup()


Host.TestCase.settings = settings(max_examples=12, stateful_step_count=15, deadline=None)
TestHost = Host.TestCase

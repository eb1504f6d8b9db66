"""What follows from an outcome: one table that people can read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from labctl.model.outcome import Outcome


class Action(StrEnum):
    """What becomes of a run after an attempt."""

    RECORD = "record"
    """The attempt's result is the run's, for good."""
    RETRY = "retry"
    """The run goes back and is tried again, as long as it has tries left; then the result is recorded."""
    RETURN = "return"
    """The run goes back as if the attempt had not been, and waits until the campaign goes on."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row: what an outcome leads to, and why."""

    outcome: Outcome
    action: Action
    why: str


POLICY: dict[Outcome, Rule] = {
    rule.outcome: rule
    for rule in (
        Rule(outcome=Outcome.OK, action=Action.RECORD, why="a figure"),
        Rule(
            outcome=Outcome.FAILED, action=Action.RECORD, why="a result about the system under test; no retry hides it"
        ),
        Rule(
            outcome=Outcome.LAB_ERROR,
            action=Action.RETRY,
            why="our lab's fault says nothing about the system under test",
        ),
        Rule(outcome=Outcome.CANCELLED, action=Action.RETURN, why="somebody stopped it; it was not the run's fault"),
    )
}


def goes_back(outcome: Outcome, *, tries: int, retries: int) -> bool:
    """Whether a run goes back after an attempt with this outcome. `tries` counts the attempts so far, this one included."""
    action = POLICY[outcome].action
    if action is Action.RETURN:
        return True
    return action is Action.RETRY and tries <= retries

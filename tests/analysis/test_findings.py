"""What whole campaigns show: planted effects are found at the stated rates, and nothing is found where nothing was planted."""

from __future__ import annotations

import numpy as np
import pytest

from labctl.analysis.design import Observation
from labctl.analysis.findings import Finding, Question, findings_of

CAMPAIGNS = 400
HOUR = 3600.0


def night(
    seed: int, *, first: float = 0.0, per_hour: float = 0.0, bad_host: float = 0.0, cells: int = 8, blocks: int = 4
) -> dict[str, list[Observation]]:
    """A campaign with a noise of 2 % in six hours, on hosts a, b and c; what is planted is a share of each figure."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[Observation]] = {str(cell): [] for cell in range(cells)}
    for block in range(blocks):
        for place, cell in enumerate(rng.permutation(cells)):
            hours = 6 * (block + place / cells) / blocks
            host = "abc"[int(rng.integers(3))]
            planted = first * (block == 0) + per_hour * hours + bad_host * (host == "c")
            found[str(cell)].append(
                Observation(
                    bits_per_second=(1 + cell) * 1e9 * (1 + planted + rng.normal(0, 0.02)),
                    block=block,
                    hosts=(host,),
                    at=1.8e9 + HOUR * hours,
                )
            )
    return found


def told(question: Question, **planted: float) -> float:
    """The share of campaigns in which it is told."""
    hits = 0
    for seed in range(CAMPAIGNS):
        findings = findings_of(night(seed, **planted), blocked=True)  # type: ignore[arg-type]
        hits += any(one.told for one in findings if one.question is question)
    return hits / CAMPAIGNS


@pytest.mark.parametrize("question", list(Question))
def test_nothing_is_found_where_nothing_was_planted(question: Question) -> None:
    assert told(question) < 0.085, "the nominal rate is 5 %, and 400 campaigns tell it to within 3.3 %"


def test_a_first_repetition_that_differs_is_found() -> None:
    assert told(Question.FIRST, first=-0.04) > 0.95


def test_a_drift_is_found() -> None:
    assert told(Question.DRIFT, per_hour=0.01) > 0.95


def test_a_bad_host_is_found_and_named() -> None:
    assert told(Question.HOSTS, bad_host=-0.05) > 0.95
    worst = min(of_hosts(findings_of(night(1, bad_host=-0.05), blocked=True)), key=lambda one: one.percent)
    assert worst.subject == "c"
    assert worst.low < -5 < worst.high


def test_with_two_sets_of_hosts_there_is_one_answer() -> None:
    figures = {
        name: [
            Observation(bits_per_second=1e9 * (1 + 0.01 * block), block=block, hosts=(("a", "b")[(block + at) % 2],))
            for block in range(4)
        ]
        for at, name in enumerate("uvwx")
    }
    assert len(of_hosts(findings_of(figures, blocked=True))) == 1


@pytest.mark.parametrize(
    "figures",
    [
        pytest.param({}, id="no cells"),
        pytest.param({"a": []}, id="no figures"),
        pytest.param({"a": [Observation(bits_per_second=1.0, block=1)]}, id="one figure"),
        pytest.param({"a": [Observation(bits_per_second=0.0, block=at) for at in range(3)]}, id="zeros"),
    ],
)
def test_too_little_answers_nothing(figures: dict[str, list[Observation]]) -> None:
    assert findings_of(figures, blocked=True) == ()


def of_hosts(findings: tuple[Finding, ...]) -> list[Finding]:
    return [one for one in findings if one.question is Question.HOSTS]

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from labctl.analysis.figures import RunFigure
from labctl.analysis.plausibility import first_transfer_flag, flags_of
from labctl.model.outcome import Outcome, OutcomeDetail
from labctl.model.reading import Interval, Reading
from labctl.model.result import AttemptResult, Fact, FactSet, MigrationResult
from labctl.model.settings import Level
from tests.report.records import EPOCH, migration, ok_result, reading, steady, transfer

VIRTIO: dict[str, Level] = {"scenario": "same-host", "nic_model": "virtio"}


def _kinds(content: Reading, *, migrations: tuple[MigrationResult, ...] = (), counted: bool = True) -> list[str]:
    result = AttemptResult(
        detail=OutcomeDetail(outcome=Outcome.OK),
        transfers=(transfer(1, content, counted=counted),),
        migrations=migrations,
    )
    return [flag.kind for flag in flags_of(result, VIRTIO)]


def _constant(rates: Sequence[float]) -> list[Interval]:
    return [Interval(start=i, end=i + 1.0, bits_per_second=rate) for i, rate in enumerate(rates)]


@pytest.mark.parametrize("seed", range(20))
def test_good_runs_raise_no_flag(seed: int) -> None:
    rng = random.Random(seed)
    for scenario in ("same-host", "during-migration"):
        levels: dict[str, Level] = {"scenario": scenario, "nic_model": "virtio"}
        assert flags_of(ok_result(rng, levels), levels) == ()


def test_standing_still_is_a_doubt_unless_something_migrated() -> None:
    still = reading(8e8, _constant([1e9, 1.1e9, 0.0, 1.05e9, 0.85e9]))
    assert _kinds(still) == ["stalled"]
    assert _kinds(still, migrations=(migration(EPOCH),)) == []
    assert _kinds(still, counted=False) == []


def test_equal_intervals_are_a_doubt_unless_the_rate_was_limited() -> None:
    equal = reading(1e9, _constant([1e9] * 6))
    assert _kinds(equal) == ["constant"]
    assert _kinds(reading(1e9, _constant([1e9] * 4))) == []
    limited = AttemptResult(detail=OutcomeDetail(outcome=Outcome.OK), transfers=(transfer(1, equal),))
    assert flags_of(limited, {**VIRTIO, "rate": 10**9}) == ()


@pytest.mark.parametrize(("figure", "kinds"), [(1.0e9, []), (0.93e9, []), (0.85e9, ["sides-apart"])])
def test_intervals_and_figure_apart(figure: float, kinds: list[str]) -> None:
    assert _kinds(reading(figure, _constant([1e9, 1.02e9, 0.98e9, 1.01e9, 0.99e9]))) == kinds


def test_a_senders_figure_says_so() -> None:
    assert _kinds(reading(1e9, steady(random.Random(1), 1e9, noise=0.01), side="sender")) == ["sender-side"]


def test_a_transfer_that_does_not_count_says_so_once() -> None:
    assert _kinds(reading(1e9, _constant([0.0] * 6), partial=True)) == ["not-counted"]


@pytest.mark.parametrize(
    ("subject", "facts", "expected"),
    [
        ("vm:sender", {"nic.model": "virtio", "ethtool.driver": "virtio_net"}, 0),
        ("vm:sender", {"ethtool.driver": "e1000"}, 1),
        ("vm:sender", {"nic.model": "e1000"}, 1),
        ("host:a", {"ethtool.driver": "ixgbe"}, 0),
    ],
)
def test_the_nic_is_the_one_asked_for(subject: str, facts: dict[str, Fact], expected: int) -> None:
    result = AttemptResult(
        detail=OutcomeDetail(outcome=Outcome.OK), facts=(FactSet(subject=subject, when="before", facts=facts),)
    )
    assert [flag.kind for flag in flags_of(result, VIRTIO)] == ["nic-mismatch"] * expected


def _figures(pairs: Sequence[tuple[float, ...]]) -> list[RunFigure]:
    return [
        RunFigure(
            run=i, cell="c", replicate=i, sequence=i, outcome=Outcome.OK,
            bits_per_second=sum(pair) / len(pair), transfers=pair,
        )
        for i, pair in enumerate(pairs)
    ]  # fmt: skip


def test_a_slower_first_transfer_is_told_and_chance_is_not() -> None:
    slower = first_transfer_flag(_figures([(0.80, 1.0, 1.02), (0.82, 1.01, 0.99), (0.79, 0.98, 1.0)]))
    assert slower is not None
    assert "slower" in slower.what
    assert "n = 3 runs" in slower.what
    assert first_transfer_flag(_figures([(1.05, 1.0), (0.95, 1.0), (1.01, 1.0)])) is None
    assert first_transfer_flag(_figures([(0.8, 1.0), (0.8, 1.0)])) is None
    assert first_transfer_flag(_figures([(1.0,), (1.0,), (1.0,)])) is None

"""First migrations of VMs against their later ones."""

from __future__ import annotations

import pytest

from labctl.analysis.migration import Dip, MigrationEffect, Stall
from labctl.analysis.ordinals import Measure, first_against_later
from labctl.report.migration_words import first_words
from tests.report.records import migration


def effect(ordinal: int, stall: float | None, total_ms: int | None, *, completed: bool = True) -> MigrationEffect:
    made = migration(0.0, ordinal=ordinal, total_ms=total_ms, completed=completed)
    return MigrationEffect(
        migration=made,
        started=10.0,
        ended=12.0,
        uncertainty=0.0,
        stall=Stall(start=11.0, end=11.0 + stall) if stall else None,
        dip=None if stall is None else Dip(start=11.0, end=11.5, bits_per_second=0.0, depth=1.0),
    )


def test_a_first_migration_that_stalls_longer_is_told() -> None:
    effects = {f"vm{at}": [effect(1, 0.8 + at / 100, 3000), effect(2, 0.3, 3000)] for at in range(4)}
    stall, total = first_against_later(effects)
    assert (stall.measure, stall.n, stall.told) == (Measure.STALL, 4, True)
    assert stall.seconds == pytest.approx(0.515)
    assert stall.low < 0.515 < stall.high
    assert (total.measure, total.seconds, total.told) == (Measure.TOTAL, 0.0, False)
    assert "longer" in first_words(stall)
    assert "like that of its later ones" in first_words(total)


def test_no_stall_is_zero_seconds_and_unknown_is_nothing() -> None:
    effects = {f"vm{at}": [effect(1, 0.0, None), effect(2, 0.2 + at / 100, None)] for at in range(3)}
    (stall,) = first_against_later(effects)
    assert stall.seconds < 0
    assert first_against_later({f"vm{at}": [effect(1, None, None), effect(2, None, None)] for at in range(3)}) == ()


@pytest.mark.parametrize(
    "effects",
    [
        pytest.param({}, id="none"),
        pytest.param({"a": [effect(1, 0.5, 1)]}, id="one each"),
        pytest.param({name: [effect(1, 0.5, 1), effect(2, 0.5, 1)] for name in "ab"}, id="two VMs"),
        pytest.param(
            {name: [effect(1, 0.5, 1), effect(2, 0.5, 1, completed=False)] for name in "abc"}, id="not completed"
        ),
    ],
)
def test_too_few_tell_of_nothing(effects: dict[str, list[MigrationEffect]]) -> None:
    assert first_against_later(effects) == ()

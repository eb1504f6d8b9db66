from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.migration import MigrationEffect, Phase, RecoveryState, TransferTimeline, timeline, timelines
from labctl.model.outcome import Outcome, OutcomeDetail
from labctl.model.reading import ErrorKind, Interval
from labctl.model.result import AttemptResult, MigrationResult
from tests.report.records import EPOCH, disturbed, migration, reading, steady, transfer

ZERO = EPOCH + 0.05
RATE = 1e9


def _intervals(rate: Callable[[float], float], *, seconds: float = 20.0, step: float = 0.1) -> list[Interval]:
    """Intervals without noise; `rate` is asked for the middle of each."""
    return [
        Interval(start=i * step, end=(i + 1) * step, bits_per_second=rate((i + 0.5) * step))
        for i in range(round(seconds / step))
    ]


def _timeline(
    intervals: Sequence[Interval], *migrations: MigrationResult, ok: bool = True, **other: object
) -> TransferTimeline:
    content = reading(RATE if ok else None, intervals, ok=ok, error_kind=None if ok else ErrorKind.CONNECTION_LOST)
    made = transfer(1, content, **other)  # type: ignore[arg-type]
    return timeline(made, migrations or (migration(ZERO, start=5.0, total=3.0),))


def _effect(intervals: Sequence[Interval], *migrations: MigrationResult, **other: object) -> MigrationEffect:
    return _timeline(intervals, *migrations, **other).effects[0]  # type: ignore[arg-type]


def _planted(at: float) -> float:
    """1 Gbit/s, half of it from 5 s, nothing from 7.5 s, all of it again from 8.1 s on."""
    return RATE if at < 5 or at > 8.1 else 0.5 * RATE if at < 7.5 else 0.0


def test_planted_stall_dip_loss_and_recovery_are_found() -> None:
    effect = _effect(_intervals(_planted))
    assert effect.before is not None
    assert effect.during is not None
    assert effect.after is not None
    assert effect.stall is not None
    assert effect.dip is not None
    assert (effect.before.mean, effect.before.median) == pytest.approx((RATE, RATE))
    assert effect.before.seconds == pytest.approx(4.9)  # the interval that ends at 5.0 is within 4 ms of the start
    assert effect.during.mean == pytest.approx(RATE * 2.5 * 0.5 / 3.0)
    assert effect.after.mean == pytest.approx(RATE)
    assert (effect.stall.start, effect.stall.end) == pytest.approx((7.5, 8.1))
    assert effect.stall.seconds == pytest.approx(0.6)
    assert not effect.stall.unended
    assert effect.resolution == pytest.approx(0.1)
    assert effect.dip.depth == 1.0
    assert effect.recovery.state is RecoveryState.RECOVERED
    assert effect.recovery.at == pytest.approx(8.1)
    assert effect.recovery.after_start == pytest.approx(3.1)
    assert effect.recovery.after_end == pytest.approx(0.1)
    assert effect.bytes_not_moved == pytest.approx((2.5 * 0.5 + 0.6) * RATE / 8)
    assert effect.session_survived is True
    assert effect.uncertainty == 0.004
    assert effect.warnings == ()


def test_points_know_their_phase() -> None:
    points = _timeline(_intervals(_planted)).points
    assert [points[i].phase for i in (0, 49, 50, 79, 80, 199)] == [
        Phase.BEFORE, Phase.BEFORE, Phase.MIGRATING, Phase.MIGRATING, Phase.AFTER, Phase.AFTER,
    ]  # fmt: skip


def test_the_hypervisors_words_stay_apart_from_the_gap() -> None:
    """L7, L11: downtime and outage are two figures; an unknown one is none, never 0."""
    effect = _effect(_intervals(_planted), migration(ZERO, start=5.0, total=3.0, downtime_ms=90))
    assert effect.migration.downtime_ms == 90
    assert effect.stall is not None
    assert effect.stall.seconds == pytest.approx(0.6)
    unknown = _effect(_intervals(_planted), migration(ZERO, start=5.0, total=3.0, downtime_ms=None))
    assert unknown.migration.downtime_ms is None
    assert unknown.stall == effect.stall


@pytest.mark.parametrize(("downtime_ms", "flagged"), [(90, True), (119, True), (121, False), (None, False), (0, True)])
def test_l11_a_gap_of_more_than_five_downtimes_is_the_paths(downtime_ms: int | None, flagged: bool) -> None:
    effect = _effect(_intervals(_planted), migration(ZERO, start=5.0, total=3.0, downtime_ms=downtime_ms))
    assert effect.stall is not None
    assert effect.stall.seconds == pytest.approx(0.6)
    assert any(warning.startswith("path learning") for warning in effect.warnings) == flagged


def test_l11_without_a_gap_nothing_is_said_of_the_path() -> None:
    effect = _effect(_intervals(lambda _: RATE), migration(ZERO, start=5.0, total=3.0, downtime_ms=0))
    assert effect.warnings == ()


def test_l7_why_there_is_no_downtime_is_said() -> None:
    made = migration(ZERO, start=5.0, total=3.0, downtime_ms=None, no_downtime="no event came")
    effect = _effect(_intervals(_planted), made)
    assert effect.warnings == ("the hypervisor states no downtime: no event came",)


def test_a_migration_that_traffic_does_not_notice() -> None:
    effect = _effect(_intervals(lambda _: RATE))
    assert effect.stall is None
    assert effect.dip is not None
    assert effect.dip.depth == 0.0
    assert effect.recovery.state is RecoveryState.UNDISTURBED
    assert effect.bytes_not_moved == 0.0


def test_the_longest_of_several_stalls_counts_and_stalls_before_the_migration_do_not() -> None:
    gaps = ((2.0, 4.0), (6.0, 6.3), (7.0, 7.8), (9.0, 9.2))
    effect = _effect(_intervals(lambda at: 0.0 if any(a < at < b for a, b in gaps) else RATE))
    assert effect.stall is not None
    assert (effect.stall.start, effect.stall.end) == pytest.approx((7.0, 7.8))


def test_a_trickle_under_one_percent_is_a_stall_and_one_above_is_none() -> None:
    def trickle(share: float) -> MigrationEffect:
        return _effect(_intervals(lambda at: share * RATE if 7 < at < 8 else RATE))

    low, high = trickle(0.009), trickle(0.011)
    assert low.stall is not None
    assert low.stall.seconds == pytest.approx(1.0)
    assert high.stall is None
    assert high.dip is not None
    assert high.dip.depth == pytest.approx(0.989)


def test_traffic_that_stays_slower_has_not_recovered() -> None:
    effect = _effect(_intervals(lambda at: RATE if at < 5 else 0.8 * RATE))
    assert effect.recovery.state is RecoveryState.NOT_RECOVERED
    assert effect.recovery.at is None
    assert effect.bytes_not_moved == pytest.approx(15 * 0.2 * RATE / 8)


def test_within_ten_percent_is_recovered() -> None:
    effect = _effect(_intervals(lambda at: RATE if at < 5 else 0.0 if at < 6 else 0.92 * RATE))
    assert effect.recovery.state is RecoveryState.RECOVERED
    assert effect.recovery.at == pytest.approx(6.0)


def test_a_relapse_puts_the_recovery_off() -> None:
    effect = _effect(_intervals(lambda at: 0.3 * RATE if 5 < at < 7 or 10 < at < 12 else RATE))
    assert effect.recovery.at == pytest.approx(12.0)


def test_a_slow_ramp_is_over_where_it_reaches_the_level() -> None:
    effect = _effect(_intervals(lambda at: RATE if at < 5 else min(1.0, max(0.0, (at - 6) / 4)) * RATE))
    assert effect.recovery.at == pytest.approx(9.6, abs=0.11)


def test_noise_that_was_there_before_is_no_relapse() -> None:
    rng = random.Random(5)
    states = [
        _effect(disturbed(rng, RATE, step=0.1, start=5.0, total=3.0, gap=0.6, ramp=0.0)).recovery.state
        for _ in range(50)
    ]
    assert states.count(RecoveryState.RECOVERED) == 50


def test_connection_lost_in_the_stall() -> None:
    effect = _effect(_intervals(_planted, seconds=8.0), ok=False)
    assert effect.session_survived is False
    assert effect.stall is not None
    assert effect.stall.unended
    assert effect.recovery.state is RecoveryState.NOT_RECOVERED


def test_a_transfer_that_ends_before_the_migration_does_tells_little() -> None:
    effect = _effect(_intervals(_planted, seconds=7.0))
    assert effect.session_survived is None
    assert effect.after is None


def test_a_migration_after_the_transfer_touches_nothing() -> None:
    effect = _effect(_intervals(lambda _: RATE, seconds=4.0))
    assert effect.before is not None
    assert effect.during is None
    assert effect.stall is None
    assert effect.recovery.state is RecoveryState.UNKNOWN
    assert "ended before the migration" in effect.warnings[0]


def test_a_migration_from_the_first_moment_has_nothing_to_compare_with() -> None:
    effect = _effect(_intervals(_planted), migration(ZERO, start=0.0, total=3.0))
    assert effect.before is None
    assert effect.dip is None
    assert "nothing was measured before" in effect.warnings[0]


@pytest.mark.parametrize("zero", [None, ZERO])
def test_without_alignment_or_intervals_nothing_is_claimed(zero: float | None) -> None:
    intervals = _intervals(_planted) if zero is None else []
    timeline = _timeline(intervals, zero=zero)
    effect = timeline.effects[0]
    assert (effect.started, effect.before, effect.stall, effect.dip, effect.bytes_not_moved) == (None,) * 5
    assert effect.session_survived is None
    assert "can't be aligned" in effect.warnings[0]
    assert [point.phase for point in timeline.points] == [None] * len(intervals)


def test_unknown_uncertainty_is_said() -> None:
    effect = _effect(_intervals(_planted), zero_uncertainty=None)
    assert effect.uncertainty is None
    assert any("how well" in warning for warning in effect.warnings)


def test_intervals_that_could_lie_on_either_side_count_for_neither() -> None:
    effect = _effect(_intervals(lambda at: RATE if at < 5 else 0.2 * RATE if at < 8 else RATE), zero_uncertainty=0.35)
    assert effect.before is not None
    assert effect.after is not None
    assert effect.before.seconds == pytest.approx(4.6)
    assert effect.after.seconds == pytest.approx(11.6)


def test_long_intervals_are_weighed_by_their_length_and_said() -> None:
    whole = _intervals(lambda _: RATE)
    held_up = Interval(start=8.0, end=11.2, bits_per_second=0.25 * RATE)
    effect = _effect([one for one in whole if one.end <= 8.05 or one.start >= 11.15] + [held_up])
    assert effect.after is not None
    assert effect.after.mean == pytest.approx(RATE)  # the long one may have begun before the end
    assert effect.bytes_not_moved == pytest.approx(3.2 * 0.75 * RATE / 8)
    assert effect.resolution == pytest.approx(3.2)
    assert "3.2 s" in effect.warnings[0]


def test_there_and_back_are_two_effects_against_the_same_before() -> None:
    def rate(at: float) -> float:
        return 0.0 if 7.6 < at < 8 or 14 < at < 14.9 else RATE

    first = migration(ZERO, start=5.0, total=3.0)
    second = migration(ZERO, start=12.0, total=2.5, source="b", destination="a", ordinal=2)
    one, two = _timeline(_intervals(rate), first, second).effects
    assert one.stall is not None
    assert two.stall is not None
    assert one.stall.seconds == pytest.approx(0.4)
    assert two.stall.seconds == pytest.approx(0.9)
    assert one.before == two.before
    assert one.after is not None
    assert one.after.seconds == pytest.approx(4.0, abs=0.21)
    assert two.recovery.at == pytest.approx(14.9)


def test_an_attempt_gives_a_timeline_for_each_transfer_that_migrated() -> None:
    calm = transfer(1, reading(RATE, steady(random.Random(1), RATE)))
    moved = transfer(2, reading(RATE, _intervals(_planted)))
    result = AttemptResult(
        detail=OutcomeDetail(outcome=Outcome.OK),
        transfers=(calm, moved),
        migrations=(migration(ZERO, start=5.0, total=3.0, transfer_index=2),),
    )
    (only,) = timelines(result)
    assert only.transfer is moved


@given(
    shift=st.floats(-1e4, 1e4),
    gap=st.integers(1, 20),
    step=st.sampled_from([0.1, 0.2, 0.5]),
    rate=st.floats(1e6, 1e11),
)
def test_only_differences_of_times_matter_and_planted_gaps_are_found(
    shift: float, gap: int, step: float, rate: float
) -> None:
    intervals = _intervals(lambda at: 0.0 if 8 < at < 8 + gap * step else rate, seconds=30.0, step=step)
    made = migration(ZERO, start=5.0, total=3.0)
    here = _effect(intervals, made)
    moved = replace(made, started=made.started + shift, ended=made.ended + shift)
    there = _effect(intervals, moved, zero=ZERO + shift)
    for effect in (here, there):
        assert effect.stall is not None
        assert effect.stall.seconds == pytest.approx(gap * step)
        assert effect.bytes_not_moved == pytest.approx(gap * step * rate / 8, rel=1e-4)
        assert effect.recovery.at == pytest.approx(8 + gap * step)

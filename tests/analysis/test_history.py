"""Change points of nightly campaigns: planted ones are found where they are, and calm histories have none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from labctl.analysis.history import PastFigure, changes_of

NIGHTS = 300


def history(levels: Sequence[float], *, seed: int, noise: float = 0.02) -> list[PastFigure]:
    """One campaign a night, each at a level, with noise."""
    rng = np.random.default_rng(seed)
    return [
        PastFigure(
            campaign=night + 1, began=1.8e9 + 86400 * night, bits_per_second=1e9 * level * rng.normal(1, noise), n=3
        )
        for night, level in enumerate(levels)
    ]


def test_a_driver_update_in_mid_year_is_found_on_its_night() -> None:
    found = [changes_of(history([1.0] * 15 + [0.9] * 15, seed=seed)) for seed in range(NIGHTS)]
    nights = [[one.campaign for one in some] for some in found]
    assert sum(any(abs(night - 16) <= 1 for night in some) for some in nights) / NIGHTS > 0.97
    assert found[0][0].ratio.ratio == pytest.approx(0.9, rel=0.03)


def test_two_changes_are_both_found() -> None:
    some = changes_of(history([1.0] * 10 + [1.2] * 10 + [1.0] * 10, seed=1))
    assert [one.campaign for one in some] == [11, 21]


def test_calm_histories_are_left_alone() -> None:
    alarms = sum(bool(changes_of(history([1.0] * 30, seed=seed))) for seed in range(NIGHTS))
    assert alarms / NIGHTS < 0.1


def test_one_bad_night_is_no_change() -> None:
    levels = [1.0] * 12 + [0.5] + [1.0] * 12
    assert sum(bool(changes_of(history(levels, seed=seed))) for seed in range(50)) / 50 < 0.1


@pytest.mark.parametrize("nights", [0, 1, 5])
def test_short_histories_tell_of_nothing(nights: int) -> None:
    assert changes_of(history([1.0] * nights, seed=1)) == ()


def test_histories_without_noise() -> None:
    assert changes_of(history([1.0] * 10, seed=1, noise=0.0)) == ()
    assert [one.campaign for one in changes_of(history([1.0] * 5 + [2.0] * 5, seed=1, noise=0.0))] == [6]

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.comparison import Ratio
from labctl.model.settings import Level
from labctl.report import units


def _plain(text: str) -> str:
    return text.replace(units.SPACE, " ").replace(units.MINUS, "-")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9_213_000_000.0, "9.21 Gbit/s"),
        (941_000_000.0, "941 Mbit/s"),
        (999_600_000.0, "1.00 Gbit/s"),
        (999_400_000.0, "999 Mbit/s"),
        (1_000.0, "1.00 kbit/s"),
        (0.0, "0 bit/s"),
        (2.5e12, "2.50 Tbit/s"),
        (None, "–"),
    ],
)
def test_throughput_has_decimal_prefixes(value: float | None, text: str) -> None:
    assert _plain(units.rate(value)) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1024, "1.00 KiB"), (1000, "1000 B"), (64 * 2**20, "64.0 MiB"), (None, "–"), (0, "0 B")]
)
def test_sizes_have_binary_prefixes(value: float | None, text: str) -> None:
    assert _plain(units.size(value)).replace("1.00e3", "1000") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"), (0.35, "350 ms"), (1.2544, "1.25 s"), (-0.2, "-200 ms"), (119.9, "120 s"),
        (725, "12 min 5 s"), (25_920, "7 h 12 min"), (7200, "2 h"), (None, "–"),
    ],
)  # fmt: skip
def test_durations(value: float | None, text: str) -> None:
    assert _plain(units.seconds(value)) == text


def test_intervals_and_ranges_have_one_unit() -> None:
    assert _plain(units.rate_interval(934e6, 1.03e9)) == "0.934 to 1.03 Gbit/s"
    assert _plain(units.rate_interval(-2e8, 1.03e9)) == "0 to 1.03 Gbit/s"
    assert _plain(units.rate_interval(None, None)) == "–"
    assert _plain(units.seconds_range(0.4, 2.6)) == "0.40 to 2.6 s"
    assert _plain(units.seconds_range(0.2, 0.7)) == "200 to 700 ms"


@pytest.mark.parametrize(
    ("value", "text"), [(20.53, "+20.5 %"), (-3.21, "-3.2 %"), (327.2, "+327 %"), (-0.01, "0.0 %"), (None, "–")]
)
def test_percentages_carry_their_sign(value: float | None, text: str) -> None:
    assert _plain(units.percent(value)) == text


def test_changes_say_how_sure_they_are() -> None:
    sure = Ratio(n=3, baseline_n=3, ratio=1.205, low=1.1, high=1.3)
    assert _plain(units.change(sure)) == "+20.5 % (+10.0 to +30.0)"
    assert (
        _plain(units.change(Ratio(n=1, baseline_n=3, ratio=1.205)))
        == "+20.5 % (too few or too scattered for an interval)"
    )
    assert units.change(Ratio(n=0, baseline_n=3)) == units.NOTHING


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("offload.tso", False, "off"), ("memory", 192 * 2**20, "192 MiB"), ("rate", 100_000_000, "100 Mbit/s"),
        ("seconds", 10.0, "10.0 s"), ("streams", 4, "4"), ("nic_model", "virtio", "virtio"), ("migrate_at", 1 / 3, "0.333"),
    ],
)  # fmt: skip
def test_levels_have_the_unit_of_their_setting(name: str, value: Level, text: str) -> None:
    assert _plain(units.level(name, value)) == text


@given(st.floats(1e-6, 1e14))
def test_three_digits_are_never_off_by_more_than_they_hide(value: float) -> None:
    text = units.significant(value)
    assert float(text) == pytest.approx(value, rel=0.00501)
    assert "e" not in text

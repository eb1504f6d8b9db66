"""Figures in words, each with its unit: throughput in bit/s with decimal prefixes, sizes in bytes with binary ones."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from labctl.analysis.comparison import MOST_NEEDED, Difference, Ratio
from labctl.model.settings import Kind, Level, find_setting

SPACE = "\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
"""Stands where there is no figure."""

_DECIMAL = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))
_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def significant(value: float, digits: int = 3) -> str:
    """A number to so many significant digits, without an exponent: `9.21`, `0.0450`, `1230`."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - exponent)
    exponent = math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(0, digits - 1 - exponent)}f}".replace("-", MINUS)


def rate_unit(bits_per_second: float) -> tuple[float, str]:
    """The divisor and unit in which a throughput reads best."""
    return _unit(bits_per_second, _DECIMAL)


def rate(bits_per_second: float | None) -> str:
    """A throughput with its unit, to three significant digits: `9.21 Gbit/s`."""
    return NOTHING if bits_per_second is None else _with_unit(bits_per_second, _DECIMAL)


def rate_interval(low: float | None, high: float | None) -> str:
    """The bounds of an interval in one unit: `8.90 to 9.52 Gbit/s`. A bound below zero is shown as zero."""
    if low is None or high is None:
        return NOTHING
    divisor, unit = rate_unit(high)
    return f"{significant(max(0.0, low) / divisor)}{SPACE}to{SPACE}{significant(high / divisor)}{SPACE}{unit}"


def size(count: float | None) -> str:
    """Bytes with a binary prefix, to three significant digits: `12.3 MiB`."""
    return NOTHING if count is None else _with_unit(count, _BINARY)


def seconds(value: float | None) -> str:
    """A duration: `350 ms`, `1.25 s`, `12 min 5 s`, `7 h 12 min`."""
    if value is None:
        return NOTHING
    if value < 0:
        return MINUS + seconds(-value)
    if value < 1:
        return f"{significant(value * 1000)}{SPACE}ms" if value else f"0{SPACE}s"
    if value < 120:
        return f"{significant(value)}{SPACE}s"
    whole = round(value)
    if whole < 7200:
        return f"{whole // 60}{SPACE}min" + (f" {whole % 60}{SPACE}s" if whole % 60 else "")
    return f"{whole // 3600}{SPACE}h" + (f" {whole % 3600 // 60}{SPACE}min" if whole % 3600 >= 60 else "")


def seconds_range(low: float, high: float) -> str:
    """Two durations in one unit: `0.40 to 2.6 s`, `200 to 700 ms`."""
    if high >= 120:
        return f"{seconds(low)} to {seconds(high)}"
    factor, unit = (1.0, "s") if high >= 1 else (1000.0, "ms")
    return f"{significant(low * factor, 2)} to {significant(high * factor, 2)}{SPACE}{unit}"


def percent(value: float | None, *, signed: bool = True) -> str:
    """A percentage: `+20.5 %`. Signed ones are changes, unsigned ones shares."""
    return NOTHING if value is None else f"{_percent_number(value, signed=signed)}{SPACE}%"


def percent_interval(bounds: tuple[float, float] | None) -> str:
    """The bounds of a change in percent: `+15.2 to +26.1 %`."""
    if bounds is None:
        return NOTHING
    low, high = (_percent_number(bound, signed=True) for bound in bounds)
    return f"{low}{SPACE}to{SPACE}{high}{SPACE}%"


def times(ratio: float | None) -> str:
    """A ratio: `4.10×`."""
    return NOTHING if ratio is None else f"{significant(ratio)}×"


def change(ratio: Ratio) -> str:
    """A change against a baseline in one line, with its interval or the reason why there is none."""
    if ratio.difference is Difference.NO_FIGURE:
        return NOTHING
    text = percent(ratio.percent)
    if ratio.percent_interval is None:
        return f"{text} (too few or too scattered for an interval)"
    low, high = (_percent_number(bound, signed=True) for bound in ratio.percent_interval)
    return f"{text} ({low}{SPACE}to{SPACE}{high})"


def untold(ratio: Ratio) -> str:
    """Why a ratio is no difference, and how many runs would tell one of its size; empty for a real difference."""
    if ratio.difference is Difference.MAY_BE_CHANCE:
        return "may be chance: among so many comparisons some look like this without any difference"
    if ratio.difference is not Difference.NOT_TOLD:
        return ""
    counts = str(ratio.n) if ratio.n == ratio.baseline_n else f"{ratio.n} and {ratio.baseline_n}"
    text = f"no difference can be told with n = {counts}"
    if ratio.needed is None:
        return text
    many = f"more than {MOST_NEEDED}" if ratio.needed >= MOST_NEEDED else f"about {ratio.needed}"
    return f"{text}; one of this size would need {many} runs of each"


def untold_briefly(ratio: Ratio) -> str:
    """The same in two or three words, for tables; empty for a real difference."""
    if ratio.difference is Difference.MAY_BE_CHANCE:
        return "may be chance"
    if ratio.difference is not Difference.NOT_TOLD:
        return ""
    if ratio.needed is None:
        return "can't be told"
    return f"to tell: {'over ' if ratio.needed >= MOST_NEEDED else ''}{ratio.needed} runs"


def level(name: str, value: Level) -> str:
    """A level of a setting in words, with its unit."""
    if isinstance(value, bool):
        return "on" if value else "off"
    setting = find_setting(name)
    if setting is not None and isinstance(value, int | float):
        if setting.kind is Kind.SIZE:
            return size(value)
        if setting.kind is Kind.RATE:
            return rate(value)
        if setting.kind is Kind.SECONDS:
            return seconds(value)
    if isinstance(value, float):
        return significant(value)
    return str(value)


def moment(epoch: float | None) -> str:
    """An instant: `2026-11-30 22:00:05 UTC`."""
    return NOTHING if epoch is None else datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def fact(value: str | int | float | bool | None) -> str:
    """A fact as it is, but for switches."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _percent_number(value: float, *, signed: bool) -> str:
    digits = 1 if abs(value) < 99.95 else 0
    rounded = round(value, digits) + 0.0
    text = f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}"
    return text.replace("-", MINUS)


def _unit(value: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    for divisor, unit in units:
        if abs(value) >= divisor * 0.9995:
            return divisor, unit
    return units[-1]


def _with_unit(value: float, units: tuple[tuple[float, str], ...]) -> str:
    divisor, unit = _unit(value, units)
    return f"{significant(value / divisor)}{SPACE}{unit}"

"""Numbers with units as transfer tools print them.

In iperf, iperf3 and their kin a prefix before `bits` is decimal (10^3) and a prefix before `Bytes` is binary (2^10).
"""

from __future__ import annotations

import math
import re

NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|inf(?:inity)?|nan)"
"""A pattern of a printed number, with a decimal point or comma, or not finite."""

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_UNIT = re.compile(r"([KMGTP]?)(bit|byte)s?", re.IGNORECASE)


def number(printed: str) -> float:
    """The value of a printed number; nan when it is none."""
    plain = printed.strip().rstrip(".,")
    if plain.count(",") == 1 and "." not in plain:
        plain = plain.replace(",", ".")
    try:
        return float(plain.replace(",", ""))
    except ValueError:
        return math.nan


def bits(printed: str, unit: str) -> float:
    """Bits of a figure such as `("1.00", "Gbits")` or `("113", "MBytes")`; nan when it is none."""
    match = _UNIT.match(unit.strip())
    if match is None:
        return math.nan
    power = _POWERS[match.group(1).upper()]
    if match.group(2).lower() == "bit":
        return number(printed) * 1000.0**power
    return number(printed) * 1024.0**power * 8.0


def resolution(printed: str) -> float:
    """The relative rounding of a printed number: half a unit in its last place over its value; 1 for a zero."""
    value = abs(number(printed))
    if not math.isfinite(value) or value == 0.0:
        return 1.0
    mantissa = re.split(r"[eE]", printed.strip())[0].replace(",", ".")
    decimals = len(mantissa.partition(".")[2])
    exponent = value / (abs(number(mantissa)) or 1.0)
    return 0.5 * 10.0**-decimals * exponent / value

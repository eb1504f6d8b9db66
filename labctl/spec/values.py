"""One value of a setting from its written form to its canonical one: `64k` to 65536, `on` to True, `5 s` to 5.0."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import isfinite

from rapidfuzz import fuzz, process

from labctl.model.offloads import HOST_OFFLOAD, LINUX_OFFLOADS, OFFLOAD, WINDOWS_OFFLOADS
from labctl.model.settings import SETTINGS, Kind, Level, Setting, find_setting

WEEK = 7 * 24 * 3600.0
"""Seconds; no transfer and no deadline is longer."""

DEFAULT = "default"
"""The level that leaves a setting without a default of ours to the tool or the system."""


class BadValue(Exception):
    """A value that a setting can't have. `allowed` and `nearest` help to mend it."""

    def __init__(self, message: str, *, allowed: str = "", nearest: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.allowed = allowed
        self.nearest = nearest


def parse_level(setting: Setting, value: object) -> Level:
    """The canonical level of a setting. `value` is plain YAML; numbers may know how they were written.

    Raises `BadValue` for a value of the wrong type or outside of what the setting takes.
    """
    if value is None:
        raise BadValue("has no value", allowed=describe(setting))
    if isinstance(value, (list, dict)):
        raise BadValue("must be one value, not a list or a mapping", allowed=describe(setting))
    if value == DEFAULT and setting.default is None and setting.kind is not Kind.TEXT:
        return DEFAULT
    return _PARSERS[setting.kind](setting, value)


def describe(setting: Setting) -> str:
    """What the setting takes, in words."""
    text = {
        Kind.CHOICE: ", ".join(setting.choices),
        Kind.COUNT: f"a whole number of at least {setting.minimum}",
        Kind.SIZE: "bytes, such as 65536, 64k, 64 KiB (2^10) or 64 kB (10^3)",
        Kind.RATE: "bit/s, such as 100000000, 100M or 1.5 Gbit/s",
        Kind.SECONDS: "a time above 0, such as 10, 0.5, 500 ms or 2 min",
        Kind.FRACTION: "a share above 0 and below 1, such as 0.5, 1/3 or 33%",
        Kind.SWITCH: "on, off",
        Kind.ARGUMENTS: "command line arguments in one string",
        Kind.TEXT: "text",
    }[setting.kind]
    if setting.default is None and setting.kind is not Kind.TEXT:
        text += f", or {DEFAULT} (left to the tool or the system)"
    return text


def known_setting(name: str) -> Setting:
    """The setting of this name. Raises `BadValue` with the nearest name when there is none."""
    setting = find_setting(name)
    if setting is None:
        raise BadValue("is no setting", allowed=SETTING_NAMES, nearest=nearest(name, _SPELT))
    family, dot, rest = name.partition(".")
    if family + dot in _FAMILIES and rest not in _OFFLOAD_NAMES and not _ETHTOOL_FEATURE.fullmatch(rest):
        raise BadValue(
            f"neither ethtool nor Windows knows an offload {rest}",
            allowed=f"{', '.join(_OFFLOADS)}, or the long name of `ethtool -k`",
            nearest=f"{family}.{near}" if (near := nearest(rest, _OFFLOADS)) else "",
        )
    return setting


def nearest(word: str, names: Iterable[str]) -> str:
    """The name that the word is probably meant to be; empty when none is near."""
    found = process.extractOne(
        word.lower().replace("_", "-"), list(names), scorer=fuzz.ratio, score_cutoff=60, processor=_fold
    )
    return found[0] if found else ""


def text_of(value: object) -> str:
    """A scalar as the user wrote it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(getattr(value, "text", value))


SETTING_NAMES = ", ".join([*SETTINGS, "offload.NAME", "host_offload.NAME", "host.FACT", "own.NAME"])
"""All names of settings, for messages."""

_FAMILIES = (OFFLOAD, HOST_OFFLOAD)
_OFFLOADS = (*LINUX_OFFLOADS, *WINDOWS_OFFLOADS)
_SPELT = [*SETTINGS, *(f"{family}{name}" for family in _FAMILIES for name in _OFFLOADS)]
_OFFLOAD_NAMES = {*_OFFLOADS, "ntuple", "rxhash"}
_ETHTOOL_FEATURE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")


def _fold(word: str) -> str:
    return word.lower().replace("_", "-")


def _choice(setting: Setting, value: object) -> Level:
    word = text_of(value)
    if word not in setting.choices:
        raise BadValue(
            f"is no {_spoken(setting)}", allowed=", ".join(setting.choices), nearest=nearest(word, setting.choices)
        )
    return word


def _count(setting: Setting, value: object) -> Level:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValue("must be a whole number, without quotes", allowed=describe(setting))
    if value < setting.minimum:
        raise BadValue("is too small", allowed=describe(setting))
    if value >= 2**31:
        raise BadValue("is too large", allowed=f"{describe(setting)}, below 2^31")
    return int(value)


_QUANTITY = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+)\s*(?P<unit>[A-Za-z/]*)")

_SIZE_UNITS = {"": 1, "B": 1, "k": 2**10, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE_UNITS |= {f"{prefix}i{b}": 2 ** (10 * n) for n, prefix in enumerate("KMGT", start=1) for b in ("", "B")}
_SIZE_UNITS |= {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "kiB": 2**10, "ki": 2**10}

_RATE_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_RATE_UNITS = {
    f"{prefix}{unit}": factor for prefix, factor in _RATE_PREFIXES.items() for unit in ("", "bit/s", "bps", "b/s")
}

_TIME_UNITS = {"": Fraction(1), "s": Fraction(1), "ms": Fraction(1, 1000), "min": Fraction(60), "h": Fraction(3600)}
_TIME_UNITS |= {"d": Fraction(86_400)}


def _size(setting: Setting, value: object) -> Level:
    return _whole(setting, parse_bytes(value, allowed=describe(setting)), "bytes")


def parse_bytes(value: object, *, allowed: str) -> Fraction:
    """The bytes of a written size such as `4096`, `512 MiB` or `2 GB`. Raises `BadValue`."""
    number, unit = _quantity(value, allowed)
    if unit not in _SIZE_UNITS:
        why = "that is bits; write bytes with a capital B" if unit.endswith("b") else f"has an unknown unit {unit}"
        raise BadValue(why, allowed=allowed)
    return number * _SIZE_UNITS[unit]


def _rate(setting: Setting, value: object) -> Level:
    number, unit = _quantity(value, describe(setting))
    if unit not in _RATE_UNITS:
        why = "that is bytes; write bit/s" if "B" in unit else f"has an unknown unit {unit}"
        raise BadValue(why, allowed=describe(setting))
    return _whole(setting, number * _RATE_UNITS[unit], "bit/s")


def _seconds(setting: Setting, value: object) -> Level:
    seconds = parse_seconds(value, allowed=describe(setting))
    if seconds <= 0:
        raise BadValue("must be above 0", allowed=describe(setting))
    return seconds


def parse_seconds(value: object, *, allowed: str, longest: float = WEEK, spoken: str = "a week") -> float:
    """The seconds of a written time such as `90`, `500 ms` or `4 h`, at most `longest`. Raises `BadValue`."""
    number, unit = _quantity(value, allowed)
    if unit not in _TIME_UNITS:
        raise BadValue(f"has an unknown unit {unit}", allowed=allowed)
    seconds = float(number * _TIME_UNITS[unit])
    if seconds > longest:
        raise BadValue(f"is longer than {spoken}", allowed=allowed)
    return seconds


def _fraction(setting: Setting, value: object) -> Level:
    share = _ratio(value)
    if share is None:
        raise BadValue("must be a number", allowed=describe(setting))
    if not 0 < share < 1:
        raise BadValue("must be above 0 and below 1", allowed=describe(setting))
    return float(share)


def _ratio(value: object) -> Fraction | None:
    word = text_of(value).strip()
    if isinstance(value, bool):
        return None
    percent = word.endswith("%")
    try:
        share = Fraction(word.removesuffix("%").strip())
    except (ValueError, ZeroDivisionError):
        return None
    return share / 100 if percent else share


_SWITCHES = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


def _switch(setting: Setting, value: object) -> Level:
    word = text_of(value).lower()
    if word not in _SWITCHES:
        raise BadValue("must be on or off", allowed=describe(setting))
    return _SWITCHES[word]


OPTIONS_OF_SETTINGS = {
    "-c": "",
    "--client": "",
    "-s": "",
    "--server": "",
    "-p": "",
    "--port": "",
    "-J": "",
    "--json": "",
    "--json-stream": "",
    "-D": "",
    "--daemon": "",
    "--logfile": "",
    "-o": "",
    "--output": "",
    "-y": "",
    "-t": "seconds",
    "--time": "seconds",
    "-i": "interval",
    "--interval": "interval",
    "-P": "streams",
    "--parallel": "streams",
    "-w": "window",
    "--window": "window",
    "-l": "buffer",
    "--length": "buffer",
    "--len": "buffer",
    "-u": "protocol",
    "--udp": "protocol",
    "-b": "rate",
    "--bandwidth": "rate",
    "--bitrate": "rate",
    "-R": "direction",
    "--reverse": "direction",
    "--bidir": "direction",
    "--full-duplex": "direction",
}
"""Options of the tools that labctl gives itself, with the setting that they come from; empty: labctl's own."""


def _arguments(setting: Setting, value: object) -> Level:
    text = text_of(value)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadValue(f"can't be split into arguments: {error}", allowed=describe(setting)) from error
    for word in words:
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        if option in OPTIONS_OF_SETTINGS:
            owner = OPTIONS_OF_SETTINGS[option]
            todo = f"write the setting {owner} instead" if owner else "labctl gives it itself"
            raise BadValue(f"the option {option} can't be passed through: {todo}")
    return shlex.join(words)


def _text(setting: Setting, value: object) -> Level:
    word = text_of(value).strip()
    if not word:
        raise BadValue("must not be empty", allowed=describe(setting))
    return word


def _quantity(value: object, allowed: str) -> tuple[Fraction, str]:
    if isinstance(value, bool):
        raise BadValue("must be a number", allowed=allowed)
    if isinstance(value, int):
        return Fraction(int(value)), ""
    if isinstance(value, float):
        if not isfinite(value):
            raise BadValue("must be a finite number", allowed=allowed)
        return Fraction(str(float(value))), ""
    match = _QUANTITY.fullmatch(text_of(value).strip())
    if match is None:
        raise BadValue("must be a number, with or without a unit", allowed=allowed)
    return Fraction(match["number"]), match["unit"]


def _whole(setting: Setting, amount: Fraction, unit: str) -> int:
    if amount.denominator != 1:
        raise BadValue(f"is not a whole number of {unit}", allowed=describe(setting))
    if amount < setting.minimum:
        raise BadValue("is too small", allowed=describe(setting))
    if amount >= 2**63:
        raise BadValue("is too large", allowed=describe(setting))
    return int(amount)


def _spoken(setting: Setting) -> str:
    return {"nic_model": "NIC model"}.get(setting.name, setting.name.replace("_", " "))


_PARSERS: dict[Kind, Callable[[Setting, object], Level]] = {
    Kind.CHOICE: _choice,
    Kind.COUNT: _count,
    Kind.SIZE: _size,
    Kind.RATE: _rate,
    Kind.SECONDS: _seconds,
    Kind.FRACTION: _fraction,
    Kind.SWITCH: _switch,
    Kind.ARGUMENTS: _arguments,
    Kind.TEXT: _text,
}

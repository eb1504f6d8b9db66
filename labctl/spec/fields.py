"""Field types that both files are made of. Each says what it takes to pydantic and, as JSON Schema, to editors."""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from labctl.model.settings import Concern, Kind, Level, Setting
from labctl.spec.values import WEEK, BadValue, parse_level, parse_seconds, text_of


class Strict(BaseModel):
    """A part of a file: no unknown keys, no silent conversion, not changed after it was read."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=False)


def complaint(message: str, *, allowed: str = "", nearest: str = "", secret: bool = False) -> PydanticCustomError:
    """A mistake with what is allowed, raised by validators. The value of a `secret` is not shown to anybody."""
    context = {"text": message, "allowed": allowed, "nearest": nearest, "secret": secret}
    return PydanticCustomError("bad_value", "{text}", context)


def _as_text(value: object) -> object:
    """Scalars that are not text in YAML are taken as they were written; other things are left to be refused."""
    if isinstance(value, (bool, int, float)):
        return text_of(value)
    return value


def as_list(value: object) -> object:
    """A single value as a list of one; None is left to be refused."""
    return value if isinstance(value, list) or value is None else [value]


Text = Annotated[str, BeforeValidator(_as_text), Field(min_length=1)]
"""Any scalar, as written: `1.10` is the text 1.10."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


def _name(value: str) -> str:
    if not re.fullmatch(_NAME, value):
        allowed = "letters, digits, dots, underscores and hyphens, a letter or digit first, 64 at most"
        raise complaint("has characters that this name can't have", allowed=allowed)
    return value


Name = Annotated[
    str,
    BeforeValidator(_as_text),
    AfterValidator(_name),
    WithJsonSchema({"type": ["string", "number"], "pattern": f"^{_NAME}$"}),
]
"""A name that may become part of file names and VM names."""


def _as_setting(kind: Kind) -> BeforeValidator:
    setting = Setting(name="", kind=kind, concern=Concern.OWN, default="", what="")

    def validate(value: object) -> Level:
        try:
            return parse_level(setting, value)
        except BadValue as bad:
            raise complaint(bad.message, allowed=bad.allowed) from bad

    return BeforeValidator(validate)


Duration = Annotated[float, _as_setting(Kind.SECONDS), WithJsonSchema({"type": ["number", "string"]})]
"""Seconds above 0, at most a week."""


def _as_seconds(*, allowed: str, least: float = 0.0, longest: float = WEEK, spoken: str = "a week") -> BeforeValidator:
    def validate(value: object) -> float:
        if value is None or isinstance(value, (list, dict)):
            raise complaint("must be one time", allowed=allowed)
        try:
            seconds = parse_seconds(value, allowed=allowed, longest=longest, spoken=spoken)
        except BadValue as bad:
            raise complaint(bad.message, allowed=bad.allowed) from bad
        if seconds < least:
            raise complaint("is too small", allowed=allowed)
        return seconds

    return BeforeValidator(validate)


_TIME_SCHEMA = WithJsonSchema({"type": ["number", "string"]})
Pause = Annotated[float, _as_seconds(allowed="a time such as 0, 10, 500 ms or 2 min"), _TIME_SCHEMA]
"""Seconds, 0 among them, at most a week."""
Budget = Annotated[
    float,
    _as_seconds(allowed="a time such as 90 min, 4 h or 200 h", least=1.0, longest=52 * WEEK, spoken="a year"),
    _TIME_SCHEMA,
]
"""Seconds of work, 1 to those of 52 weeks."""
Share = Annotated[float, _as_setting(Kind.FRACTION), WithJsonSchema({"type": ["number", "string"]})]
"""A number above 0 and below 1; `5%` is understood."""
Rate = Annotated[int, _as_setting(Kind.RATE), WithJsonSchema({"type": ["integer", "string"]})]
"""bit/s; `50M` is understood."""

Switch = Annotated[bool, _as_setting(Kind.SWITCH), WithJsonSchema({"enum": [True, False, "on", "off", "yes", "no"]})]
"""on or off."""


def _reads(read: Callable[[str], object], allowed: str) -> BeforeValidator:
    def validate(value: object) -> object:
        if not isinstance(value, str):
            raise complaint("must be text", allowed=allowed)
        try:
            return read(value)
        except ValueError as error:
            raise complaint("is no such address", allowed=allowed) from error

    return BeforeValidator(validate)


_TEXT_SCHEMA = WithJsonSchema({"type": "string"})
Address = Annotated[IPv4Address, _reads(IPv4Address, "an IPv4 address such as 192.0.2.7"), _TEXT_SCHEMA]
"""An IPv4 address."""


def _interface(text: str) -> IPv4Interface:
    if "/" not in text:
        raise ValueError(text)
    return IPv4Interface(text)


Interface = Annotated[IPv4Interface, _reads(_interface, "an address such as 192.0.2.7/24"), _TEXT_SCHEMA]
"""An IPv4 address with the prefix length of its network."""
Subnet = Annotated[IPv4Network, _reads(IPv4Network, "a network such as 192.0.2.0/24"), _TEXT_SCHEMA]
"""An IPv4 network."""

"""Field types that both files are made of. Each says what it takes to pydantic and, as JSON Schema, to editors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

from labctl.model.nic import OFFLOADS
from labctl.model.scenario import Scenario
from labctl.model.settings import SCENARIO, SETTINGS, Concern, Kind, Level, Setting, find_setting
from labctl.spec.values import DEFAULT, BadValue, describe, known_setting, nearest, parse_level, text_of


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


def _as_list(value: object) -> object:
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


def _each(entries: Iterable[tuple[tuple[str | int, ...], Callable[[], Any]]]) -> list[Any]:
    """The results of all readers; the mistakes of all that failed are raised as one error."""
    results: list[Any] = []
    mistakes: list[InitErrorDetails] = []
    for where, read in entries:
        try:
            results.append(read())
        except BadValue as bad:
            error = complaint(bad.message, allowed=bad.allowed, nearest=bad.nearest)
            mistakes.append(InitErrorDetails(type=error, loc=where, input=None))
        except ValidationError as nested:
            for detail in nested.errors():
                error = PydanticCustomError("bad_value", "{text}", detail.get("ctx", {}))
                mistakes.append(InitErrorDetails(type=error, loc=(*where, *detail["loc"]), input=None))
    if mistakes:
        raise ValidationError.from_exception_data("levels", mistakes)
    return results


def _levels(name: str, value: object) -> tuple[Level, ...]:
    """All levels of one name, from a list or a single value."""
    read = _scenario if name == SCENARIO else partial(parse_level, known_setting(name))
    if not isinstance(value, list):
        return (read(value),)
    if not value:
        raise BadValue("the list is empty")
    levels = tuple(_each(((index,), partial(read, level)) for index, level in enumerate(value)))
    for index, level in enumerate(levels):
        if level in levels[:index]:
            first = levels.index(level) + 1
            error = complaint(f"the same level twice: entries {first} and {index + 1} both mean {spoken(level)}")
            details = InitErrorDetails(type=error, loc=(index,), input=None)
            raise ValidationError.from_exception_data("levels", [details])
    return levels


def _scenario(value: object) -> Level:
    word = text_of(value)
    names = [scenario.value for scenario in Scenario]
    if word not in names:
        raise BadValue("is no scenario", allowed=", ".join(names), nearest=nearest(word, names))
    return word


def spoken(level: Level) -> str:
    """A level in words."""
    if isinstance(level, bool):
        return "on" if level else "off"
    return str(level)


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise complaint("must be a mapping of setting names to values")
    return value


def _name_problem(name: str, *, scenario: bool) -> BadValue | None:
    if name == SCENARIO:
        return None if scenario else BadValue("scenarios are listed under `scenarios`", nearest="scenarios")
    try:
        known_setting(name)
    except BadValue as bad:
        return bad
    return None


def _read_mapping(value: object, read: Callable[[str, object], object], *, scenario: bool) -> dict[str, Any]:
    """Every entry of a mapping of settings; wrong names are told at their keys."""
    entries = _mapping(value)
    mistakes: list[InitErrorDetails] = []
    good: dict[str, object] = {}
    for name, content in entries.items():
        bad = _name_problem(name, scenario=scenario)
        if bad is None:
            good[name] = content
        else:
            context = {"text": bad.message, "allowed": bad.allowed, "nearest": bad.nearest, "at_key": True}
            error = PydanticCustomError("bad_value", "{text}", context)
            mistakes.append(InitErrorDetails(type=error, loc=(name,), input=None))
    try:
        results = _each(((name,), partial(read, name, good[name])) for name in good)
    except ValidationError as error:
        for detail in error.errors():
            again = PydanticCustomError("bad_value", "{text}", detail.get("ctx", {}))
            mistakes.append(InitErrorDetails(type=again, loc=detail["loc"], input=None))
        results = []
    if mistakes:
        raise ValidationError.from_exception_data("settings", mistakes)
    return dict(zip(good, results, strict=True))


def _factors(value: object) -> dict[str, tuple[Level, ...]]:
    return _read_mapping(value, _levels, scenario=False)


def _selection(value: object) -> dict[str, tuple[Level, ...]]:
    if value == {}:
        raise complaint("selects nothing: name a scenario or a setting")
    return _read_mapping(value, _levels, scenario=True)


def _settings(value: object) -> dict[str, Level]:
    return _read_mapping(value, lambda name, level: parse_level(known_setting(name), level), scenario=False)


def _level_schema(setting: Setting) -> dict[str, Any]:
    kinds: dict[Kind, dict[str, Any]] = {
        Kind.CHOICE: {"enum": list(setting.choices)},
        Kind.COUNT: {"type": "integer", "minimum": setting.minimum},
        Kind.SIZE: {"type": ["integer", "string"]},
        Kind.RATE: {"type": ["integer", "string"]},
        Kind.SECONDS: {"type": ["number", "string"]},
        Kind.FRACTION: {"type": ["number", "string"]},
        Kind.SWITCH: {"enum": [True, False, "on", "off", "yes", "no"]},
        Kind.ARGUMENTS: {"type": "string"},
        Kind.TEXT: {"type": ["string", "number", "boolean"]},
    }
    schema = dict(kinds[setting.kind])
    if setting.default is None and setting.kind is not Kind.TEXT:
        schema = {"anyOf": [schema, {"const": DEFAULT}]}
    default = "" if setting.default is None else f" Default: {spoken(setting.default)}."
    unit = f", {setting.unit}" if setting.unit else ""
    return schema | {"description": f"{setting.what}{unit}: {describe(setting)}.{default}"}


def _settings_schema(*, several: bool, scenario: bool) -> WithJsonSchema:
    """The schema of a mapping of settings; every name and every choice is visible."""

    def entry(schema: dict[str, Any]) -> dict[str, Any]:
        if not several:
            return schema
        many = {"type": "array", "minItems": 1, "items": schema}
        return {"anyOf": [schema, many], "description": schema.get("description", "")}

    names = {name: entry(_level_schema(setting)) for name, setting in SETTINGS.items()}
    if scenario:
        names = {SCENARIO: entry({"enum": [each.value for each in Scenario]})} | names
    families = {name: find_setting(f"{name}.x") for name in ("offload", "host", "own")}
    switch = _level_schema(families["offload"]) if families["offload"] else {}
    names |= {f"offload.{name}": entry(switch | {"description": f"offload {name}"}) for name in OFFLOADS}
    patterns = {rf"^{name}\..+$": entry(_level_schema(setting)) for name, setting in families.items() if setting}
    return WithJsonSchema(
        {"type": "object", "properties": names, "patternProperties": patterns, "additionalProperties": False}
    )


Factors = Annotated[
    dict[str, tuple[Level, ...]], BeforeValidator(_factors), _settings_schema(several=True, scenario=False)
]
"""Setting names to levels, one or a list."""
SelectionField = Annotated[
    dict[str, tuple[Level, ...]], BeforeValidator(_selection), _settings_schema(several=True, scenario=True)
]
"""Setting names, and `scenario`, to the levels that are selected."""
Settings = Annotated[dict[str, Level], BeforeValidator(_settings), _settings_schema(several=False, scenario=False)]
"""Setting names to one value each."""

ScenarioList = Annotated[list[Annotated[Scenario, Field(strict=False)]], BeforeValidator(_as_list)]
"""One scenario or a list of them."""

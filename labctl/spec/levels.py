"""Levels in campaign files: mappings of setting names to one value or several, each told at its place when it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

from labctl.model.offloads import HOST_OFFLOAD, LINUX_OFFLOADS, OFFLOAD, WINDOWS_OFFLOADS
from labctl.model.scenario import Scenario
from labctl.model.settings import SCENARIO, SETTINGS, Kind, Level, Setting, find_setting
from labctl.spec.fields import as_list, complaint
from labctl.spec.values import DEFAULT, BadValue, describe, known_setting, nearest, parse_level, text_of


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
    names = [scenario.value for scenario in Scenario]
    if isinstance(value, (list, dict)):
        raise BadValue("must be one scenario, not a list or a mapping", allowed=", ".join(names))
    word = text_of(value)
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


def _cell(value: object) -> dict[str, Level]:
    if value == {}:
        raise complaint("names no cell: name a scenario, and a level of every factor")
    return _read_mapping(value, _single, scenario=True)


def _single(name: str, value: object) -> Level:
    return _scenario(value) if name == SCENARIO else parse_level(known_setting(name), value)


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
    families = {name: find_setting(f"{name}.x") for name in ("offload", "host_offload", "host", "own")}
    for name in (
        f"{family}{name}" for family in (OFFLOAD, HOST_OFFLOAD) for name in (*LINUX_OFFLOADS, *WINDOWS_OFFLOADS)
    ):
        setting = find_setting(name)
        assert setting is not None
        names[name] = entry(_level_schema(setting))
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
CellField = Annotated[dict[str, Level], BeforeValidator(_cell), _settings_schema(several=False, scenario=True)]
"""`scenario`, and setting names, to one level each."""

ScenarioList = Annotated[list[Annotated[Scenario, Field(strict=False)]], BeforeValidator(as_list)]
"""One scenario or a list of them."""

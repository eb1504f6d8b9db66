"""What is well-formed in a campaign file, key by key, but can't be meant together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from labctl.errors import Problem
from labctl.model.scenario import Scenario
from labctl.model.settings import SCENARIO, Level, find_setting
from labctl.spec.campaign_file import CampaignFile, FixedRepeats, OverrideField
from labctl.spec.levels import spoken
from labctl.spec.source import Document, KeyPath
from labctl.spec.values import nearest
from labctl.spec.windows import window_problems


def contradictions(spec: CampaignFile, document: Document) -> Iterator[Problem]:
    """Every mistake that only shows when the keys of the file are seen together."""
    possible = _possible_levels(spec)
    yield from _nothing_to_do(spec, document)
    yield from _scenarios_twice(spec, document)
    yield from _varied_and_fixed(spec, document)
    for index, selection in enumerate(spec.exclude):
        yield from _never_matches(selection, _main_levels(spec), ("exclude", index), document)
    for index, override in enumerate(spec.overrides):
        yield from _never_matches(override.when, possible, ("overrides", index, "when"), document)
        yield from _mislabels(override, possible, ("overrides", index, "set"), document)
    yield from _baselines(spec, possible, document)
    yield from _placeholders(spec, possible, document)
    yield from _repeats(spec, document)
    yield from _anchor(spec, possible, document)
    yield from _expectations(spec, possible, document)
    yield from window_problems(spec, document)


Levels = Mapping[str, tuple[Level, ...]]


def _main_levels(spec: CampaignFile) -> Levels:
    """The levels of the main matrix, by name."""
    return {SCENARIO: tuple(str(scenario) for scenario in spec.scenarios)} | dict(spec.factors)


def _possible_levels(spec: CampaignFile) -> Levels:
    """The levels that any cell may have, by name: of the main matrix and of what is included."""
    possible = {name: list(levels) for name, levels in _main_levels(spec).items()}
    for selection in spec.include:
        for name, levels in selection.items():
            known = possible.setdefault(name, [])
            known += [level for level in levels if level not in known]
    return {name: tuple(levels) for name, levels in possible.items()}


def _expectations(spec: CampaignFile, possible: Levels, document: Document) -> Iterator[Problem]:
    for index, expected in enumerate(spec.expect):
        yield from _never_matches(expected.where, possible, ("expect", index, "where"), document)
        if not expected.excellent > expected.good > expected.poor:
            message = "the shares must fall from excellent to good to poor"
            yield document.problem(("expect", index), message, show_value=False, allowed="such as 90%, 70% and 40%")


def _nothing_to_do(spec: CampaignFile, document: Document) -> Iterator[Problem]:
    names = ", ".join(Scenario)
    if not spec.scenarios and not spec.include:
        at_key = "scenarios" in document.root.entries
        path: KeyPath = ("scenarios",) if at_key else ()
        yield document.problem(path, "no scenario is named, so there is nothing to run", at_key=at_key, allowed=names)
    if not spec.scenarios and spec.factors:
        message = "factors are varied in the scenarios of the main matrix, and no scenario is named"
        yield document.problem(("factors",), message, at_key=True)
    for index, selection in enumerate(spec.include):
        if SCENARIO not in selection and not spec.scenarios:
            yield document.problem(("include", index), "no scenario is named", show_value=False, allowed=names)


def _scenarios_twice(spec: CampaignFile, document: Document) -> Iterator[Problem]:
    for index, scenario in enumerate(spec.scenarios):
        if scenario in spec.scenarios[:index]:
            yield document.problem(("scenarios", index), "the same scenario twice")


def _varied_and_fixed(spec: CampaignFile, document: Document) -> Iterator[Problem]:
    for name in spec.settings:
        if name in spec.factors:
            message = f"is fixed here and varied under factors at line {document.key_place(('factors', name)).line}"
            yield document.problem(("settings", name), message, at_key=True)


def _never_matches(selection: Levels, possible: Levels, path: KeyPath, document: Document) -> Iterator[Problem]:
    """Names that no cell has, and levels that no cell has: the selection would silently select less."""
    for name, levels in selection.items():
        if name not in possible:
            message = "is not varied, so nothing can be selected by it"
            near = nearest(name, possible)
            yield document.problem((*path, name), message, at_key=True, allowed=", ".join(possible), nearest=near)
            continue
        words = [spoken(level) for level in possible[name]]
        for index, level in enumerate(levels):
            if level not in possible[name]:
                where = (*path, name, index)
                near = nearest(spoken(level), words)
                message = "is no level of this campaign, so nothing is selected by it"
                yield document.problem(where, message, allowed=_listed(words), nearest=near)


def _mislabels(override: OverrideField, possible: Levels, path: KeyPath, document: Document) -> Iterator[Problem]:
    for name in override.set_:
        if name in possible:
            message = "is varied by the campaign; setting it here would make the labels of its cells wrong"
            yield document.problem((*path, name), message, at_key=True)


def _baselines(spec: CampaignFile, possible: Levels, document: Document) -> Iterator[Problem]:
    for name, level in spec.baseline.items():
        if name not in possible:
            message = "is not varied, so nothing can be compared with it"
            near = nearest(name, possible)
            yield document.problem(
                ("baseline", name), message, at_key=True, allowed=", ".join(spec.factors), nearest=near
            )
        elif level not in possible[name]:
            words = [spoken(each) for each in possible[name]]
            near = nearest(spoken(level), words)
            message = "is no level of this campaign"
            yield document.problem(("baseline", name), message, allowed=_listed(words), nearest=near)


def _listed(words: list[str]) -> str:
    """Words for a message; of many the first, and how many there are."""
    shown = ", ".join(words[:20])
    return shown if len(words) <= 20 else f"{shown}, ... ({len(words)} in all)"


PLACEHOLDER = re.compile(r"\{(own\.[^{}]+)\}")
"""What stands for the level of a setting of one's own in a `prepare` command."""


def _placeholders(spec: CampaignFile, possible: Levels, document: Document) -> Iterator[Problem]:
    own = [name for name in (*possible, *spec.settings) if name.startswith("own.")]
    for row, command in enumerate(spec.prepare):
        for column, argument in enumerate(command):
            for name in PLACEHOLDER.findall(argument):
                if name not in own:
                    message = f"there is no {name} among factors and settings"
                    where = ("prepare", row, column)
                    yield document.problem(where, message, allowed=", ".join(own), nearest=nearest(name, own))
                else:
                    yield from _left_open(name, spec, document)


def _left_open(name: str, spec: CampaignFile, document: Document) -> Iterator[Problem]:
    """Included cells with VMs in which nothing says what a placeholder stands for."""
    if name in spec.settings:
        return
    if name not in spec.factors and any(scenario.vms for scenario in spec.scenarios):
        yield document.problem(("scenarios",), f"`prepare` needs {name}, which these cells don't have", at_key=True)
    for index, selection in enumerate(spec.include):
        scenarios = [Scenario(str(word)) for word in selection.get(SCENARIO, spec.scenarios)]
        if name not in selection and any(scenario.vms for scenario in scenarios):
            message = f"`prepare` needs {name}, which these cells don't have; name it here"
            yield document.problem(("include", index), message, show_value=False)


def _repeats(spec: CampaignFile, document: Document) -> Iterator[Problem]:
    if not isinstance(spec.repeats, FixedRepeats) and spec.repeats.max <= spec.repeats.min:
        allowed = f"more than {spec.repeats.min}, or `repeats: {spec.repeats.min}` for as many of every cell"
        yield document.problem(("repeats", "max"), "is not above `min`", allowed=allowed)


def _anchor(spec: CampaignFile, possible: Levels, document: Document) -> Iterator[Problem]:
    """An anchor that is no cell of the matrix, whatever the lab."""
    if spec.anchor is None:
        return
    path: KeyPath = ("anchor", "cell")
    cell = spec.anchor.cell
    wrong = list(_never_matches({name: (level,) for name, level in cell.items()}, possible, path, document))
    if wrong or SCENARIO not in cell:
        missing = [] if SCENARIO in cell else [document.problem(path, "no scenario is named", at_key=True)]
        yield from [*wrong, *missing]
        return
    scenario = Scenario(str(cell[SCENARIO]))
    products = [factors for each, factors in _products(spec) if each is scenario]
    if not any(_is_combination(cell, factors) for factors in products):
        wanted = " or ".join(dict.fromkeys(", ".join(factors) or "nothing else" for factors in products))
        allowed = f"the scenario {scenario}, with a level of each of: {wanted}"
        yield document.problem(path, "is no cell of the matrix", at_key=True, allowed=allowed)


def _products(spec: CampaignFile) -> Iterator[tuple[Scenario, Levels]]:
    """What is varied in each scenario of the main matrix, and of what is included."""
    rows: list[tuple[Iterable[Level | Scenario], Levels]] = [(spec.scenarios, spec.factors)]
    rows += [(selection.get(SCENARIO, spec.scenarios), selection) for selection in spec.include]
    for scenarios, levels in rows:
        for scenario in (Scenario(str(word)) for word in scenarios):
            yield scenario, {name: levels[name] for name in levels if name != SCENARIO and _concerns(name, scenario)}


def _concerns(name: str, scenario: Scenario) -> bool:
    setting = find_setting(name)
    return setting is not None and setting.concern.applies_to(scenario)


def _is_combination(cell: Mapping[str, Level], factors: Levels) -> bool:
    return set(cell) == {SCENARIO, *factors} and all(cell[name] in levels for name, levels in factors.items())

"""Campaign files: YAML to a checked `Campaign`, with every mistake told at its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from labctl.errors import Problem
from labctl.model.campaign import Campaign, Order, Override, Selection, Timeouts
from labctl.model.scenario import Scenario
from labctl.model.settings import SCENARIO, Level
from labctl.spec.fields import Duration, Name, Strict, Switch, Text
from labctl.spec.levels import Factors, ScenarioList, SelectionField, Settings, spoken
from labctl.spec.problems import problems_of
from labctl.spec.source import Document, KeyPath, parse_document, read_text, refusal
from labctl.spec.values import nearest

WHAT = "campaign"


class OverrideField(Strict):
    """Settings that hold only in a part of the matrix."""

    when: SelectionField
    set_: Settings = Field(alias="set")


class TimeoutsField(Strict):
    """Deadlines in seconds."""

    boot: Duration = Timeouts.boot
    command: Duration = Timeouts.command
    transfer_grace: Duration = Timeouts.transfer_grace
    migration: Duration = Timeouts.migration


class LimitsField(Strict):
    """Caps of the campaign."""

    max_runs: int = Field(default=10_000, ge=1)


class CampaignFile(Strict):
    """A campaign: which scenarios, which settings are varied, how often, in which order."""

    campaign: Name = Field(description="name of the campaign")
    question: Text = Field(default="", description="what the campaign is to answer")
    scenarios: ScenarioList = Field(default=[], description="scenarios of the main matrix")
    factors: Factors = Field(default={}, description="settings that are varied, each with its levels")
    settings: Settings = Field(default={}, description="settings that are the same in all runs")
    overrides: list[OverrideField] = Field(default=[], description="settings that differ in a part of the matrix")
    include: list[SelectionField] = Field(default=[], description="further products of levels, beside the main matrix")
    exclude: list[SelectionField] = Field(default=[], description="parts of the main matrix that are left out")
    repeats: int = Field(default=3, ge=1, le=100_000, description="runs of every cell")
    warmups: int = Field(default=1, ge=0, le=100, description="transfers of a run that are kept but not counted")
    transfers: int = Field(default=1, ge=1, le=1000, description="counted transfers of a run (sub-samples)")
    reuse: Switch = Field(default=False, description="runs may share VMs; the interval then covers less")
    order: Annotated[Order, Field(strict=False)] = Field(default=Order.BLOCKS, description="order of the runs")
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of the order")
    timeouts: TimeoutsField = Field(default=TimeoutsField(), description="deadlines")
    retries: int = Field(default=2, ge=0, le=100, description="further attempts of a run after a lab-error")
    limits: LimitsField = Field(default=LimitsField(), description="caps")
    baseline: Settings = Field(default={}, description="levels that others are compared with")
    prepare: list[Annotated[list[Text], Field(min_length=1)]] = Field(
        default=[], description="commands run in every VM first; {own.NAME} stands for a level"
    )
    labels: dict[str, Text] = Field(default={}, description="words of your own, kept with the campaign")
    published: Text = Field(default="", description="id of the published experiment that is repeated")


def load_campaign(path: Path) -> Campaign:
    """The campaign of a file. Raises `SpecError` with all mistakes."""
    return campaign_of(load_campaign_document(path))


def load_campaign_document(path: Path) -> Document:
    """The campaign file as a tree with places. Raises `SpecError` when it isn't YAML."""
    text = read_text(path, what=WHAT)
    return parse_document(text, file=str(path), what=WHAT, base=path.parent)


def parse_campaign(text: str, *, file: str = "campaign") -> Campaign:
    """The campaign of a text. `file` is named in messages. Raises `SpecError` with all mistakes."""
    return campaign_of(parse_document(text, file=file, what=WHAT, base=Path()))


def campaign_of(document: Document) -> Campaign:
    """The campaign of a document. Raises `SpecError` with all mistakes."""
    try:
        spec = CampaignFile.model_validate(document.plain())
    except ValidationError as error:
        raise refusal(document.file, WHAT, problems_of(error, document, CampaignFile)) from error
    problems = list(_contradictions(spec, document))
    if problems:
        raise refusal(document.file, WHAT, problems)
    return _campaign(spec)


def _campaign(spec: CampaignFile) -> Campaign:
    return Campaign(
        name=spec.campaign,
        question=spec.question,
        scenarios=tuple(spec.scenarios),
        factors=spec.factors,
        settings=spec.settings,
        include=tuple(Selection(levels=levels) for levels in spec.include),
        exclude=tuple(Selection(levels=levels) for levels in spec.exclude),
        overrides=tuple(
            Override(when=Selection(levels=override.when), settings=override.set_) for override in spec.overrides
        ),
        repeats=spec.repeats,
        warmups=spec.warmups,
        transfers=spec.transfers,
        reuse=spec.reuse,
        order=spec.order,
        seed=spec.seed,
        timeouts=Timeouts(**spec.timeouts.model_dump()),
        lab_error_retries=spec.retries,
        max_runs=spec.limits.max_runs,
        baseline={name: levels[0] for name, levels in spec.factors.items()} | spec.baseline,
        prepare=tuple(tuple(command) for command in spec.prepare),
        labels=spec.labels,
        published=spec.published,
    )


def _contradictions(spec: CampaignFile, document: Document) -> Iterator[Problem]:
    """What is well-formed in itself but can't be meant together with the rest of the file."""
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

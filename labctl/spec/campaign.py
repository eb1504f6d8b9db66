"""Campaign files: YAML to a checked `Campaign`, with every mistake told at its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from labctl.errors import SpecError
from labctl.model.campaign import Adaptive, Anchor, Campaign, Expectation, Override, QuietWait, Selection, Timeouts
from labctl.model.window import Windows, WindowTime
from labctl.spec.campaign_contradictions import contradictions
from labctl.spec.campaign_file import CampaignFile, FixedRepeats, RepeatsField
from labctl.spec.problems import problems_of
from labctl.spec.references import placed
from labctl.spec.source import Document, parse_document, read_text, refusal
from labctl.spec.values import BadValue
from labctl.spec.window_fields import parse_hours, parse_zone
from labctl.spec.windows import windows_of

WHAT = "campaign"

T = TypeVar("T")


def load_campaign(path: Path) -> Campaign:
    """The campaign of a file. Raises `SpecError` with all mistakes."""
    return campaign_of(load_campaign_document(path))


def load_campaign_document(path: Path) -> Document:
    """The campaign file as a tree with places. Raises `SpecError` when it isn't YAML."""
    text = read_text(path, what=WHAT)
    return parse_document(text, file=str(path), what=WHAT, base=path.parent.absolute())


def parse_campaign(text: str, *, file: str = "campaign") -> Campaign:
    """The campaign of a text. `file` is named in messages. Raises `SpecError` with all mistakes."""
    return campaign_of(parse_document(text, file=file, what=WHAT, base=Path.cwd()))


def campaign_of(document: Document) -> Campaign:
    """The campaign of a document. Raises `SpecError` with all mistakes."""
    try:
        spec = CampaignFile.model_validate(document.plain())
    except ValidationError as error:
        raise refusal(document.file, WHAT, problems_of(error, document, CampaignFile)) from error
    problems = list(contradictions(spec, document))
    if problems:
        raise refusal(document.file, WHAT, problems)
    return _campaign(spec, document.base)


def _campaign(spec: CampaignFile, base: Path) -> Campaign:
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
        repeats=spec.repeats.min,
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
        priority=spec.priority,
        windows=windows_of(spec),
        adaptive=_adaptive(spec.repeats),
        anchor=Anchor(levels=spec.anchor.cell, every=spec.anchor.every) if spec.anchor is not None else None,
        quiet=QuietWait(wait=spec.quiet.wait, then=spec.quiet.then),
        back_off=spec.back_off,
        expectations=tuple(
            Expectation(
                of=None if one.of == "speed" else int(one.of),
                excellent=one.excellent,
                good=one.good,
                poor=one.poor,
                levels=one.where,
            )
            for one in spec.expect
        ),
        notify=tuple(placed(address, base) for address in spec.notify),
    )


def _adaptive(repeats: RepeatsField) -> Adaptive | None:
    if isinstance(repeats, FixedRepeats):
        return None
    return Adaptive(maximum=repeats.max, within=repeats.within, budget=repeats.budget)


def with_window(campaign: Campaign, window: str | None, zone: str | None) -> Campaign:
    """The campaign with the window of an option in place of its own, such as `22:00-06:00` in Europe/Dublin, on every day.

    Without a zone it is in that of the campaign; without a window the campaign's own are in the zone. What the campaign
    says of `blackout` and `until` still holds. Raises `SpecError` for what is no window or zone.
    """
    if window is None and zone is None:
        return campaign
    times = (_option("--window", window, parse_hours),) if window is not None else _own_times(campaign, zone)
    where = _option("--zone", zone, parse_zone) if zone is not None else _own_zone(campaign, window)
    before = campaign.windows or Windows(zone=where, times=times)
    return replace(campaign, windows=replace(before, zone=where, times=times))


def _own_times(campaign: Campaign, zone: str | None) -> tuple[WindowTime, ...]:
    if campaign.windows is None:
        raise SpecError(
            f"--zone {zone} says nothing without a window: the campaign {campaign.name} has none.",
            todo="Give --window too, such as --window 22:00-06:00.",
        )
    return campaign.windows.times


def _own_zone(campaign: Campaign, window: str | None) -> str:
    if campaign.windows is None:
        raise SpecError(
            f"--window {window} needs a time zone.",
            why=f"The campaign {campaign.name} has no windows of its own, and so no zone.",
            todo="Give --zone too, such as --zone Europe/Dublin.",
        )
    return campaign.windows.zone


def _option(name: str, text: str, parse: Callable[[object], T]) -> T:
    try:
        return parse(text)
    except BadValue as bad:
        nearest = f" Did you mean {bad.nearest}?" if bad.nearest else ""
        raise SpecError(f"{name} {text}: {bad.message}.", todo=f"Give {bad.allowed}.{nearest}") from bad

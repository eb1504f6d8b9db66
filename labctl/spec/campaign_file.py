"""What a campaign file may say, part by part: keys, types and defaults. `labctl.spec.campaign` makes a campaign of it."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from labctl.model.campaign import Campaign, Expectation, NotQuiet, Order, QuietWait, Timeouts
from labctl.spec.fields import Budget, Duration, Name, Pause, Rate, Share, Strict, Switch, Text, as_list, complaint
from labctl.spec.levels import CellField, Factors, ScenarioList, SelectionField, Settings
from labctl.spec.references import NewsAddress
from labctl.spec.window_fields import Date, Hours, WindowEntry, Zone

MOST_REPEATS = 100_000
"""Runs of a cell."""


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


class RepeatsField(Strict):
    """Repeats until the figure is known well enough."""

    min: int = Field(ge=2, le=MOST_REPEATS, description="runs of every cell in any case")
    max: int = Field(ge=2, le=MOST_REPEATS, description="runs of a cell at the most")
    within: Share = Field(description="half the width of the 95 % interval of the mean, as a share of it, such as 5%")
    budget: Budget | None = Field(default=None, description="seconds of work for all runs beyond min, such as 4h")


class FixedRepeats(RepeatsField):
    """As many repeats for every cell."""


def _repeats(value: object) -> object:
    if isinstance(value, dict):
        return value
    allowed = f"1 to {MOST_REPEATS}, or {{min: 3, max: 10, within: 5%}}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise complaint("must be a whole number without quotes, or a mapping", allowed=allowed)
    if not 1 <= value <= MOST_REPEATS:
        raise complaint("is too small" if value < 1 else "is too large", allowed=allowed)
    return FixedRepeats.model_construct(min=int(value), max=int(value), within=0.0, budget=None)


Repeats = Annotated[
    RepeatsField,
    BeforeValidator(_repeats),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_REPEATS}, RepeatsField.model_json_schema()]}
    ),
]


class AnchorField(Strict):
    """A cell that is run again after every so many runs."""

    cell: CellField = Field(description="scenario, and a level of every factor, of the cell")
    every: int = Field(ge=1, le=1_000_000, description="so many other runs lie between two of the anchor")


class QuietField(Strict):
    """What happens before a transfer when hosts are busy with other things."""

    wait: Pause = Field(default=QuietWait.wait, description="how long to wait for them to get quiet")
    then: Annotated[NotQuiet, Field(strict=False)] = Field(
        default=QuietWait.then, description="run, and mark the figures as noisy; or skip, and try again later"
    )


class ExpectField(Strict):
    """What cells are to deliver, so that each gets a verdict."""

    of: Rate | Literal["speed"] = Field(description="what counts as all of it: a rate, or `speed` of the lab's network")
    excellent: Share = Field(default=Expectation.excellent, description="from this share on")
    good: Share = Field(default=Expectation.good, description="from this share on")
    poor: Share = Field(default=Expectation.poor, description="from this share on; awful below")
    where: SelectionField = Field(default={}, description="the cells that it is about; default: all")


def _no_date_twice(dates: list[date]) -> list[date]:
    for each in dates:
        if dates.count(each) > 1:
            raise complaint(f"names {each} twice")
    return dates


Dates = Annotated[list[Date], BeforeValidator(as_list), AfterValidator(_no_date_twice)]


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
    repeats: Repeats = Field(default=3, validate_default=True, description="runs of every cell, or min, max and within")
    warmups: int = Field(default=1, ge=0, le=100, description="transfers of a run that are kept but not counted")
    transfers: int = Field(default=1, ge=1, le=1000, description="counted transfers of a run (sub-samples)")
    reuse: Switch = Field(default=False, description="runs may share VMs; the interval then covers less")
    order: Annotated[Order, Field(strict=False)] = Field(default=Order.BLOCKS, description="order of the runs")
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of the order")
    priority: int = Field(default=0, ge=-100, le=100, description="campaigns with a higher one get hosts first")
    window: Hours | None = Field(default=None, description="when runs may run, on every day; needs `zone`")
    windows: Annotated[list[WindowEntry], BeforeValidator(as_list)] = Field(
        default=[], description="when runs may run, by days of the week or on every day; needs `zone`"
    )
    zone: Zone | None = Field(default=None, description="time zone of the windows, such as Europe/Dublin")
    blackout: Dates = Field(default=[], description="dates on which nothing runs, from midnight to midnight")
    until: Date | None = Field(default=None, description="the last date on which anything runs")
    anchor: AnchorField | None = Field(default=None, description="a cell that is run again and again, to show drift")
    quiet: QuietField = Field(default=QuietField(), description="waiting for hosts within the quiet limits of the lab")
    back_off: Pause = Field(
        default=Campaign.back_off, description="pause before another attempt after a lab-error; doubled with every one"
    )
    notify: Annotated[list[NewsAddress], BeforeValidator(as_list)] = Field(
        default=[], description="where the URLs are that news are sent to"
    )
    timeouts: TimeoutsField = Field(default=TimeoutsField(), description="deadlines")
    retries: int = Field(default=2, ge=0, le=100, description="further attempts of a run after a lab-error")
    limits: LimitsField = Field(default=LimitsField(), description="caps")
    baseline: Settings = Field(default={}, description="levels that others are compared with")
    prepare: list[Annotated[list[Text], Field(min_length=1)]] = Field(
        default=[], description="commands run in every VM first; {own.NAME} stands for a level"
    )
    labels: dict[str, Text] = Field(default={}, description="words of your own, kept with the campaign")
    expect: Annotated[list[ExpectField], BeforeValidator(as_list)] = Field(
        default=[], description="what cells are to deliver; the first entry that selects a cell is its own"
    )
    published: Text = Field(default="", description="id of the published experiment that is repeated")

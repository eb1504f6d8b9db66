"""`labctl watch`: the live progress of a campaign, from the store alone, in any number of terminals."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import click

from labctl.campaign.progress import Meter, Progress
from labctl.campaign.workers import serving, unserved
from labctl.cli.live import LiveView
from labctl.cli.main import EXIT_INTERRUPTED, Context
from labctl.cli.options import id_argument, json_option, newest, opened_store
from labctl.cli.standing import exit_code, progress_facts
from labctl.cli.words import counts
from labctl.model.lab import Lab
from labctl.model.outcome import CampaignState
from labctl.report.console import terminal_console
from labctl.store import Store

_STEP_SECONDS = 0.2
_LOOK_SECONDS = 1.0
_WORKERS_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Look:
    """A campaign at one moment, and whether anybody works for it."""

    now: Progress
    unserved: str
    workers: tuple[str, ...]
    """What each of those does that serve it."""

    @property
    def over(self) -> bool:
        """Whether nothing will change any more: it has ended, and so has what was in progress."""
        return self.now.state.ended and not self.now.active


@click.command()
@id_argument
@json_option
@click.pass_obj
def watch(context: Context, campaign_id: int | None, as_json: bool) -> None:
    """Show the campaign with ID, or the newest one, until it has ended. Ctrl-C ends the watching, not the campaign.

    With --json, a line of JSON whenever something has changed. Ends with 0 when all runs of it are done and none failed,
    else with 1.
    """
    with opened_store(context) as store:
        found = newest(store, campaign_id)
        try:
            last = _print_lines(store, found) if as_json else _show(store, found)
        except KeyboardInterrupt:
            click.echo(f"\nCampaign {found} is left alone; `labctl watch {found}` shows it again.", err=True)
            sys.exit(EXIT_INTERRUPTED)
    sys.exit(exit_code(last))


def _looks(store: Store, campaign_id: int) -> Iterator[Look]:
    """The campaign, again and again until it is over. Asking whether anything has changed costs next to nothing; all the
    rest is done only when something has, or once a second."""
    meter, seen, looked, asked = Meter(store, campaign_id), -1, 0.0, 0.0
    idle = ""
    workers: tuple[str, ...] = ()
    while True:
        version, at = store.version(), time.monotonic()
        if version != seen or at - looked >= _LOOK_SECONDS:
            seen, looked, now = version, at, meter.look()
            if at - asked >= _WORKERS_SECONDS:
                asked, idle, workers = at, unserved(store, now.head.lab, campaign_id), _workers(store, now.head.lab)
            going = now.state is CampaignState.ACTIVE or bool(now.active)
            look = Look(now=now, unserved=idle if going else "", workers=workers)
            yield look
            if look.over:
                return
        time.sleep(_STEP_SECONDS)


def _workers(store: Store, lab: Lab) -> tuple[str, ...]:
    return tuple(f"{line.record.name}: {line.record.doing}" for line in serving(store, lab))


def _show(store: Store, campaign_id: int) -> Progress:
    """For people. Returns how the campaign ended."""
    console, head = terminal_console(), store.head(campaign_id)
    console.print(
        f"Campaign {campaign_id} ({head.name}) in lab {head.lab.name}. Ctrl-C ends the watching only.",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    with LiveView(console, head) as view:
        for look in _looks(store, campaign_id):
            last = look.now
            view.show(last, unserved=look.unserved, workers=look.workers)
    console.print(
        f"Campaign {campaign_id} is {last.state}: {counts(last.counts)}. {last.head.why}".rstrip()
        + f"\nIts report: `labctl report {campaign_id}`.",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    return last


def _print_lines(store: Store, campaign_id: int) -> Progress:
    """For programs. Returns how the campaign ended."""
    said: object = None
    for look in _looks(store, campaign_id):
        last = look.now
        phases = [(item.id, item.state, item.phase) for item in last.active]
        saying = (last.head, last.counts, phases, last.bad_hosts, last.beside, look.unserved)
        if saying != said:
            said = saying
            click.echo(json.dumps(progress_facts(last) | {"unserved": look.unserved}))
    return last

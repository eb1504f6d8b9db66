"""`labctl worker`: serve campaigns until told to stop."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType

import click

from labctl.campaign.queues import queue_of
from labctl.campaign.service import Asked, serve
from labctl.campaign.serving import Serving
from labctl.cli.main import Context
from labctl.errors import SpecError
from labctl.spec.lab import load_lab
from labctl.spec.values import BadValue, parse_seconds
from labctl.store import Store, open_store
from labctl.store.database import sqlite_url

_YEARS = 10 * 365 * 86_400.0


@click.command()
@click.option(
    "--lab", "lab_files", multiple=True, type=click.Path(path_type=Path), help="Serve only this lab (file); repeatable."
)
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Serve only this queue, SITE.HYPERVISOR; repeatable."
)
@click.option(
    "--slots", type=click.IntRange(min=1), help="Attempts at once; without it, as many as the labs have machines."
)
@click.option(
    "--no-schedule", is_flag=True, help="Only carry out what other services start; needs --broker and --store."
)
@click.option(
    "--grace", metavar="TIME", default="0s", show_default=True, help="At the end attempts may finish for so long."
)
@click.option("--keep-raw", metavar="TIME", help="Forget raw outputs that are older, such as 90d.")
@click.pass_obj
def worker(
    context: Context,
    lab_files: tuple[Path, ...],
    queues: tuple[str, ...],
    slots: int | None,
    no_schedule: bool,
    grace: str,
    keep_raw: str | None,
) -> None:
    """Start and carry out the runs of all campaigns, until told to stop.

    Ctrl-C or SIGTERM: nothing more is started, attempts in progress end at their next step (see --grace), their runs go back
    and their VMs are removed. A second time: without waiting for --grace. Without --broker all of it is on this machine;
    several machines share a --broker (Redis) and a --store (PostgreSQL).
    """
    chosen = (*queues, *(queue_of(load_lab(path)) for path in lab_files))
    _refuse_lonely(context, chosen, no_schedule=no_schedule)
    serving = Serving(
        state=context.state,
        store_url=context.store or sqlite_url(context.state),
        broker=context.broker,
        queues=tuple(dict.fromkeys(chosen)) or None,
        slots=slots,
        schedules=not no_schedule,
        grace=_seconds("--grace", grace),
        keep_raw=_seconds("--keep-raw", keep_raw) if keep_raw is not None else None,
    )
    asked = Asked()
    store = open_store(context.state, url=context.store)
    try:
        with _ending(asked):
            _say("Serving; Ctrl-C ends it.")
            serve(store, serving, asked=asked, say=_say, write_report=partial(_write_page, store, context.state))
        _say("Ended.")
    finally:
        store.close()
    sys.exit(0)


def _write_page(store: Store, state: Path, campaign_id: int) -> str:
    # What draws charts takes a second and much memory to load, and a night has one report.
    from labctl.cli.pages import write_page

    return write_page(store, state, campaign_id)


def _refuse_lonely(context: Context, queues: tuple[str, ...], *, no_schedule: bool) -> None:
    """Raise `SpecError` for what makes sense only together with others."""
    if context.broker is None and (no_schedule or queues):
        option = "--no-schedule" if no_schedule else "--lab and --queue"
        raise SpecError(
            f"{option} needs --broker.",
            why="Without one this service has a Redis that nobody else knows, so it must start and carry out everything.",
            todo="Give the URL of the Redis that the services share: --broker, or LABCTL_BROKER.",
        )


def _seconds(option: str, text: str) -> float:
    allowed = "a time such as 90 s, 8 h or 90 d"
    try:
        return parse_seconds(text, allowed=allowed, longest=_YEARS, spoken="ten years")
    except BadValue as error:
        raise SpecError(f"{option}: {text!r} {error}.", todo=f"Give {allowed}.") from error


@contextmanager
def _ending(asked: Asked) -> Iterator[None]:
    """SIGINT and SIGTERM ask for an end, the second one for one without grace."""

    def ask(_number: int, _frame: FrameType | None) -> None:
        if asked.end.is_set():
            asked.at_once.set()
        asked.end.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    """A line of the log."""
    moment = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S%z")
    click.echo(f"{moment} {' '.join(text.split())}")

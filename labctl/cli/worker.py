"""`labctl worker`: serve campaigns until told to stop."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType

import click

from labctl.campaign.queues import queue_of
from labctl.campaign.service import Asked, serve
from labctl.campaign.serving import NO_QUEUE, Serving
from labctl.campaign.session import Session
from labctl.campaign.worker_files import Wanted
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
        with _ending(asked), _logging():
            _say("Starting; Ctrl-C ends it.")
            told = Told(store, events=serving.schedules)
            write_report = partial(_write_page, context.state, context.store)
            serve(store, serving, asked=asked, say=_say, write_report=write_report, on_up=told.up, on_look=told.look)
        _say("Ended.")
    finally:
        store.close()
    sys.exit(0)


class Told:
    """What a service says of its work: what it serves, and line by line what happens in the night."""

    def __init__(self, store: Store, *, events: bool) -> None:
        self._store = store
        self._events = events
        self._seen = store.newest_event()
        self._running: Session | None = None
        self._served: Wanted | None = None

    def up(self, running: Session) -> None:
        """Its worker takes messages."""
        self._running = running
        self._say_served()

    def look(self) -> None:
        """Say what has changed. Raises `LabError` (`store`)."""
        self._say_served()
        while self._events and (news := self._store.events_after(self._seen)):
            for event in news:
                _say(f"{event.scope.replace('-', ' ', 1)}: {event.what}")
            self._seen = news[-1].id

    def _say_served(self) -> None:
        wanted = self._running.worker.wanted if self._running is not None else None
        if wanted is not None and wanted != self._served:
            self._served = wanted
            _say(_serving(wanted))


def _serving(wanted: Wanted) -> str:
    queues = ", ".join(queue for queue in wanted.queues if queue != NO_QUEUE)
    slots = f"{wanted.slots} slot{'s' if wanted.slots != 1 else ''}"
    return (
        f"Serving {queues} with {slots}; Ctrl-C ends it." if queues else "Serving: nothing to do yet; Ctrl-C ends it."
    )


def _write_page(state: Path, url: str | None, campaign_id: int) -> str:
    # What draws charts takes a second and much memory to load, and a night has one report.
    from labctl.cli.pages import write_page_apart

    return write_page_apart(state, url, campaign_id)


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


class _Log(logging.Handler):
    """What the parts of labctl log are lines of the log like the others; where a bug came from follows below its line."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            _say(record.getMessage())
            if record.exc_info:
                click.echo(logging.Formatter().formatException(record.exc_info))


@contextmanager
def _logging() -> Iterator[None]:
    """Meanwhile what labctl logs is said."""
    log, handler = logging.getLogger("labctl"), _Log(logging.INFO)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before


def _say(text: str) -> None:
    """A line of the log. That it can't be written, on a full disk, ends no night."""
    moment = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S%z")
    with suppress(OSError):
        click.echo(f"{moment} {' '.join(text.split())}")

"""`labctl run`: submit a campaign, work it off, show progress, report. Needs no server started by hand."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from labctl.campaign import commands
from labctl.campaign.serving import Serving
from labctl.campaign.work import work_off
from labctl.cli.live import LiveView
from labctl.cli.main import Context
from labctl.cli.pages import page_of, write_page_apart
from labctl.errors import LabError, SpecError
from labctl.model.lab import Lab
from labctl.model.outcome import CampaignState, Outcome
from labctl.report import print_terminal, write_html
from labctl.report.console import terminal_console
from labctl.spec.cross_check import load_both
from labctl.store import Store, open_store
from labctl.store.database import sqlite_url

EXIT_OK, EXIT_FAILED_RUNS, EXIT_LAB, EXIT_INTERRUPTED = 0, 1, 3, 130


@click.command()
@click.argument("campaign", type=click.Path(path_type=Path), required=False)
@click.option("--lab", "lab_file", type=click.Path(path_type=Path), help="The lab file.")
@click.option("--resume", "resume_id", type=int, help="Go on with a campaign that was interrupted.")
@click.option("--max-runs", type=click.IntRange(min=1), help="Raise the cap on the number of runs.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the HTML report.")
@click.pass_obj
def run(
    context: Context,
    campaign: Path | None,
    lab_file: Path | None,
    resume_id: int | None,
    max_runs: int | None,
    output: Path | None,
) -> None:
    """Run CAMPAIGN on a lab to its end and report.

    Ctrl-C ends the attempts in progress, removes their VMs and keeps the campaign: `labctl run --resume ID` goes on.
    """
    console = terminal_console()
    stop = threading.Event()
    store = open_store(context.state, url=context.store)
    try:
        if resume_id is not None:
            begin = _resumption(store, resume_id, campaign, lab_file)
        else:
            begin = _submission(store, campaign, lab_file, max_runs, say=console.print)
        with _stopping(stop, console):
            campaign_id = begin()
            reached = _work(store, campaign_id, context, console, stop)
        _report(store, campaign_id, context, console, output)
        code = _exit_code(store, campaign_id, reached, console)
    finally:
        store.close()
    sys.exit(code)


Beginning = Callable[[], int]
"""Stores what is to be worked off, if need be, and returns the campaign's id."""


def _resumption(store: Store, campaign_id: int, campaign_file: Path | None, lab_file: Path | None) -> Beginning:
    """Check whether the campaign can go on."""
    if campaign_file is not None or lab_file is not None:
        raise SpecError(
            "--resume goes with no campaign and no lab file.",
            why="The campaign keeps the files that it was submitted with.",
            todo=f"`labctl run --resume {campaign_id}`",
        )
    commands.refuse_ended(store, campaign_id)
    _check_lab(store.head(campaign_id).lab)
    return lambda: campaign_id


def _submission(
    store: Store,
    campaign_file: Path | None,
    lab_file: Path | None,
    max_runs: int | None,
    *,
    say: Callable[[str], None],
) -> Beginning:
    """Check everything that can be checked before anything starts."""
    if campaign_file is None or lab_file is None:
        raise SpecError("`labctl run` needs a campaign file and --lab.", todo="labctl run CAMPAIGN --lab LAB")
    checked, lab = load_both(campaign_file, lab_file)
    if max_runs is not None:
        checked = replace(checked, max_runs=max_runs)
    for campaign_id in store.same_content(commands.content_digest(checked, lab)):
        say(
            f"Campaign {campaign_id} measures the same and is {store.state(campaign_id)}; "
            f"`labctl run --resume {campaign_id}` would go on with it. This one is another."
        )
    _check_lab(lab)
    campaign_text, lab_text = campaign_file.read_text(), lab_file.read_text()
    return partial(commands.submit, store, checked, lab, campaign_text=campaign_text, lab_text=lab_text)


def _check_lab(lab: Lab) -> None:
    """Raise `LabError` when the lab can't be worked with now. The check itself lives on the execution side."""
    for hook in entry_points(group="labctl.hooks", name="check_lab"):
        problems: tuple[str, ...] = hook.load()(lab)
        if problems:
            raise LabError(
                f"Lab {lab.name} is not ready; nothing was started.",
                kind="lab-not-ready",
                why="; ".join(problems),
                todo="`labctl lab up`" if lab.embedded else "Mend what is said above.",
            )


def _work(store: Store, campaign_id: int, context: Context, console: Console, stop: threading.Event) -> CampaignState:
    head = store.head(campaign_id)
    console.print(
        f"Campaign [bold]{campaign_id}[/bold] ({head.name}) on lab {head.lab.name}. "
        f"Ctrl-C stops it; `labctl run --resume {campaign_id}` goes on.",
        highlight=False,
    )
    serving = Serving(
        state=context.state,
        store_url=context.store or sqlite_url(context.state),
        broker=context.broker,
        only=campaign_id,
    )
    with LiveView(console, head) as view:
        return work_off(
            store,
            campaign_id,
            serving=serving,
            view=view,
            stop=stop,
            write_report=partial(write_page_apart, context.state, context.store),
        )


@contextmanager
def _stopping(stop: threading.Event, console: Console) -> Iterator[None]:
    """SIGINT and SIGTERM set `stop`; the second one says how to leave at once. A terminal that goes away ends nothing:
    the night's work goes on, and its report is in the state directory in the morning."""

    def asked(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            console.print("Already stopping; to leave at once kill this process. `--resume` cleans up then.")
        stop.set()

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(store: Store, campaign_id: int, context: Context, console: Console, output: Path | None) -> None:
    record = store.record(campaign_id)
    path = output or page_of(context.state, campaign_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_html(record, path)
        where = f"Report: {path.absolute()}"
    except OSError as error:
        where = f"The report can't be written to {path.absolute()}: {error.strerror or error}. The results are stored; "
        where += f"`labctl report {campaign_id} -o PATH.html` writes it elsewhere."
    print_terminal(record, console)
    console.print(f"\n{where}", highlight=False, soft_wrap=True)


def _exit_code(store: Store, campaign_id: int, reached: CampaignState, console: Console) -> int:
    if not reached.ended:
        console.print(f"Interrupted. `labctl run --resume {campaign_id}` goes on where it stopped.", highlight=False)
        return EXIT_INTERRUPTED
    if reached is not CampaignState.DONE:
        console.print(f"The campaign is {reached}. {store.head(campaign_id).why}".rstrip(), highlight=False)
        return EXIT_FAILED_RUNS
    counts = store.run_counts(campaign_id)
    return EXIT_FAILED_RUNS if counts.get(Outcome.FAILED) or counts.get(Outcome.LAB_ERROR) else EXIT_OK

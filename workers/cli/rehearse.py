"""`labctl rehearse`: a campaign through the real engine on simulated hosts, a night in seconds."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import FrameType
from zoneinfo import ZoneInfo

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from labctl.campaign.account import Account, RunLine, account_of
from labctl.campaign.incidents import Incident
from labctl.campaign.rehearsal import Rehearsal, simulated
from labctl.campaign.rehearsal import rehearse as carry_out
from labctl.cli.words import counts, duration, many, moment, stamp
from labctl.errors import SpecError
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.scenario import Scenario
from labctl.plan.estimate import estimate
from labctl.plan.resources import machines_of
from labctl.plan.windows import next_opening, opening_at
from labctl.report import print_terminal
from labctl.report.console import terminal_console
from labctl.spec.cross_check import load_both
from workers.hypervisors.simulated.faults import Hit, hits, write_faults
from workers.hypervisors.simulated.schedule import Night, Schedule, schedule_of

EXIT_BROKEN = 3
_SHOWN_RUNS = 6
_SHOWN_OPENINGS = 10


@click.command()
@click.argument("campaign", type=click.Path(path_type=Path))
@click.option("--lab", "lab_file", type=click.Path(path_type=Path), required=True, help="The lab file.")
@click.option("--faults", "seed", type=int, help="Let things go wrong; the number decides what and when.")
@click.option("--at", help="When it begins, as in 2026-10-24T18:00; now by default.")
@click.option("--json", "as_json", is_flag=True, help="The same facts for programs.")
@click.option("--report", "with_report", is_flag=True, help="Print the report of the made-up figures too.")
def rehearse(
    campaign: Path, lab_file: Path, seed: int | None, at: str | None, as_json: bool, with_report: bool
) -> None:
    """Rehearse CAMPAIGN on simulated hosts: the whole night in seconds, with faults if asked.

    No machine of the lab is touched, and no figure is a measurement. Exit code 3: something broke that must never break.
    """
    checked, lab = load_both(campaign, lab_file)
    begin = _begin(at, checked)
    texts = {"campaign_text": campaign.read_text(), "lab_text": lab_file.read_text()}
    console = terminal_console()
    with tempfile.TemporaryDirectory(prefix="labctl-rehearsal-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        lab, world = simulated(lab, directory / "world"), directory / "world"
        schedule = _schedule(seed, checked, lab, begin)
        write_faults(world, schedule.faults)
        if not as_json:
            console.print(
                f"[reverse bold]Rehearsal[/] of {escape(checked.name)} on lab {escape(lab.name)}: {_SIMULATED}"
            )
        told = (lambda _: None) if as_json else (lambda text: console.print(text, style="dim", markup=False))
        with _ended_as_by_a_person():
            found = carry_out(
                checked, lab, directory=directory, begin=begin, incidents=schedule.incidents, texts=texts, say=told
            )
        account, struck = account_of(found, vms_left=_vms_left(world)), hits(world)
    if as_json:
        click.echo(json.dumps(_facts(account, struck, found.incidents, seed), indent=1))
    else:
        _print(console, account, checked)
        if seed is not None:
            _print_faults(console, seed, struck, found)
        _print_verdict(console, account)
        if with_report:
            print_terminal(found.record, console)
    sys.exit(EXIT_BROKEN if account.broken else 0)


_SIMULATED = "no machine is touched, and no figure is a measurement."


@contextmanager
def _ended_as_by_a_person() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: its worker, its Redis and its directory go with it."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _begin(at: str | None, campaign: Campaign) -> float:
    """The wall time at which it begins. A time without a zone is in that of the campaign's windows, or else in ours."""
    if at is None:
        return datetime.now().astimezone().timestamp()
    try:
        asked = datetime.fromisoformat(at)
    except ValueError as error:
        raise SpecError(
            f"--at {at} is no date with a time.",
            todo="Give both, as in 2026-10-24T18:00; without a zone it is in that of the campaign's windows.",
        ) from error
    return asked.replace(tzinfo=asked.tzinfo or _zone(campaign)).timestamp()


def _zone(campaign: Campaign) -> ZoneInfo | None:
    return ZoneInfo(campaign.windows.zone) if campaign.windows is not None else None


def _schedule(seed: int | None, campaign: Campaign, lab: Lab, begin: float) -> Schedule:
    """What goes wrong, spread over the time in which the campaign is expected to be worked on."""
    if seed is None:
        return Schedule(faults=(), incidents=())
    opening = opening_at(campaign.windows, begin) or next_opening(campaign.windows, begin)
    needed = estimate(campaign, lab)
    return schedule_of(
        seed,
        Night(
            lab=lab,
            runs=needed.runs,
            start=max(0.0, opening.start - begin) if opening is not None else 0.0,
            seconds=needed.seconds / machines_of(lab),
            migrates=Scenario.DURING_MIGRATION in campaign.scenarios,
        ),
    )


def _vms_left(world: Path) -> tuple[str, ...]:
    files = (world / "hosts").glob("*/*")
    return tuple(sorted(f"{path.parent.name}/{path.name}" for path in files if not path.name.startswith(".")))


def _facts(
    account: Account, struck: tuple[Hit, ...], incidents: tuple[Incident, ...], seed: int | None
) -> dict[str, object]:
    told = asdict(account)
    told["began"] = stamp(account.began)
    told["runs"] = [asdict(run) | {"started": stamp(run.started)} for run in account.runs]
    told["openings"] = [
        asdict(line) | {"start": stamp(line.start), "end": stamp(line.end)} for line in account.openings
    ]
    return {
        "simulated": True,
        **told,
        "faults": {
            "seed": seed,
            "hits": [asdict(hit) for hit in struck],
            "incidents": [asdict(incident) for incident in incidents],
        },
    }


# For people


def _print(console: Console, account: Account, campaign: Campaign) -> None:
    zone, runs = _zone(campaign), many(sum(account.outcomes.values()), "run")
    console.print(
        f"{runs} ({counts(account.outcomes)}) in {duration(account.busy_seconds)} of work, from "
        f"{moment(account.began, zone)} to {moment(account.began + account.seconds, zone)}; rehearsed in "
        f"{account.real_seconds:.1f} s.",
        highlight=False,
    )
    if account.state != "done":
        console.print(
            f"The campaign is {account.state}. {escape(account.why)}".rstrip(), style="yellow", highlight=False
        )
    _print_runs(console, account, zone)
    _print_openings(console, account, zone)
    _print_hosts(console, account)
    for why, count in account.not_run.items():
        console.print(f"Not run: {many(count, 'run')}. {why}", style="yellow", markup=False, highlight=False)


def _print_runs(console: Console, account: Account, zone: ZoneInfo | None) -> None:
    table = Table(box=None, title="Order", title_justify="left", title_style="bold", pad_edge=False)
    for name in ("started", "run", "cell", "replicate", "hosts", "took", "outcome"):
        table.add_column(name, justify="right" if name in ("run", "replicate", "took") else "left")
    runs = account.runs
    if len(runs) <= 2 * _SHOWN_RUNS:
        shown: list[RunLine | None] = list(runs)
    else:
        shown = [*runs[:_SHOWN_RUNS], None, *runs[-_SHOWN_RUNS:]]
    for run in shown:
        if run is None:
            table.add_row(f"... {len(runs) - 2 * _SHOWN_RUNS} more")
            continue
        tries = f" ({run.attempts} attempts)" if run.attempts > 1 else ""
        repeat = "anchor" if run.purpose == "anchor" else str(run.replicate)
        table.add_row(
            moment(run.started, zone), str(run.run), escape(run.cell), repeat, ", ".join(run.hosts),
            f"{run.seconds:.0f} s", f"{run.outcome}{tries}",
        )  # fmt: skip
    console.print(table)


def _print_openings(console: Console, account: Account, zone: ZoneInfo | None) -> None:
    if not account.zone:
        return
    table = Table(box=None, title="Openings used", title_justify="left", title_style="bold", pad_edge=False)
    for name in ("from", "to", "hours", "worked", "attempts"):
        table.add_column(name, justify="left" if name in ("from", "to") else "right")
    for line in account.openings[:_SHOWN_OPENINGS]:
        table.add_row(
            moment(line.start, zone), moment(line.end, zone), f"{(line.end - line.start) / 3600:.1f}", duration(line.used),
            str(line.attempts),
        )  # fmt: skip
    more = len(account.openings) - _SHOWN_OPENINGS
    if more > 0:
        table.add_row(f"and {more} more")
    console.print(table)


def _print_hosts(console: Console, account: Account) -> None:
    table = Table(box=None, title="Hosts", title_justify="left", title_style="bold", pad_edge=False)
    for name in ("host", "attempts", "busy", "share"):
        table.add_column(name, justify="left" if name == "host" else "right")
    for line in account.hosts:
        table.add_row(escape(line.host), str(line.attempts), duration(line.seconds), f"{line.share:.0%}")
    console.print(table)


def _print_faults(console: Console, seed: int, struck: tuple[Hit, ...], found: Rehearsal) -> None:
    kinds = Counter(hit.kind.value for hit in struck) + Counter(one.kind.value for one in found.incidents)
    said = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items())) or "nothing"
    console.print(f"[bold]Faults of seed {seed}[/]: {said}", highlight=False)


def _print_verdict(console: Console, account: Account) -> None:
    console.print(
        f"Lost runs: {account.lost_runs}. Runs with two results: {account.doubled_runs}. VMs left: "
        f"{len(account.vms_left)}. Leases left: {len(account.leases_left)}.",
        style="bold red" if account.broken else "bold green",
        highlight=False,
    )
    for sentence in account.broken:
        console.print(f"Broken: {sentence}", style="red", markup=False, highlight=False)

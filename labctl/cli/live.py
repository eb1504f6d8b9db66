"""Live progress of a campaign in the terminal; plain lines where there is no terminal."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from labctl.campaign.progress import Progress
from labctl.campaign.view import View
from labctl.cli.standing import activity, bad_host, beside, doing, rate, times_left
from labctl.cli.words import counts, span
from labctl.model.outcome import CampaignState
from labctl.store import CampaignHead

_PLAIN_SECONDS = 15.0
_OTHER_LINES = 10
"""Lines of the picture beside those of what is in progress, at the most."""
_WORKERS = 3
"""Workers of which is said what they do."""
_NAMED = 3
"""Attempts in progress that a plain line names."""


class LiveView(View):
    """Shows counts, rate, what the hosts do, what keeps the campaign from going on, and when it will be done."""

    def __init__(self, console: Console, head: CampaignHead) -> None:
        self._console = console
        self._head = head
        self._began = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._said = 0.0
        self._line_of: tuple[object, ...] = ()

    def __enter__(self) -> LiveView:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            with suppress(OSError):
                self._live.stop()

    def show(self, now: Progress, *, unserved: str = "", workers: tuple[str, ...] = ()) -> None:
        """Redraw, or print a line when something has changed or some time has passed.

        `unserved` says why nothing would become of its runs, `workers` what each of those that serve it does.
        """
        said = tuple(sentence for sentence in (*_obstacles(now, served=not unserved), unserved) if sentence)
        with suppress(OSError):  # a terminal that is gone shows nothing, and is no reason to stop
            if self._live:
                self._live.update(self._picture(now, said, workers), refresh=True)
            else:
                self._print_line(now, said)

    def say(self, text: str) -> None:
        """One line that stays."""
        with suppress(OSError):
            self._console.print(text, highlight=False, soft_wrap=True)

    def _print_line(self, now: Progress, said: tuple[str, ...]) -> None:
        line_of = (now.state, now.done, said)
        if line_of != self._line_of or time.monotonic() - self._said > _PLAIN_SECONDS:
            self._line_of, self._said = line_of, time.monotonic()
            self._console.print(_line(now, said), highlight=False, soft_wrap=True, markup=False)

    def _picture(self, now: Progress, said: tuple[str, ...], workers: tuple[str, ...]) -> Group:
        passed = f"{span(time.monotonic() - self._began)} passed"
        words = [f"{_state(now)}{now.done:,} of {now.total:,} runs done ({counts(now.counts)})", passed, rate(now)]
        texts = [", ".join(word for word in words if word), times_left(now)]
        lines: list[RenderableType] = [ProgressBar(total=max(1, now.total), completed=now.done, width=60)]
        lines += [Text(text) for text in texts if text]
        lines.append(_activity(now, rows=max(3, self._console.height - _OTHER_LINES)))
        lines += [Text(worker, style="dim") for worker in workers[:_WORKERS]]
        lines += [Text(sentence, style="yellow") for sentence in said]
        return Group(*lines)


def _line(now: Progress, said: tuple[str, ...]) -> str:
    parts = [f"{_state(now)}{now.done}/{now.total} runs, {counts(now.counts)}", rate(now), times_left(now)]
    if now.active:
        named = [f"{item.cell.key} ({doing(item)})" for item in now.active[:_NAMED]]
        more = [f"{len(now.active) - _NAMED} more"] if len(now.active) > _NAMED else []
        parts.append("now: " + ", ".join([*named, *more]))
    return "; ".join(part for part in (*parts, *said) if part)


def _state(now: Progress) -> str:
    return "" if now.state is CampaignState.ACTIVE else f"{now.state}; "


def _activity(now: Progress, *, rows: int) -> Table:
    """What is in progress, as far as there is room for it."""
    table = Table.grid(padding=(0, 2))
    shown = now.active if len(now.active) <= rows else now.active[: rows - 1]
    for item in shown:
        table.add_row(*(Text(cell) for cell in activity(item, now.at)))
    if len(shown) < len(now.active):
        table.add_row(Text(f"and {len(now.active) - len(shown)} more"))
    return table


def _obstacles(now: Progress, *, served: bool) -> tuple[str, ...]:
    """What keeps the campaign, or some of the lab's hosts, from going on."""
    found = []
    if now.state is not CampaignState.ACTIVE:
        found.append(now.head.why)
    elif now.head.hold:
        found.append(f"waiting{'' if served else ' when it was last served'}: {now.head.hold}")
    if not now.state.ended:
        found += [beside(now), *(bad_host(record) for record in now.bad_hosts)]
    return tuple(found)

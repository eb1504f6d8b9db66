"""Live progress of a campaign in the terminal; plain lines where there is no terminal."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from labctl.campaign.progress import Progress
from labctl.campaign.work import View
from labctl.store import CampaignHead, LeaseLine

_PLAIN_SECONDS = 15.0


class LiveView(View):
    """Shows counts, what each host does, and the time left as a range."""

    def __init__(self, console: Console, head: CampaignHead) -> None:
        self._console = console
        self._head = head
        self._began = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._said = 0.0
        self._line_of = (-1, "")

    def __enter__(self) -> LiveView:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, now: Progress, waiting: tuple[LeaseLine, ...]) -> None:
        """Redraw, or print a line when something has changed or some time has passed."""
        with suppress(OSError):  # a terminal that is gone shows nothing, and is no reason to stop
            self._show(now, waiting)

    def _show(self, now: Progress, waiting: tuple[LeaseLine, ...]) -> None:
        if self._live:
            self._live.update(self._picture(now, waiting), refresh=True)
            return
        line_of = (now.done, "" if now.active else _waiting(now, waiting))
        if line_of != self._line_of or time.monotonic() - self._said > _PLAIN_SECONDS:
            self._line_of, self._said = line_of, time.monotonic()
            self._console.print(self._line(now, waiting), highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line that stays."""
        with suppress(OSError):
            self._console.print(text, highlight=False, soft_wrap=True)

    def _line(self, now: Progress, waiting: tuple[LeaseLine, ...]) -> str:
        text = f"{now.done}/{now.total} runs, {_counts(now)}; {_left(now)}"
        if now.active:
            text += "; now: " + ", ".join(f"{item.cell.key} ({item.phase or item.state})" for item in now.active)
        elif reason := _waiting(now, waiting):
            text += f"; {reason}"
        return text

    def _picture(self, now: Progress, waiting: tuple[LeaseLine, ...]) -> Group:
        table = Table.grid(padding=(0, 2))
        for item in now.active:
            seconds = time.time() - (item.claimed or item.created)
            table.add_row(
                "+".join(item.hosts),
                item.cell.key,
                f"replicate {item.replicate}" + (f", attempt {item.number}" if item.number > 1 else ""),
                item.phase or item.state,
                f"{seconds:.0f} s",
            )
        head = Text(
            f"{now.done} of {now.total} runs done ({_counts(now)}), {_clock(time.monotonic() - self._began)} passed, "
            f"{_left(now)}"
        )
        bar = ProgressBar(total=max(1, now.total), completed=now.done, width=60)
        lines: list[Text | ProgressBar | Table] = [bar, head, table]
        if not now.active and (reason := _waiting(now, waiting)):
            lines.append(Text(reason, style="yellow"))
        return Group(*lines)


def _counts(now: Progress) -> str:
    ended = {name: count for name, count in now.counts.items() if name not in ("pending", "active")}
    return ", ".join(f"{count} {name}" for name, count in sorted(ended.items())) or "none ended"


def _left(now: Progress) -> str:
    if now.done == now.total:
        return "nothing left"
    low, high = now.seconds_left
    basis = f"from {now.measured} attempts" if now.measured else "estimated"
    return f"about {_clock(low)} to {_clock(high)} left ({basis})"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _waiting(now: Progress, waiting: tuple[LeaseLine, ...]) -> str:
    """For whom the runs that are left wait; empty when there is nobody, or nothing is left."""
    if not waiting or now.done == now.total:
        return ""
    holders = sorted({f"campaign {line.campaign_id} ({line.campaign})" for line in waiting})
    return f"waiting: the hosts are leased by {', '.join(holders)}"

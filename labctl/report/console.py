"""The console that reports and commands print to."""

from __future__ import annotations

from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 130
"""Columns of what is piped or written to a log, where nobody has said how wide it is."""


def terminal_console() -> Console:
    """A console as wide as the terminal; wide enough for tables where there is none."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)

"""How patient the engine is: how long a sign of life may be missing, how often a host is checked before it is given up."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from labctl.errors import SpecError

VARIABLE = "LABCTL_PATIENCE"
"""Environment variable with a JSON object of the fields of `Patience` that are to be otherwise."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Engines and workers of one store must agree on it. Seconds are real ones, but for those of health checks, which go
    by the clock of campaigns.

    Raises `SpecError` when a figure is not above 0, or when workers could seem dead between two heartbeats.
    """

    beat: float = 2.0
    """Workers say so often that their attempt lives."""
    silent: float = 30.0
    """A claimed attempt without a heartbeat for so long is lost."""
    unclaimed: float = 60.0
    """A sent attempt that no worker has claimed for so long is lost: its message is."""
    fresh: float = 6.0
    """A worker whose last heartbeat got through longer ago than this asks the store before it touches the lab."""
    clean_again: float = 15.0
    """The cleaning of a lost attempt that still holds hosts is asked for again after so long."""
    check_first: float = 60.0
    """A host that was quarantined is due for its first health check after so long; twice as long after each that fails, ..."""
    check_longest: float = 3600.0
    """... but never longer than this."""
    checks: int = 6
    """So many failed health checks in a row put a host out, until a person lets it in: an hour and more with the usual
    times, so that a reboot of a switch doesn't cost the night."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise SpecError(f"{VARIABLE}: `{field.name}` is {value!r}, which is no number of seconds above 0.")
        if not isinstance(self.checks, int):
            raise SpecError(f"{VARIABLE}: `checks` is {self.checks!r}, which is no whole number.")
        if self.silent < 3 * self.beat:
            raise SpecError(
                f"{VARIABLE}: `silent` is {self.silent:g} s, less than three heartbeats of {self.beat:g} s.",
                why="A worker that lives would be given up.",
                todo=f"Make `silent` at least {3 * self.beat:g}.",
            )
        if self.fresh >= self.silent:
            raise SpecError(
                f"{VARIABLE}: `fresh` is {self.fresh:g} s, though an attempt is lost after {self.silent:g} s.",
                why="A worker could touch the lab after its attempt was given up.",
                todo=f"Make `fresh` less than {self.silent:g}.",
            )


def patience(environment: Mapping[str, str] = os.environ) -> Patience:
    """The patience that `LABCTL_PATIENCE` asks for, e.g. `{"beat": 0.2, "silent": 2}`; else the usual one.

    `fresh` follows a shortened `silent` where it isn't given. Raises `SpecError` for anything else.
    """
    text = environment.get(VARIABLE, "")
    if not text:
        return Patience()
    names = [field.name for field in fields(Patience)]
    try:
        given = json.loads(text)
    except ValueError as error:
        raise SpecError(f"{VARIABLE} is no JSON.", why=str(error), todo=_EXAMPLE) from error
    if not isinstance(given, dict):
        raise SpecError(f"{VARIABLE} is no JSON object.", todo=_EXAMPLE)
    for name in given:
        if name not in names:
            raise SpecError(f"{VARIABLE}: there is no `{name}`.", todo=f"Known are {', '.join(names)}.")
    if isinstance(given.get("silent"), int | float):
        given.setdefault("fresh", min(Patience.fresh, given["silent"] / 5))
    return Patience(**given)


_EXAMPLE = """Give it like `{"beat": 0.2, "silent": 2}`."""

"""The journal of an attempt: phases with their times, and everything that it brings back, whatever happens to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from labctl import clock
from labctl.model.outcome import OutcomeDetail
from labctl.model.result import AttemptResult, FactSet, MigrationResult, RawOutput, TransferResult


class Journal:
    """Filled while the attempt goes on; `result` closes it."""

    def __init__(self) -> None:
        self.current = "claimed"
        self.transfers: list[TransferResult] = []
        self.migrations: list[MigrationResult] = []
        self.facts: list[FactSet] = []
        self.raw: list[RawOutput] = []
        self.warnings: list[str] = []
        self._phases: list[tuple[str, float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A named part of the attempt; its seconds are kept even when it fails."""
        self.current = name
        began = clock.monotonic()
        try:
            yield
        finally:
            self._phases.append((name, clock.monotonic() - began))

    def keep(self, name: str, content: bytes) -> None:
        """Keep a captured output. Empty ones are kept too: that nothing was printed is a fact."""
        self.raw.append(RawOutput(name=name, content=content))

    def result(self, detail: OutcomeDetail) -> AttemptResult:
        """All of it, with how the attempt ended."""
        return AttemptResult(
            detail=detail,
            transfers=tuple(self.transfers),
            migrations=tuple(self.migrations),
            facts=tuple(self.facts),
            raw=tuple(self.raw),
            phases=tuple(self._phases),
            warnings=tuple(self.warnings),
        )

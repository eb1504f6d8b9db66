"""Errors by who must act: the user's file (`SpecError`), the lab (`LabError`), or us (any other exception: a bug).

Every error says what happened, why, and what to do. The command line turns the class into an exit code.
"""

from __future__ import annotations

from dataclasses import dataclass


class LabctlError(Exception):
    """The base of all errors that a person can act on."""

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.todo = todo

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"Why: {self.why}")
        if self.todo:
            parts.append(f"What to do: {self.todo}")
        return "\n".join(parts)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake in a file of the user's. Lines and columns count from 1; 0 means the place is not known."""

    file: str
    line: int
    column: int
    key: str
    """Where in the document, as a path of keys and list indices: `factors.nic_model[2]`."""
    value: str
    """The offending value as the user wrote it; empty when the key itself is at fault."""
    message: str
    allowed: str = ""
    nearest: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        text = f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"
        if self.value:
            text += f" (value: {self.value})"
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        if self.nearest:
            text += f"; did you mean {self.nearest!r}?"
        return text


class SpecError(LabctlError):
    """The user's input is wrong; nothing was started. Exit code 2."""

    exit_code = 2

    def __init__(self, what: str, *, why: str = "", todo: str = "", problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(what, why=why, todo=todo)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {problem}" for problem in self.problems)])


class LabError(LabctlError):
    """The lab can't do what it should: unreachable, misconfigured, full, or not what was asked for. Exit code 3.

    Raised during an attempt it makes the outcome `lab-error`, which is retried and never counted as a figure.
    `kind` is a short stable word (`boot-timeout`, `host-unreachable`, `nic-mismatch`, ...) for grouping.
    """

    exit_code = 3

    def __init__(self, what: str, *, kind: str, why: str = "", todo: str = "", host: str = "") -> None:
        super().__init__(what, why=why, todo=todo)
        self.kind = kind
        self.host = host


class SystemUnderTestError(LabctlError):
    """The system under test did not do it: a connection lost by a migration, a migration that never converges.

    It makes the outcome `failed`: a result, kept and reported, not retried.
    """

    def __init__(self, what: str, *, kind: str, why: str = "", todo: str = "") -> None:
        super().__init__(what, why=why, todo=todo)
        self.kind = kind


class AttemptCancelled(LabctlError):
    """Somebody asked the attempt to stop, or its token is void. Not an error of anybody's."""

    exit_code = 130

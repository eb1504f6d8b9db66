"""Argument lists as Windows command lines.

Windows gives a process one text, which the process takes apart itself. Nearly all programs do it by the rules of
`CommandLineToArgvW` and of the C run-time library: arguments are separated by spaces and tabs outside of double quotes;
backslashes mean themselves, except before a double quote, where each pair stands for one and an odd one makes the quote a
plain character. Source: "Parsing C command-line arguments" and CommandLineToArgvW, learn.microsoft.com. What `cmd.exe` and
batch files make of a line is something else, and no argument is safe there: labctl starts none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST = 32_767
"""Characters of a command line with its program, of which the last is the NUL at its end (CreateProcessW)."""

_PLAIN = re.compile(r"""[^ \t\n\v"]+""")
_BEFORE_QUOTE = re.compile(r'(\\*)(?:"|$)')


def command_line(arguments: Sequence[str]) -> str:
    """The text that programs take apart to these arguments. Raises `ValueError` for a NUL, and for more than fits."""
    line = " ".join(_quoted(argument) for argument in arguments)
    if "\0" in line:
        raise ValueError("an argument can't hold a NUL character")
    if len(line) > LONGEST:
        raise ValueError(
            f"a command line of Windows has at most {LONGEST} characters, and these arguments need {len(line)}"
        )
    return line


def _quoted(argument: str) -> str:
    if _PLAIN.fullmatch(argument):
        return argument
    return f'"{_BEFORE_QUOTE.sub(_doubled, argument)}"'


def _doubled(match: re.Match[str]) -> str:
    """Backslashes before a quote, or before the one that ends the argument, twice; and one more to make a quote plain."""
    backslashes, ends = match[1], not match[0].endswith('"')
    return backslashes * 2 + ("" if ends else '\\"')

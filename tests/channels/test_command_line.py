"""Argument lists as command lines of Windows, taken apart again by the rules that programs there follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.windows import to_arguments
from workers.channels.command_line import LONGEST, command_line

TRICKY = st.lists(
    st.text(alphabet='\\" \tab', max_size=8) | st.text(st.characters(exclude_characters="\0"), max_size=8)
)


@given(TRICKY)
def test_every_list_of_arguments_comes_back(arguments: list[str]) -> None:
    assert to_arguments(command_line(arguments)) == arguments


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["-c", "10.0.0.1"], "-c 10.0.0.1"),
        (["a b"], '"a b"'),
        ([""], '""'),
        (['say "x"'], r'"say \"x\""'),
        (["C:\\a b\\"], r'"C:\a b\\"'),
        (["C:\\a\\"], "C:\\a\\"),
        (['\\"'], r'"\\\""'),
        (["$(x)", "`x`", "%PATH%", "a;b&c|d>e"], "$(x) `x` %PATH% a;b&c|d>e"),
    ],
)
def test_lines_are_those_of_the_documentation(arguments: list[str], line: str) -> None:
    """H12: nothing but spaces, quotes and backslashes before quotes means anything, because no shell reads the line."""
    assert command_line(arguments) == line


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        (r'"a b c" d e', ["a b c", "d", "e"]),
        (r'"ab\"c" "\\" d', ['ab"c', "\\", "d"]),
        (r"a\\\b d\"e", ["a\\\\\\b", 'd"e']),
        (r"a\\\"b c d", ['a\\"b', "c", "d"]),
        (r'a\\\\"b c" d e', ["a\\\\b c", "d", "e"]),
    ],
)
def test_the_parser_that_judges_is_right_itself(line: str, arguments: list[str]) -> None:
    """The examples of Microsoft's documentation ("Parsing C command-line arguments")."""
    assert to_arguments(line) == arguments


def test_what_no_command_line_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        command_line(["a\0b"])
    with pytest.raises(ValueError, match="at most 32767"):
        command_line(["x" * LONGEST, "y"])

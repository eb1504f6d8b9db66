"""What PowerShell writes to stderr, made readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.powershell.clixml import readable, text_of

CAPTURE = Path(__file__).parents[1] / "captures" / "98-winrm-clixml-progress-on-stderr" / "input.stderr.txt"

OPEN = '#< CLIXML\r\n<Objs Version="1.1.0.1" xmlns="http://schemas.microsoft.com/powershell/2004/04">'


def test_h1_progress_says_nothing() -> None:
    """H1: capture 98."""
    assert readable(CAPTURE.read_bytes()) == ""


def test_h1_errors_and_warnings_are_told_and_their_lines_put_together() -> None:
    """H1: a message comes in records of one console line each, with its control characters escaped."""
    text = (
        f'{OPEN}<S S="Error">Get-VM : Der Zugriff wurde _x000D__x000A_</S><S S="Error">verweigert &amp; _x005F_.</S>'
        '<S S="verbose">unwichtig</S><S S="warning">Achtung</S></Objs>'
    )
    assert readable(text.encode()) == "Get-VM : Der Zugriff wurde \nverweigert & _.Achtung"


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16-le", "utf-16"])
def test_h1_letters_that_are_not_ascii_in_any_encoding(encoding: str) -> None:
    """H1: pywinrm's own cleaner gives up at these."""
    text = f'{OPEN}<S S="Error">ungültiger Schlüssel</S></Objs>'
    assert readable(text.encode(encoding)) == "ungültiger Schlüssel"


def test_h1_records_that_are_no_xml() -> None:
    """H1: cut off, or with letters that XML doesn't allow."""
    text = f'{OPEN}<S S="Error">a < b \x01</S><S S="Error">cut'
    assert readable(text.encode()) == "a < b \x01"


def test_what_programs_write_around_the_records_is_kept() -> None:
    text = f'before\r\n{OPEN}<S S="Error">inside</S></Objs>after'
    assert readable(text.encode()) == "before\ninside\nafter"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", ""),
        (b"plain", "plain"),
        ("ä".encode(), "ä"),
        ("ä".encode("cp1252"), "ä"),
        (b"\xef\xbb\xbfmarked", "marked"),
        ("ä b".encode("utf-16-be", "replace").join([b"\xfe\xff", b""]), "ä b"),
        ("weit".encode("utf-16-le"), "weit"),
    ],
)
def test_bytes_as_text(content: bytes, text: str) -> None:
    assert text_of(content) == text

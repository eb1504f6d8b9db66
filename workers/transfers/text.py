"""Captured bytes to text: encodings as shells and redirections leave them, line ends, PowerShell's error records."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

_BOMS = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"\xef\xbb\xbf", "utf-8"))
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CLIXML = re.compile(r"#< CLIXML\s*|<Objs\b.*?(?:</Objs>|\Z)", re.DOTALL)
_CLIXML_ERROR = re.compile(r'<S S="Error">(.*?)(?:</S>|\Z)', re.DOTALL)
_CLIXML_CHARACTER = re.compile(r"_x([0-9A-Fa-f]{4})_")


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Text with `\\n` line ends, and what had to be done to get it."""

    text: str
    warnings: tuple[str, ...] = ()


def decode(data: bytes) -> Decoded:
    """The text of captured bytes. Never raises: what is no text in the guessed encoding becomes U+FFFD.

    UTF-16 is known by its byte order mark (Windows PowerShell 5.1 redirection) or by every other byte being NUL; all
    else is UTF-8. NUL bytes, byte order marks inside the text and terminal escape sequences are dropped.
    """
    encoding = _encoding(data)
    text = data.decode(encoding, errors="replace").replace("\ufeff", "").replace("\x00", "")
    text = _ESCAPES.sub("", text)
    text = re.sub(r"\r+\n", "\n", text)
    return Decoded(text=text, warnings=("utf16_decoded",) if encoding.startswith("utf-16") else ())


def _encoding(data: bytes) -> str:
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return encoding
    sample = data[:4096]
    pairs = len(sample) // 2
    if pairs >= 2:
        if sample[1::2].count(0) > 0.7 * pairs:
            return "utf-16-le"
        if sample[0::2].count(0) > 0.7 * pairs:
            return "utf-16-be"
    return "utf-8"


def error_text(data: bytes) -> str:
    """What a standard error stream says to people: decoded, and of PowerShell's CLIXML only its error strings.

    Over WinRM, PowerShell serialises all its streams into standard error (`#< CLIXML`, MS-PSRP); progress records are
    there after every healthy run.
    """
    text = decode(data).text
    if "<Objs" not in text:
        return text
    strings = (_clixml_string(match) for match in _CLIXML_ERROR.findall(text))
    return _CLIXML.sub("", text) + "".join(strings)


def _clixml_string(escaped: str) -> str:
    plain = _CLIXML_CHARACTER.sub(lambda match: chr(int(match.group(1), 16)), html.unescape(escaped))
    return plain.replace("\r\n", "\n")


def one_line(text: str) -> str:
    """Text with every run of white space as one blank, because consoles break messages at their width."""
    return " ".join(text.split())

"""What PowerShell and programs print, as text: CLIXML records on stderr (MS-PSRP 2.2.5), and bytes of any code page.

PowerShell that is not at a console writes its streams other than output to stderr as `#< CLIXML` and XML. Most of it is
progress. Texts in it are escaped (`_x000D__x000A_`), and with non-Latin letters some versions write XML that is none.
"""

from __future__ import annotations

import re
from html import unescape

HEADER = "#< CLIXML"

_RECORD = re.compile(r'<S S="(?P<stream>[A-Za-z]+)">(?P<text>.*?)</S>', re.DOTALL)
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_TOLD = ("error", "warning")


def readable(stderr: bytes) -> str:
    """What people can read of stderr: errors and warnings, and what programs have written. Progress is left out."""
    text = text_of(stderr)
    before, found, records = text.partition(HEADER)
    if not found:
        return text.strip()
    told = [_unescaped(m["text"]) for m in _RECORD.finditer(records) if m["stream"].lower() in _TOLD]
    after = _after(records)
    return "\n".join(part for part in (before.strip(), "".join(told).strip(), after.strip()) if part)


def text_of(content: bytes) -> str:
    """Bytes as text: UTF-16 by its zeros or its mark, UTF-8, else Windows' code page for Western Europe.

    Only what is shown to people depends on this guess; answers are ASCII.
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    if content[1::2].count(0) > len(content) // 4:
        return content.decode("utf-16-le", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _after(records: str) -> str:
    """What follows the records: a program that wrote to stderr itself."""
    return records.rpartition("</Objs>")[2] if "</Objs>" in records else ""


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda m: chr(int(m[1], 16)), unescape(text)).replace("\r\n", "\n")

"""Which tool printed an output, told by its content."""

from __future__ import annotations

import re

from labctl.model.reading import Capture
from workers.transfers import iperf3_json, iperf_csv
from workers.transfers.text import decode, error_text

_MARKS = (
    ("ntttcp-linux", r"NTTTCP for Linux|<ntttcp[rs]\b[^>]*version=\"[^\"]*linux|\"ntttcp[rs]\"\s*:\s*\{"),
    ("ntttcp-windows", r"Copyright Version \d|Bytes\(MEG\)|<ntttcp[rs]\b"),
    ("robocopy", r"ROBOCOPY\s+::"),
    ("smbclient", r"(?:putting|getting) file .* as .*\(|NT_STATUS_"),
    ("scp", r"\d%\s+\d[\d.]*\s*[KMGT]?B?\s+\d[\d.]*[KMGT]?B/s"),
    ("iperf3", r"iperf3(?:\.exe)?\s*:|iperf Done\.|Connecting to host|Accepted connection from|\bBitrate\b|^iperf 3\."),
    (
        "iperf2",
        r"Client connecting to|Server listening on (?:TCP|UDP) port \d+$|Server listening on .* with pid"
        r"|connected with .* port|\[ *\*\d+\]|\[SUM-\d+\]|\d\.\d{4} sec\b|iperf version 2",
    ),
    ("iperf3", r"\s(?:sender|receiver)\s*$"),
    ("iperf2", r"\[ *(?:\d+|SUM)\] +\d+\.\d+ *- *\d+\.\d+ sec"),
)
_COMMANDS = (
    ("iperf3", r"\biperf3\b"),
    ("iperf2", r"\biperf\b"),
    ("ntttcp-windows", r"\bntttcp\.exe\b"),
    ("ntttcp-linux", r"\bntttcp\b"),
    ("robocopy", r"\brobocopy\b"),
    ("smbclient", r"\bsmbclient\b"),
    ("scp", r"^\s*scp\b"),
)


def recognise(capture: Capture) -> str | None:
    """The name of the tool as readings have it, by the output, else by the recorded command; None when neither tells."""
    text = decode(capture.stdout).text
    if iperf3_json.find(text).documents:
        return "iperf3"
    if iperf_csv.is_csv(text):
        return "iperf2"
    both = f"{text}\n{error_text(capture.stderr)}"
    for name, pattern in _MARKS:
        if re.search(pattern, both, re.MULTILINE):
            return name
    return next((name for name, pattern in _COMMANDS if re.search(pattern, capture.command)), None)

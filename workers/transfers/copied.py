"""Parsers of tools that copy files: robocopy, smbclient, scp. Their sizes have binary prefixes throughout."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from labctl.model.reading import Capture, ErrorKind, Reading
from workers.transfers import failures
from workers.transfers.text import decode, error_text
from workers.transfers.units import NUMBER, number

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def _reading(tool: str, *, ok: bool = False) -> Reading:
    return Reading(tool=tool, ok=ok, intervals=None)


# robocopy: Windows' own folder copy. Labels are translated in other languages, the order of rows and columns is not.

_RULE = re.compile(r"^-{20,}\s*$", re.MULTILINE)
_CELL = r"(\d[\d.,]*(?: [kmgt])?)"
_ROW = re.compile(
    rf"^[^:\n]{{1,20}}:\s+{_CELL}\s+{_CELL}\s+{_CELL}\s+{_CELL}\s+{_CELL}\s+{_CELL}\s*$", re.MULTILINE | re.I
)
_TIMES = re.compile(r"^[^:\n]{1,20}:\s+(\d+:\d\d:\d\d)\b.*$", re.MULTILINE)
_SPEED = re.compile(r"^[^:\n]{1,30}:\s+(\d[\d.,\u00a0\u202f ]*\d|\d)\s+Bytes/", re.MULTILINE)
_CODE = re.compile(r"\b\w+ (\d{1,5}) \(0x[0-9A-Fa-f]{8}\)")
_LOST_CODES = frozenset({51, 53, 54, 55, 59, 64, 67, 121, 1225, 1231, 1232, 1236, 1396})
"""Windows system errors of a network path that is gone (winerror.h)."""


def parse_robocopy(capture: Capture) -> Reading:
    """The reading of robocopy's log. Never raises.

    `Copied` counts, not `Total`; exit codes from 8 on mean that something failed, 1 to 7 that something was done.
    """
    text = decode(capture.stdout).text
    reading = _reading("robocopy")
    summary = _RULE.split(text)[-1] if _RULE.search(text) else ""
    rows = _ROW.findall(summary)
    codes = {int(code) for code in _CODE.findall(text)}
    lost = bool(codes & _LOST_CODES)
    if len(rows) < 3:
        if not text.strip():
            return replace(reading, error_kind=ErrorKind.NO_DATA, error=error_text(capture.stderr).strip())
        known = "ROBOCOPY" in text or bool(_RULE.search(text))
        without = ErrorKind.TRUNCATED_OUTPUT if known else ErrorKind.UNPARSEABLE
        return replace(reading, error_kind=ErrorKind.CONNECTION_LOST if lost else without)
    _, files, sizes = rows[:3]
    copied, failed = _scaled(sizes[1]), _scaled(sizes[4])
    failed_files = _scaled(files[4])
    times = _TIMES.search(summary)
    seconds = _clock(times.group(1)) if times else None
    speed = _SPEED.search(summary)
    reading = replace(reading, streams=1, bytes=copied, seconds=seconds)
    if failed or failed_files or (capture.exit_code is not None and capture.exit_code >= 8):
        kind = ErrorKind.CONNECTION_LOST if lost else ErrorKind.NO_DATA if not copied else ErrorKind.TRUNCATED_OUTPUT
        return replace(reading, error_kind=kind, partial=copied > 0, error=_first_error(text))
    if not copied:
        return replace(reading, error_kind=ErrorKind.NO_DATA, warnings=("nothing_copied",))
    rate = _digits(speed.group(1)) * 8.0 if speed else copied * 8 / seconds if seconds else None
    exact = round(rate * seconds / 8) if rate and seconds else copied
    rounded = bool(re.search("[kmgt]", sizes[1], re.I))
    return replace(
        reading,
        ok=True,
        bits_per_second=rate,
        bytes=exact if rounded and abs(exact - copied) <= 0.02 * copied else copied,
        side="sender",
        warnings=("error_lines_present",) if codes else (),
    )


def _scaled(cell: str) -> int:
    """A size such as `2.857 g` or `3068403712`."""
    digits, _, unit = cell.lower().partition(" ")
    if not unit:
        return _digits(digits)
    return round(number(digits) * 1024.0 ** _POWERS[unit])


def _digits(printed: str) -> int:
    """A whole number with any separators of thousands."""
    return int(re.sub(r"\D", "", printed)[:18] or 0)


def _clock(printed: str) -> float:
    hours, minutes, seconds = printed.split(":")
    return int(hours[:9]) * 3600.0 + int(minutes) * 60.0 + int(seconds)


def _first_error(text: str) -> str:
    lines = text.split("\n")
    index = next((index for index, line in enumerate(lines) if _CODE.search(line)), None)
    return "" if index is None else " ".join(" ".join(lines[index : index + 2]).split())


# smbclient: Samba's FTP-like client. Rates of finished files are on standard error, failures on either stream.

_SMB_RATE = re.compile(
    rf"\b(?P<verb>putting|getting) file .*?(?:of size (?P<size>\d+) )?as .*?\((?P<rate>{NUMBER}) (?:kb/s|KiloBytes/sec)\)",
    re.IGNORECASE,
)
_SMB_STATUS = re.compile(r"NT_STATUS_[A-Z_]+")
_SMB_REFUSED = ("CONNECTION_REFUSED", "HOST_UNREACHABLE", "NETWORK_UNREACHABLE", "PORT_UNREACHABLE", "BAD_NETWORK_NAME")
_SMB_LOST = (
    "CONNECTION_DISCONNECTED",
    "CONNECTION_RESET",
    "CONNECTION_ABORTED",
    "IO_TIMEOUT",
    "NETWORK_NAME_DELETED",
    "LOCAL_DISCONNECT",
    "REMOTE_DISCONNECT",
    "END_OF_FILE",
)


def parse_smbclient(capture: Capture) -> Reading:
    """The reading of `smbclient -c 'put ...'` or `get`. Never raises. `kb/s` are KiB per second."""
    text = f"{decode(capture.stdout).text}\n{error_text(capture.stderr)}"
    reading = _reading("smbclient")
    rates = list(_SMB_RATE.finditer(text))
    statuses = _SMB_STATUS.findall(text)
    if statuses:
        said = " ".join(dict.fromkeys(statuses))
        return replace(reading, error_kind=_smb_kind(said), error=said, partial=bool(rates))
    if not rates:
        found = failures.fault(text)
        kind = ErrorKind.NO_DATA if found is None else failures.error_kind(found, moved=False, server=False)
        return replace(reading, error_kind=kind, error=text.strip()[:500])
    last = rates[-1]
    rate = number(last["rate"]) * 1024 * 8
    if not 0 < rate < 1e15:
        return replace(reading, error_kind=ErrorKind.NO_DATA, error=last.group())
    size = int(last["size"][:18]) if last["size"] else None
    return replace(
        reading,
        ok=True,
        bits_per_second=rate,
        side="sender" if last["verb"].lower() == "putting" else "receiver",
        bytes=size,
        seconds=size * 8 / rate if size else None,
        streams=1,
        warnings=("multiple_documents",) if len(rates) > 1 else (),
    )


def _smb_kind(said: str) -> ErrorKind:
    if any(status in said for status in _SMB_REFUSED):
        return ErrorKind.CONNECT_REFUSED
    return ErrorKind.CONNECTION_LOST if any(status in said for status in _SMB_LOST) else ErrorKind.NO_DATA


# scp: OpenSSH. With a terminal it redraws one progress line; without one it prints nothing, which is success.

_PROGRESS = re.compile(
    r"(?P<percent>\d{1,3})%\s+(?P<size>\d[\d.]*)\s*(?P<unit>[KMGTP]?B?)\s+(?P<rate>\d[\d.]*)(?P<rate_unit>[KMGTP]?B)/s"
    r"\s*(?P<rest>- stalled -|(?:[\d:]+|--:--)(?:\s+ETA)?)",
)


def parse_scp(capture: Capture) -> Reading:
    """The reading of scp's progress line. Never raises.

    Only the final line is a measurement: before it the rate column is a decaying average that stays above zero while
    nothing moves, so that a stall shows in the size column alone.
    """
    text = decode(capture.stdout).text
    said = f"{_PROGRESS.sub('', text)}\n{error_text(capture.stderr)}"
    reading = _reading("scp")
    updates = list(_PROGRESS.finditer(text))
    found = failures.fault("\n".join(line for line in re.split(r"[\r\n]+", said) if is_trouble(line)))
    if found is not None:
        began = bool(updates)
        kind = failures.error_kind(found, moved=began, server=False)
        if kind is ErrorKind.TRUNCATED_OUTPUT:
            kind = ErrorKind.NO_DATA
        lost = kind is ErrorKind.CONNECTION_LOST
        return replace(reading, error_kind=kind, partial=lost and began, error=" ".join(said.split())[-500:])
    if not updates:
        if capture.exit_code == 0 and not text.strip():
            return replace(reading, ok=True, side="sender", streams=1, warnings=("no_tool_rate",))
        return replace(reading, error_kind=ErrorKind.NO_DATA, error=" ".join(said.split())[-500:])
    last = updates[-1]
    warnings = ("stalled",) if _stalls(updates) else ()
    if last["percent"] != "100" or "ETA" in last["rest"] or "stalled" in last["rest"]:
        kind = ErrorKind.CONNECTION_LOST if "stalled" in last["rest"] else ErrorKind.TRUNCATED_OUTPUT
        return replace(reading, error_kind=kind, partial=True, warnings=warnings)
    size, rate = _amount(last["size"], last["unit"]), _amount(last["rate"], last["rate_unit"])
    if not rate:
        return replace(
            reading, ok=True, side="sender", streams=1, bytes=size or None, warnings=(*warnings, "no_tool_rate")
        )
    return replace(
        reading,
        ok=True,
        bits_per_second=rate * 8.0,
        side="sender",
        bytes=round(size),
        seconds=size / rate,
        streams=1,
        warnings=warnings,
    )


def is_trouble(line: str) -> bool:
    """Whether a line says that something failed; the rest of a progress line and banners don't."""
    return bool(
        re.search(
            r"lost connection|connection|broken pipe|disconnect|timed out|refused|denied|no such file|not known|no route"
            r"|unreachable|no space|resolve|failed|verification",
            line,
            re.IGNORECASE,
        )
    )


def _amount(printed: str, unit: str) -> int:
    return round(number(printed) * 1024.0 ** _POWERS[unit.lower().removesuffix("b")])


def _stalls(updates: list[re.Match[str]]) -> bool:
    """Whether nothing moved for several updates, which are a second apart."""
    if any("stalled" in one["rest"] for one in updates):
        return True
    same = 0
    for before, after in itertools.pairwise(updates):
        moving = before["size"] != after["size"] or before["unit"] != after["unit"] or after["percent"] == "100"
        same = 0 if moving else same + 1
        if same >= 3:
            return True
    return False

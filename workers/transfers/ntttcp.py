"""Parsers of NTttcp: ntttcp-for-linux (text, XML and JSON) and NTttcp for Windows (text and XML).

Both print `MB` and mean different things: 10^6 bytes on Linux, 2^20 on Windows. The senders' figures alone can't be
told from those of a transfer whose receiver died, so the receiver's are preferred.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass, field, replace

from lxml import etree

from labctl.model.reading import Capture, ErrorKind, Reading
from workers.transfers import failures
from workers.transfers.series import count, falls_short
from workers.transfers.text import decode, error_text
from workers.transfers.units import NUMBER, bits, number

LINUX = "ntttcp-linux"
WINDOWS = "ntttcp-windows"

REAL_TIME_SECONDS = 0.5
"""Between two `Real-time throughput` lines of ntttcp-for-linux."""


@dataclass(frozen=True, kw_only=True)
class _Totals:
    """The totals of one side. None is not printed."""

    receiver: bool
    bytes: int | None = None
    seconds: float | None = None
    bits_per_second: float | None = None
    retransmits: int | None = None
    streams: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Output:
    """What one side printed."""

    totals: _Totals | None = None
    version: str | None = None
    errors: tuple[str, ...] = ()
    trailing_zeros: bool = False
    began: bool = False
    cut: bool = False
    console: bool = False
    """Whether there is a console text, which shows how the transfer went, and not only its totals."""
    warnings: tuple[str, ...] = field(default=())


def parse_linux(capture: Capture) -> Reading:
    """The reading of what ntttcp-for-linux printed, or wrote with `-x`. Never raises."""
    own = _linux(
        decode(capture.stdout).text, error_text(capture.stderr), receiver=_is_receiver(capture), command=capture.command
    )
    peer = None
    if capture.server:
        peer = _linux(decode(capture.server).text, "", receiver=not _is_receiver(capture), command=capture.command)
    return _read(LINUX, own, peer, capture)


def parse_windows(capture: Capture) -> Reading:
    """The reading of what NTttcp for Windows printed, or wrote with `-xml`. Never raises."""
    own = _windows(decode(capture.stdout).text, error_text(capture.stderr), receiver=_is_receiver(capture))
    peer = _windows(decode(capture.server).text, "", receiver=not _is_receiver(capture)) if capture.server else None
    return _read(WINDOWS, own, peer, capture)


def is_windows(capture: Capture) -> bool:
    """Whether the output, else the command, is of the Windows form."""
    text = decode(capture.stdout).text
    if "NTTTCP for Linux" in text or re.search(r"\bversion\W{1,6}[\d.]*-linux\b", text):
        return False
    if re.search(r"Copyright Version \d|Bytes\(MEG\)|<ntttcp[rs]\b", text):
        return True
    return bool(re.search(r"\bntttcp\.exe\b", capture.command, re.IGNORECASE))


def _is_receiver(capture: Capture) -> bool:
    """By the command that was issued, because the output of Windows doesn't tell."""
    if re.search(r"(?:^|\s)-r\b", capture.command):
        return True
    if re.search(r"(?:^|\s)-s\b", capture.command):
        return False
    return capture.role in ("receiver", "server")


def _read(tool: str, own: _Output, peer: _Output | None, capture: Capture) -> Reading:
    both = [one.totals for one in (own, peer) if one is not None and one.totals is not None]
    warnings = list(own.warnings)
    if own.trailing_zeros or (peer is not None and peer.trailing_zeros):
        warnings.append("trailing_zero_rates")
    base = Reading(tool=tool, ok=False, tool_version=own.version, error="\n".join(own.errors)[:1000], intervals=None)
    kind = _problem(tool, own, peer)
    if own.errors and kind is None:
        warnings.append("error_lines_present")
    if own.totals is None:
        return replace(base, error_kind=kind or ErrorKind.NO_DATA, warnings=tuple(warnings))
    if not any(one.receiver for one in both) and tool == LINUX:
        warnings.append("receiver_result_missing")
    if len(both) == 2 and _apart(both[0].seconds, both[1].seconds):
        warnings.append("duration_mismatch")
    chosen = next((one for one in both if one.receiver), own.totals)
    if not chosen.bits_per_second:
        return replace(base, error_kind=kind or ErrorKind.NO_DATA, warnings=tuple(warnings))
    if kind is None and chosen.seconds is not None and falls_short(chosen.seconds, capture.requested_seconds):
        kind = ErrorKind.TRUNCATED_OUTPUT
    sender = next((one for one in both if not one.receiver), chosen)
    if own.errors and "error_lines_present" not in warnings:
        warnings.append("error_lines_present")
    return replace(
        base,
        ok=kind is None,
        error_kind=kind,
        partial=kind is not None,
        bits_per_second=chosen.bits_per_second,
        side="receiver" if chosen.receiver else "sender",
        bytes=chosen.bytes,
        seconds=chosen.seconds,
        streams=sender.streams or chosen.streams or own.totals.streams,
        retransmits=sender.retransmits,
        warnings=tuple(warnings),
    )


def _problem(tool: str, own: _Output, peer: _Output | None) -> ErrorKind | None:
    """Why the output is no result; None when nothing speaks against it."""
    if own.trailing_zeros or (peer is not None and peer.trailing_zeros):
        return ErrorKind.CONNECTION_LOST
    if own.errors and not _confirmed(own, peer):
        found = failures.fault("\n".join(own.errors)) or failures.Fault.OTHER
        moved = own.totals is not None
        if moved and found in (failures.Fault.OTHER, failures.Fault.NOT_CONNECTED, failures.Fault.REFUSED):
            return ErrorKind.CONNECTION_LOST
        return failures.error_kind(found, moved=moved, server=False)
    if own.totals is None or own.cut:
        return ErrorKind.TRUNCATED_OUTPUT if own.began or own.cut else ErrorKind.NO_DATA
    alone = tool == LINUX and not own.totals.receiver and (peer is None or peer.totals is None)
    # A sender's XML is the same whether the receiver lived or died.
    return ErrorKind.CONNECTION_LOST if alone and not own.console else None


def _confirmed(own: _Output, peer: _Output | None) -> bool:
    """Whether both sides moved the same bytes in the same time, so that an error at the close does not matter."""
    if own.totals is None or peer is None or peer.totals is None:
        return False
    mine, other = own.totals, peer.totals
    if not mine.bytes or not other.bytes or mine.seconds is None or other.seconds is None:
        return False
    return abs(mine.bytes - other.bytes) <= 0.05 * mine.bytes and not _apart(mine.seconds, other.seconds)


def _apart(first: float | None, second: float | None) -> bool:
    return first is not None and second is not None and abs(first - second) > 0.05 * max(first, second)


_LINUX_VERSION = re.compile(r"NTTTCP for Linux (\d[\w.]*)")
_REAL_TIME = re.compile(rf"Real-time throughput:\s*({NUMBER})\s*([KMGT]?bps)", re.IGNORECASE)
_LINUX_ERROR = re.compile(r"\bERR\s*:\s*(.*)$", re.MULTILINE)
# White space must follow, for a number that was cut has lost its last digits.
_LINUX_TOTAL = re.compile(
    rf"INFO:\s*(?P<name>test duration|total bytes|throughput|retrans segs)\s*:\s*(?P<value>{NUMBER})\s*(?P<unit>[A-Za-z]*)(?=\s)"
)


def _linux(text: str, errors: str, *, receiver: bool, command: str) -> _Output:
    console, xml = _split(text)
    console, document = _split_json(console) if not xml else (console, "")
    rates = [bits(value, unit.replace("bps", "bit")) for value, unit in _REAL_TIME.findall(console)]
    threads = re.search(r"(\d+) threads created", console)
    connections = re.search(r"(\d+) connections (?:created|tested)", console)
    version = _LINUX_VERSION.search(console)
    if xml:
        receiver = "<ntttcpr" in xml
    if document:
        receiver = '"ntttcpr"' in document
    totals = _xml_totals(xml, binary=False) if xml else _json_totals(document) if document else None
    if totals is not None and totals.streams is None:
        totals = replace(totals, streams=_asked_streams(command))
    if totals is None:
        streams = _asked_streams(command)
        if streams is None and connections:
            streams = int(connections.group(1))
        if streams is None and threads:
            streams = int(threads.group(1)) - (1 if receiver else 0)  # the receiver has one more thread, which accepts
        totals = _linux_totals(console, receiver=receiver, streams=streams)
    zeros = next((index for index, rate in enumerate(reversed(rates)) if rate > 0), len(rates))
    # ntttcp prints a dashed line when it ends; without it, it hung until somebody ended it.
    ended = bool(re.search(r"^-{10,}\s*\Z", console.rstrip() + "\n", re.MULTILINE))
    return _Output(
        totals=totals,
        version=version.group(1) if version else None,
        errors=tuple(_LINUX_ERROR.findall(console) + _LINUX_ERROR.findall(errors)),
        trailing_zeros=bool(rates) and (zeros >= 2 or (zeros == 1 and not ended)),
        began=bool(rates) or "Network activity" in console,
        cut=(bool(xml) and not re.search(r"</ntttcp[rs]>", xml)) or (bool(document) and totals is None),
        console=bool(console.strip()),
    )


def _asked_streams(command: str) -> int | None:
    match = re.search(r"(?:^|\s)-m\s+(\d+)", command)
    return int(match.group(1)) if match else None


def _linux_totals(console: str, *, receiver: bool, streams: int | None) -> _Totals | None:
    _, mark, after = console.rpartition("Totals:")
    if not mark:
        return None
    found = {match["name"]: match for match in _LINUX_TOTAL.finditer(after)}
    if "total bytes" not in found or "test duration" not in found:
        return None
    size, seconds = number(found["total bytes"]["value"]), number(found["test duration"]["value"])
    if not size >= 0 or not seconds > 0:
        return None
    repeats = found.get("retrans segs")
    return _Totals(
        receiver=receiver,
        bytes=int(size),
        seconds=seconds,
        bits_per_second=size * 8 / seconds,
        retransmits=count(number(repeats["value"])) if repeats else None,
        streams=streams,
    )


def _split(text: str) -> tuple[str, str]:
    """Console text and XML of an output that may hold either or both."""
    match = re.search(r"(?:<\?xml[^>]*\?>\s*)?<ntttcp[rs]\b.*?(?:</ntttcp[rs]>|\Z)", text, re.DOTALL)
    if match is None:
        return text, ""
    return text[: match.start()] + text[match.end() :], match.group()


_JSON = re.compile(r'\{\s*"ntttcp[rs]"\s*:')


def _split_json(text: str) -> tuple[str, str]:
    """Console text and the JSON document that it holds, written by `-j`; a cut one goes to the end of the text."""
    match = _JSON.search(text)
    if match is None:
        return text, ""
    try:
        _, end = json.JSONDecoder().raw_decode(text, match.start())
    except (ValueError, RecursionError):
        end = len(text)
    return text[: match.start()] + text[end:], text[match.start() : end]


def _json_totals(document: str) -> _Totals | None:
    """The totals of a whole document. All of its numbers are strings; `MB` is 10^6 bytes as in its XML."""
    try:
        found = json.loads(document)
    except (ValueError, RecursionError):
        return None
    name, root = next(iter(found.items()))
    if not isinstance(root, dict):
        return None
    size, seconds = _metric(root.get("totalBytes"), "MB"), _metric(root.get("realTime"), "s")
    rate = next((one for each in _list(root.get("throughputs")) if (one := _metric(each, "Bps")) is not None), None)
    if size is None or not seconds:
        return None
    threads = len(_list(root.get("threads")))
    return _Totals(
        receiver=name == "ntttcpr",
        bytes=round(size * 1e6),
        seconds=seconds,
        bits_per_second=rate * 8 if rate is not None else size * 8e6 / seconds,
        retransmits=count(_plain(root.get("packets_retransmitted"))),
        streams=threads or None,
    )


def _metric(found: object, metric: str) -> float | None:
    """The value of `{"metric": "s", "value": "1.206230"}`, where it is of this metric."""
    if not isinstance(found, dict) or found.get("metric") != metric:
        return None
    return _plain(found.get("value"))


def _plain(found: object) -> float | None:
    value = number(found) if isinstance(found, str) else math.nan
    return value if 0 <= value < 1e18 else None


def _list(found: object) -> list[object]:
    return found if isinstance(found, list) else []


def _xml_totals(xml: str, *, binary: bool) -> _Totals | None:
    """The totals are direct children of the root; threads have elements of the same names before them."""
    plain = re.sub(r"^<\?xml[^>]*\?>\s*", "", xml)
    parser = etree.XMLParser(recover=True, resolve_entities=False, no_network=True)
    try:
        root = etree.fromstring(plain, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None
    if root is None:
        return None
    million = 2.0**20 if binary else 1e6
    seconds = _child(root, "realtime", "s")
    size = _child(root, "total_bytes", "MB")
    exact, megabits = _child(root, "throughput", "Bps"), _child(root, "throughput", "mbps")
    rate = exact * 8 if exact is not None else megabits * 1e6 if megabits is not None else None
    if size is None or not seconds:
        return None
    threads = len(root.findall("thread"))
    connections = _child(root, "conns_tested", None)
    return _Totals(
        receiver=root.tag == "ntttcpr",
        bytes=round(size * million),
        seconds=seconds,
        bits_per_second=rate if rate is not None else size * million * 8 / seconds,
        retransmits=count(_child(root, "packets_retransmitted", None)),
        streams=int(connections) if connections else threads or None,
    )


def _child(root: etree._Element, name: str, metric: str | None) -> float | None:
    for one in root.findall(name):
        if one.get("metric") == metric:
            value = number(one.text or "")
            return value if value == value else None
    return None


_WINDOWS_VERSION = re.compile(r"Version (\d+\.\d+)")
_WINDOWS_ERROR = re.compile(r"^\s*ERROR\s*:\s*(.*)$", re.MULTILINE)
_THREAD = re.compile(rf"^\s*\d+\s+({NUMBER})\s+({NUMBER})\s+({NUMBER})\s*$", re.MULTILINE)


def _windows(text: str, errors: str, *, receiver: bool) -> _Output:
    console, xml = _split(text)
    version = _WINDOWS_VERSION.search(console)
    before, mark, after = console.partition("Totals:")
    threads = [number(rate) for _, rate, _ in _THREAD.findall(before)]
    totals = _xml_totals(xml, binary=True) if xml else None
    if totals is None and mark:
        totals = _windows_totals(after, receiver=receiver, streams=len(threads) or None)
    silent = bool(threads) and not any(threads) and totals is not None and bool(totals.bytes)
    return _Output(
        totals=totals,
        version=version.group(1) if version else None,
        errors=tuple(one.strip() for one in _WINDOWS_ERROR.findall(console) + _WINDOWS_ERROR.findall(errors)),
        began="Network activity" in console,
        cut=bool(mark) and totals is None,
        console=True,
        warnings=("per_thread_values_zero",) if silent else (),
    )


def _windows_totals(text: str, *, receiver: bool, streams: int | None) -> _Totals | None:
    """Titles stand on one line, a line of `=` below, values under it."""
    cells = _table(text)
    size, seconds = cells.get("Bytes(MEG)"), cells.get("realtime(s)")
    if size is None or not seconds:
        return None
    return _Totals(
        receiver=receiver,
        bytes=round(size * 2**20),
        seconds=seconds,
        bits_per_second=size * 2**20 * 8 / seconds,
        retransmits=count(cells.get("Retransmits")),
        streams=streams,
    )


def _table(text: str) -> dict[str, float]:
    """Cells by title. The groups of `=` give the columns, because titles have blanks in them."""
    lines = text.split("\n")
    cells: dict[str, float] = {}
    for titles, rule, values in zip(lines, lines[1:], lines[2:], strict=False):
        spans = [match.span() for match in re.finditer(r"=+", rule)]
        if not spans or rule.strip("= \t"):
            continue
        bounds = [0, *(end for _, end in spans)]
        names = [titles[start:end].strip() for start, end in itertools.pairwise(bounds)]
        printed = values.split()
        if len(printed) == len(names):
            cells.update(
                (name, value) for name, one in zip(names, printed, strict=True) if (value := number(one)) == value
            )
    return cells

"""`labctl parse`: the reading of a transfer tool's output that somebody already has."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from labctl.errors import SpecError
from labctl.model.reading import Capture, Direction, Interval, Reading, UdpCounts
from workers.transfers.recognise import recognise
from workers.transfers.registry import PARSERS, Parser, parser


@click.command("parse")
@click.argument("file")
@click.option("--tool", "tool_name", help=f"The tool that printed FILE: {', '.join(PARSERS)}. Guessed when left out.")
@click.option("--meta", help="JSON with command, exit_code, requested_seconds, role, stderr_file, peer_file.")
@click.option("--stderr", "stderr_path", help="What the tool printed to standard error.")
@click.option("--server", "server_path", help="What the other side's tool printed.")
@click.option("--json", "as_json", is_flag=True, help="The fields as JSON.")
def parse(
    file: str, tool_name: str | None, meta: str | None, stderr_path: str | None, server_path: str | None, as_json: bool
) -> None:
    """Print what the output of a transfer tool in FILE (`-` is standard input) says, and how far it can be trusted."""
    try:
        capture = _capture(file, meta=meta, stderr_path=stderr_path, server_path=server_path)
        reading = _parser(tool_name, capture)(capture)
    except SpecError as error:
        click.echo(f"labctl parse: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(json.dumps(as_fields(reading), indent=2) if as_json else "\n".join(as_lines(reading)))


def _parser(name: str | None, capture: Capture) -> Parser:
    guessed = name or recognise(capture)
    if guessed is None:
        raise SpecError(
            "The output doesn't tell which tool printed it.", todo=f"Say it with --tool: {', '.join(sorted(PARSERS))}."
        )
    return parser(guessed)


@dataclass(frozen=True, kw_only=True)
class _Meta:
    """What is known of an output beside the output itself."""

    values: Mapping[str, Any]
    folder: Path

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpecError(f"{key} in the meta file must be a number or null, not {value!r}.")
        return float(value)

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise SpecError(f"{key} in the meta file must be text, not {value!r}.")
        return value


def _capture(file: str, *, meta: str | None, stderr_path: str | None, server_path: str | None) -> Capture:
    known = _meta(meta, file)
    stdout = sys.stdin.buffer.read() if file == "-" else _read(Path(file))
    stderr, server = _beside(known, "stderr_file", stderr_path), _beside(known, "peer_file", server_path)
    exit_code = known.number("exit_code")
    return Capture(
        stdout=stdout,
        stderr=stderr or b"",
        server=server,
        exit_code=None if exit_code is None else int(exit_code),
        requested_seconds=known.number("requested_seconds"),
        role=known.text("role") or "",
        command=known.text("command") or "",
        elapsed=known.number("orchestrator_elapsed_seconds"),
    )


def _beside(known: _Meta, key: str, given: str | None) -> bytes | None:
    """The file that was named on the command line, else the one that the meta file names beside the output."""
    if given is not None:
        return _read(Path(given))
    name = known.text(key)
    return _read(known.folder / name) if name else None


def _meta(path: str | None, file: str) -> _Meta:
    if path is None:
        return _Meta(values={}, folder=Path())
    folder = Path(path).parent if file == "-" else Path(file).parent
    try:
        values = json.loads(_read(Path(path)))
    except ValueError as error:
        raise SpecError(f"{path} is no JSON.", why=str(error)) from error
    if not isinstance(values, dict):
        raise SpecError(f"{path} must hold a JSON object.")
    return _Meta(values=values, folder=folder)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path} can't be read.", why=error.strerror or str(error)) from error


def as_fields(reading: Reading) -> dict[str, Any]:
    """The reading with the names and shapes that programs get."""
    return {
        "tool": reading.tool,
        "tool_version": reading.tool_version,
        "ok": reading.ok,
        "error_kind": None if reading.error_kind is None else str(reading.error_kind),
        "error": reading.error,
        "partial": reading.partial,
        "bits_per_second": reading.bits_per_second,
        "side": reading.side,
        "bytes": reading.bytes,
        "seconds": reading.seconds,
        "streams": reading.streams,
        "retransmits": reading.retransmits,
        "intervals": _rows(reading.intervals),
        "reverse": None if reading.reverse is None else _direction(reading.reverse),
        "udp": None if reading.udp is None else _udp(reading.udp),
        "cpu_percent": dict(reading.cpu_percent),
        "warnings": list(reading.warnings),
        "documents": [as_fields(one) for one in reading.documents],
    }


def _rows(intervals: tuple[Interval, ...] | None) -> list[list[float]] | None:
    return None if intervals is None else [[one.start, one.end, one.bits_per_second] for one in intervals]


def _direction(reverse: Direction) -> dict[str, Any]:
    return {
        "bits_per_second": reverse.bits_per_second,
        "bytes": reverse.bytes,
        "seconds": reverse.seconds,
        "retransmits": reverse.retransmits,
        "intervals": _rows(reverse.intervals),
    }


def _udp(counts: UdpCounts) -> dict[str, Any]:
    return {
        "jitter_ms": counts.jitter_ms,
        "lost_packets": counts.lost_packets,
        "packets": counts.packets,
        "lost_percent": counts.lost_percent,
    }


def as_lines(reading: Reading) -> list[str]:
    """The reading for people. bit/s with decimal prefixes, bytes with binary ones."""
    version = f" {reading.tool_version}" if reading.tool_version else ""
    lines = [f"{reading.tool}{version}: {_verdict(reading)}"]
    if reading.bits_per_second is not None:
        side = f" at the {reading.side}" if reading.side else ""
        lines.append(f"  throughput   {_rate(reading.bits_per_second)}{side}{_streams(reading.streams)}")
    if reading.bytes is not None or reading.seconds is not None:
        lines.append(f"  moved        {_size(reading.bytes)} in {_seconds(reading.seconds)}")
    if reading.retransmits is not None:
        lines.append(f"  retransmits  {reading.retransmits} segments")
    if reading.reverse is not None and reading.reverse.bits_per_second is not None:
        lines.append(f"  reverse      {_rate(reading.reverse.bits_per_second)} (not included above)")
    if reading.udp is not None:
        lines.append(f"  datagrams    {_losses(reading.udp)}")
    if reading.intervals:
        rates = [one.bits_per_second for one in reading.intervals]
        lines.append(f"  intervals    {len(rates)}, from {_rate(min(rates))} to {_rate(max(rates))}")
    if reading.error:
        lines.append(f"  the tool     {' '.join(reading.error.split())[:200]}")
    if reading.warnings:
        lines.append(f"  warnings     {', '.join(reading.warnings)}")
    if reading.documents:
        lines.append(f"  documents    {len(reading.documents)}; above is the last that holds data")
        lines += [f"    {number}. {_document(one)}" for number, one in enumerate(reading.documents, start=1)]
    return lines


def _verdict(reading: Reading) -> str:
    if reading.ok:
        return "complete"
    partial = ", figures cover only a part" if reading.partial else ""
    if reading.error_kind is None:
        return f"not a result: a clock was set during the transfer{partial}"
    return f"not a result: {str(reading.error_kind).replace('_', ' ')}{partial}"


def _document(reading: Reading) -> str:
    rate = "no figure" if reading.bits_per_second is None else _rate(reading.bits_per_second)
    return f"{rate}, {_verdict(reading)}"


def _streams(streams: int | None) -> str:
    if streams is None:
        return ""
    return f", {streams} stream{'' if streams == 1 else 's'}"


def _rate(bits_per_second: float) -> str:
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if abs(bits_per_second) >= factor:
            return (
                f"{bits_per_second / factor:.4g} {unit}" if factor == 1e9 else f"{bits_per_second / factor:.1f} {unit}"
            )
    return f"{bits_per_second:.0f} bit/s"


def _size(size: int | None) -> str:
    return "an unknown size" if size is None else f"{size / 2**20:,.1f} MiB"


def _seconds(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else f"{seconds:.3f} s"


def _losses(counts: UdpCounts) -> str:
    if counts.lost_packets is None or counts.packets is None:
        loss = "loss unknown"
    else:
        percent = "" if counts.lost_percent is None else f" ({counts.lost_percent:.3g} %)"
        loss = f"{counts.lost_packets} of {counts.packets} lost{percent}"
    return loss if counts.jitter_ms is None else f"{loss}, jitter {counts.jitter_ms:.3f} ms"

"""iperf 2 (https://sourceforge.net/projects/iperf2/), releases 2.0.5 to 2.2: command lines and parser."""

from __future__ import annotations

from dataclasses import replace

from labctl.model.order import TransferOrder
from labctl.model.reading import Capture, ErrorKind, Reading
from labctl.model.tools import cannot
from workers.transfers import command_text, iperf_csv, iperf_text
from workers.transfers.base import Surroundings
from workers.transfers.failures import Fault, error_kind, fault
from workers.transfers.iperf_run import TOOL, Run, read
from workers.transfers.release import before, lacks, release
from workers.transfers.text import decode, error_text, one_line

MIN_INTERVAL = 0.005
"""Seconds between reports (SMALLEST_INTERVAL_SEC in iperf 2.1)."""
ENHANCED_SINCE = (2, 0, 8)
"""The first release that is known to have `-e`."""


class Iperf:
    """The transfer tool `iperf` (2.x).

    Both sides print text with `-e -f b`: times with four decimals and sizes in single bytes, where CSV of 2.1.8 rounds
    times to 0.1 s and plain text sizes to three digits; on a sending side it has retransmits too.
    """

    name = "iperf"
    server_ends = False
    timed = True

    def server_command(
        self, order: TransferOrder, *, port: int, server: str = "", version: str = ""
    ) -> tuple[str, ...]:
        """`iperf -s -p PORT -e -f b -i SECONDS ...`, then the order's server arguments. Both ends are given the socket's
        options, since each sets its own.

        It serves until it is ended with SIGTERM.
        """
        del server
        return ("iperf", "-s", "-p", str(port), *_common(order, version), *order.server_args)

    def client_command(self, order: TransferOrder, *, server: str, port: int, version: str = "") -> tuple[str, ...]:
        """`iperf -c SERVER -p PORT -t SECONDS -P STREAMS -e -f b ...`, then the order's client arguments."""
        command = ["iperf", "-c", server, "-p", str(port), "-t", f"{order.seconds:g}", "-P", str(order.streams)]
        command += _common(order, version)
        if order.rate is not None:
            command += ["-b", str(order.rate)]
        if order.both:
            command += ["--full-duplex"]
        elif order.reverse:
            command += ["-R"]
        return (*command, *order.client_args)

    def surroundings(self, order: TransferOrder, *, server: str, port: int) -> Surroundings:
        """Nothing."""
        del order, server, port
        return Surroundings()

    def unsupported(self, order: TransferOrder, version: str = "") -> str:
        """Why iperf, or this release of it, can't do this order; empty when it can."""
        if order.interval < MIN_INTERVAL:
            return f"iperf reports every {MIN_INTERVAL} s at most, not every {order.interval:g} s."
        if order.seconds <= 0:
            return f"iperf needs a time above 0, not {order.seconds:g} s."
        if order.protocol not in ("tcp", "udp"):
            return f"iperf transfers with tcp or udp, not {order.protocol}."
        return cannot(order) or lacks(self.name, order, version)

    def parse(self, capture: Capture) -> Reading:
        """The reading of what iperf printed as text or CSV, client or server side."""
        decoded = decode(capture.stdout)
        errors = error_text(capture.stderr)
        server = command_text.is_server(capture.role, capture.command)
        runs = _runs(decoded.text, errors, server=server, command=capture.command)
        peers = (
            _runs(decode(capture.server).text, "", server=not server, command=capture.command) if capture.server else []
        )
        if not runs:
            reading = _nothing(decoded.text, errors, server=server)
            silent = reading.error_kind in (ErrorKind.NO_DATA, ErrorKind.TRUNCATED_OUTPUT)
            if silent and peers:
                reading = _from_peer(reading, read(peers[-1], replace(capture, role="server", server=None)))
            return replace(reading, warnings=(*decoded.warnings, *reading.warnings))
        readings = [read(run, capture, _peer_of(run, peers, alone=len(runs) == 1)) for run in runs]
        chosen = next((one for one in reversed(readings) if one.bits_per_second is not None), readings[-1])
        several = len(readings) > 1
        warnings = (*decoded.warnings, *(["multiple_documents"] if several else []), *chosen.warnings)
        return replace(chosen, warnings=tuple(dict.fromkeys(warnings)), documents=tuple(readings) if several else ())


def _common(order: TransferOrder, version: str) -> list[str]:
    arguments = [] if before(release(version), ENHANCED_SINCE) else ["-e"]
    arguments += ["-f", "b", "-i", f"{order.interval:g}"]
    valued = {
        "-w": order.window,
        "-l": order.buffer,
        "-M": order.mss,
        "-Z": order.congestion or None,
        "-S": None if order.dscp is None else order.dscp << 2,
    }
    switches = {"-u": order.protocol == "udp", "-V": order.family == "ipv6"}
    arguments += [option for option, on in switches.items() if on]
    return arguments + [word for option, value in valued.items() if value is not None for word in (option, str(value))]


def _runs(text: str, errors: str, *, server: bool, command: str) -> list[Run]:
    if iperf_csv.is_csv(text):
        return iperf_csv.runs(text, errors, iperf_text.messages(text, errors), server=server, command=command)
    return iperf_text.runs(text, errors, server=server)


def _peer_of(run: Run, peers: list[Run], *, alone: bool) -> Run | None:
    """The other side's account of the same run: the one with the same client ports, else the only one."""
    same = [peer for peer in peers if peer.ports & run.ports]
    if same:
        return same[-1]
    unknown = [peer for peer in peers if not (peer.ports and run.ports)]
    return unknown[-1] if unknown and alone else None


def _nothing(text: str, errors: str, *, server: bool) -> Reading:
    """The reading of output without a row."""
    said = iperf_text.messages(text, errors) or iperf_text.messages("", one_line(errors))
    found = fault(said)
    if found is not None:
        kind = error_kind(found, moved=False, server=server)
    elif iperf_csv.is_csv(text) or iperf_text.is_cut(text):
        kind = ErrorKind.TRUNCATED_OUTPUT
    elif text.strip() and not _is_iperf(text):
        kind = ErrorKind.UNPARSEABLE
        said = text.strip()[:200]
    else:
        kind = ErrorKind.NO_DATA
        said = errors.strip()
    if found is Fault.OTHER:
        kind = ErrorKind.NO_DATA
    return Reading(tool=TOOL, ok=False, error_kind=kind, error=said[:1000], intervals=None)


def _is_iperf(text: str) -> bool:
    marks = ("Client connecting", "Server listening", "connected with", "iperf", "[ ID]", "Sending ")
    return any(mark in text for mark in marks)


def _from_peer(reading: Reading, peer: Reading) -> Reading:
    """What the server measured of a client that left nothing; still no complete result."""
    if peer.bits_per_second is None or peer.side != "receiver":
        return reading
    return replace(
        reading,
        partial=True,
        bits_per_second=peer.bits_per_second,
        side=peer.side,
        bytes=peer.bytes,
        seconds=peer.seconds,
        streams=peer.streams,
        intervals=peer.intervals,
        udp=peer.udp,
        warnings=(*reading.warnings, "figure_from_server"),
    )

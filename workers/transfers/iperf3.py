"""iperf3 (https://github.com/esnet/iperf), releases 3.0 to 3.2x: command lines and parser."""

from __future__ import annotations

from dataclasses import replace

from labctl.model.order import TransferOrder
from labctl.model.reading import Capture, ErrorKind, Reading
from labctl.model.tools import cannot
from workers.transfers import command_text, failures, iperf3_json, iperf3_text
from workers.transfers.base import Surroundings
from workers.transfers.iperf3_run import TOOL, Run, read, with_peer
from workers.transfers.release import before, lacks, release
from workers.transfers.rows_text import error_lines
from workers.transfers.text import decode, error_text, one_line

CONNECT_TIMEOUT_MS = 5000
CONNECT_TIMEOUT_SINCE = (3, 2)
"""The first release with `--connect-timeout` (RELNOTES.md)."""
MIN_INTERVAL = 0.1
"""Seconds; iperf3 refuses shorter report intervals (MIN_INTERVAL in its source)."""
MAX_STREAMS = 128
"""MAX_STREAMS in iperf3's source."""


class Iperf3:
    """The transfer tool `iperf3`. The server serves one client and ends."""

    name = "iperf3"
    server_ends = True
    timed = True

    def server_command(
        self, order: TransferOrder, *, port: int, server: str = "", version: str = ""
    ) -> tuple[str, ...]:
        """`iperf3 -s -1 -p PORT -J -i SECONDS`, then the order's server arguments, so that they win."""
        del server, version
        return ("iperf3", "-s", "-1", "-p", str(port), "-J", "-i", f"{order.interval:g}", *order.server_args)

    def client_command(self, order: TransferOrder, *, server: str, port: int, version: str = "") -> tuple[str, ...]:
        """`iperf3 -c SERVER -p PORT -t SECONDS ... -J`, then the order's client arguments, so that they win.

        Window, segment size, congestion control and DSCP are the client's to give: iperf3 hands them to the server. DSCP
        goes by `-S`, which every release has, as the upper six bits of the octet (RFC 2474).
        """
        command = ["iperf3", "-c", server, "-p", str(port), "-t", str(round(order.seconds))]
        command += ["-i", f"{order.interval:g}", "-J"]
        if not before(release(version), CONNECT_TIMEOUT_SINCE):
            command += ["--connect-timeout", str(CONNECT_TIMEOUT_MS)]
        command += ["-P", str(order.streams)]
        valued = {
            "-w": order.window,
            "-l": order.buffer,
            "-b": order.rate,
            "-M": order.mss,
            "-C": order.congestion or None,
            "-S": None if order.dscp is None else order.dscp << 2,
            "-O": round(order.omit) or None,
        }
        switches = {
            "-u": order.protocol == "udp",
            "-R": order.reverse and not order.both,
            "--bidir": order.both,
            "-6": order.family == "ipv6",
            "-Z": order.zerocopy,
        }
        command += [word for option, value in valued.items() if value is not None for word in (option, str(value))]
        command += [option for option, on in switches.items() if on]
        return (*command, *order.client_args)

    def surroundings(self, order: TransferOrder, *, server: str, port: int) -> Surroundings:
        """Nothing."""
        del order, server, port
        return Surroundings()

    def unsupported(self, order: TransferOrder, version: str = "") -> str:
        """Why iperf3, or this release of it, can't do this order; empty when it can."""
        if order.seconds != round(order.seconds) or order.seconds < 1:
            return f"iperf3 takes whole seconds only, not {order.seconds:g}."
        if order.interval < MIN_INTERVAL:
            return f"iperf3 reports every {MIN_INTERVAL} s at most, not every {order.interval:g} s."
        if order.streams > MAX_STREAMS:
            return f"iperf3 takes at most {MAX_STREAMS} streams, not {order.streams}."
        if order.protocol not in ("tcp", "udp"):
            return f"iperf3 is driven with tcp or udp here, not {order.protocol}."
        return cannot(order) or lacks(self.name, order, version)

    def parse(self, capture: Capture) -> Reading:
        """The reading of what iperf3 printed as JSON, JSON stream or text, client or server side."""
        decoded = decode(capture.stdout)
        errors = error_text(capture.stderr)
        server = command_text.is_server(capture.role, capture.command)
        runs, warnings, cut = _runs(decoded.text, errors, server=server, command=capture.command)
        peers = _peers(capture)
        if not runs:
            reading = replace(_nothing(decoded.text, errors, server=server, cut=cut), warnings=decoded.warnings)
            return with_peer(reading, read(peers[-1], replace(capture, role="server")), capture) if peers else reading
        readings = [read(run, capture, _peer_of(run, peers, alone=len(runs) == 1)) for run in runs]
        chosen = next((one for one in reversed(readings) if one.bits_per_second is not None), readings[-1])
        return replace(
            chosen,
            warnings=tuple(dict.fromkeys((*decoded.warnings, *warnings, *chosen.warnings))),
            documents=tuple(readings) if len(readings) > 1 else (),
        )


def _runs(text: str, errors: str, *, server: bool, command: str) -> tuple[list[Run], tuple[str, ...], bool]:
    """The runs, warnings about the output as a whole, and whether it was cut right at its start."""
    found = iperf3_json.find(text)
    if not found.documents:
        runs = [] if found.cut_at_start else iperf3_text.runs(text, errors, server=server, command=command)
        return runs, ("multiple_documents",) if len(runs) > 1 else (), found.cut_at_start
    runs = iperf3_json.runs(found, server=server)
    if runs and not runs[-1].complete and not runs[-1].error:
        runs[-1] = replace(runs[-1], error=error_lines(one_line(errors), "iperf3"))
    warnings = []
    if found.other_text_before:
        warnings.append("leading_text")
    if found.other_text_after:
        warnings.append("trailing_text")
    printed = sum(1 for document in found.documents if document.root.text("event") in (None, "start"))
    if printed > 1:
        warnings.append("multiple_documents")
    return runs, tuple(warnings), False


def _peers(capture: Capture) -> list[Run]:
    if not capture.server:
        return []
    return _runs(decode(capture.server).text, "", server=True, command="")[0]


def _peer_of(run: Run, peers: list[Run], *, alone: bool) -> Run | None:
    """The server's account of the same run: by cookie, else the last one with rows."""
    same = [peer for peer in peers if peer.cookie and peer.cookie == run.cookie]
    if same:
        return same[-1]
    unknown = [peer for peer in peers if peer.forward.rows and not (peer.cookie and run.cookie)]
    return unknown[-1] if unknown and alone else None


def _nothing(text: str, errors: str, *, server: bool, cut: bool) -> Reading:
    """The reading of output that holds no run."""
    said = error_lines(text, "iperf3") or error_lines(one_line(errors), "iperf3") or errors.strip()
    if not said and not cut and text.strip():
        found = failures.fault(text)
        if found in (None, failures.Fault.OTHER):
            return Reading(tool=TOOL, ok=False, error_kind=ErrorKind.UNPARSEABLE, error=text.strip()[:200])
        said = text.strip()
    if cut:
        kind = ErrorKind.TRUNCATED_OUTPUT
    elif said:
        kind = failures.error_kind(failures.fault(said) or failures.Fault.OTHER, moved=False, server=server)
    else:
        kind = ErrorKind.NO_DATA
    return Reading(tool=TOOL, ok=False, error_kind=kind, error=said[:1000])

"""NTttcp: command lines of NTttcp 5.x for Windows (https://github.com/microsoft/ntttcp) and of ntttcp-for-linux 1.4
(https://github.com/microsoft/ntttcp-for-linux).

The receiver listens, one port for each stream from the given one on, and one below it on which both ends agree when to
begin. The sender connects. Both print totals of their own.
"""

from __future__ import annotations

from dataclasses import replace

from labctl.model.lab import GuestSystem
from labctl.model.order import TransferOrder
from labctl.model.reading import Capture, Reading
from labctl.model.tools import cannot
from workers.transfers import ntttcp
from workers.transfers.base import Surroundings

# ntttcp-for-linux writes its exact totals to a file only, and opens it anew, so that its own standard output won't do.
# Argument: the file; then the command. The program's end by a signal is the shell's too, for both are of one session.
_WITH_XML = """
file=$1; shift
"$@" -x "$file"; code=$?
cat "$file" 2>/dev/null; rm -f "$file"
exit $code
"""


class Ntttcp:
    """The transfer tool `ntttcp`, in its Linux or Windows form as the endpoint's system says."""

    name = "ntttcp"
    server_ends = True
    timed = True

    def server_command(
        self, order: TransferOrder, *, port: int, server: str = "", version: str = ""
    ) -> tuple[str, ...]:
        """The receiver: `ntttcp -r -m STREAMS,*,ADDRESS -p PORT -t SECONDS ...`, then the order's server arguments."""
        del version
        return _command("-r", order, order.server_system, server, port, order.server_args)

    def client_command(self, order: TransferOrder, *, server: str, port: int, version: str = "") -> tuple[str, ...]:
        """The sender: the same with `-s`, then the order's client arguments."""
        del version
        return _command("-s", order, order.client_system, server, port, order.client_args)

    def surroundings(self, order: TransferOrder, *, server: str, port: int) -> Surroundings:
        """Nothing."""
        del order, server, port
        return Surroundings()

    def parse(self, capture: Capture) -> Reading:
        """The reading of what either form printed; the first line of the output, else the command, tells which."""
        if ntttcp.is_windows(capture):
            return ntttcp.parse_windows(capture)
        reading = ntttcp.parse_linux(capture)
        # The counter is the system's, of TCP: it says nothing of a UDP transfer.
        return replace(reading, retransmits=None) if capture.command.endswith((" -u", " -u -6")) else reading

    def unsupported(self, order: TransferOrder, version: str = "") -> str:
        """Why ntttcp can't do this order; empty when it can."""
        del version
        if order.seconds != round(order.seconds) or order.seconds < 1:
            return f"ntttcp takes whole seconds only, not {order.seconds:g}."
        return cannot(order)


def _command(
    role: str, order: TransferOrder, system: GuestSystem, server: str, port: int, more: tuple[str, ...]
) -> tuple[str, ...]:
    common = (role, "-m", f"{order.streams},*,{server}", "-p", str(port), "-t", str(round(order.seconds)))
    if system is GuestSystem.WINDOWS:
        return ("ntttcp.exe", *common, *_windows(role, order), *more)
    xml = f"/tmp/labctl-ntttcp-{port}{role}.xml"  # noqa: S108 - named by port, which is the transfer's own
    return ("/bin/sh", "-c", _WITH_XML, "labctl", xml, "ntttcp", *common, *_linux(role, order), *more)


def _linux(role: str, order: TransferOrder) -> list[str]:
    """`-V` prints throughput twice a second, by which a receiver that died is told from one that lived. The rate limit is
    one for all streams together."""
    words = ["-V", "--show-tcp-retrans"]
    if order.omit:
        words += ["-W", str(round(order.omit))]
    if order.buffer is not None:
        words += ["-b", str(order.buffer)]
    if order.rate is not None and role == "-s":
        words += ["--fq-rate-limit", str(order.rate * order.streams)]
    return words + _switches(order)


def _windows(role: str, order: TransferOrder) -> list[str]:
    """Rates are per thread, in KiB/s; `-nsb` has everything printed at once, also before a crash."""
    words = ["-nsb"]
    if order.omit:
        words += ["-wu", str(round(order.omit))]
    if order.buffer is not None:
        words += ["-l", str(order.buffer)]
    if order.window is not None:
        words += ["-sb" if role == "-s" else "-rb", str(order.window)]
    if order.rate is not None and role == "-s":
        words += ["-thr", str(max(1, round(order.rate / 8 / 1024)))]
    return words + _switches(order)


def _switches(order: TransferOrder) -> list[str]:
    return [option for option, on in (("-u", order.protocol == "udp"), ("-6", order.family == "ipv6")) if on]

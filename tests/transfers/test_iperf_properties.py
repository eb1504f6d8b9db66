"""What holds for every iperf 2 output, however it was cut, encoded or printed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.model.reading import Capture, ErrorKind, Reading
from tests.transfers.captured import Case, cases
from workers.transfers.registry import PARSERS

parse = PARSERS["iperf2"]
CASES = cases("iperf2")
ALONE = [
    case for case in CASES if case.expected["ok"] and case.capture.server is None and "documents" not in case.expected
]
"""Cases of one run that need no other side's output."""


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_encodings_and_line_ends_change_nothing(case: Case, encoding: str, end: str) -> None:
    """S9: also in what guests print."""
    text = case.capture.stdout.decode().replace("\r\n", "\n")
    reading = parse(replace(case.capture, stdout=text.replace("\n", end).encode(encoding)))
    assert replace(reading, warnings=()) == replace(parse(case.capture), warnings=())


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_cut_output_never_says_more_than_the_whole_one(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(ALONE))
    output = case.capture.stdout.rstrip()
    reading = parse(replace(case.capture, stdout=output[: data.draw(st.integers(0, len(output) - 1))]))
    whole = parse(case.capture)
    if reading.ok:  # cut behind the figures
        assert (reading.bits_per_second, reading.bytes) == (whole.bits_per_second, whole.bytes)
    assert whole.bytes is not None
    assert (reading.bytes or 0) <= whole.bytes * 1.01


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_never_raises(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    output = bytearray(case.capture.stdout)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(output)))
        output[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=20))
    parse(replace(case.capture, stdout=bytes(output)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000))
def test_garbage_is_no_result(output: bytes) -> None:
    assert not parse(Capture(stdout=output)).ok


HEAD = """------------------------------------------------------------
Client connecting to 10.9.0.2, TCP port 5001
TCP window size: 16.0 KByte (default)
------------------------------------------------------------
[  1] local 10.9.0.1 port 57481 connected with 10.9.0.2 port 5001
[ ID] Interval       Transfer     Bandwidth
"""


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("231 MBytes   949 Mbits/sec", 949e6),
        ("231 MBytes   113 MBytes/sec", 113 * 2**20 * 8),
        ("236544 KBytes   949375 Kbits/sec", 949.375e6),
        ("242221056 Bytes  949374576 bits/sec", 949374576),
        ("0.23 GBytes  0.95 Gbits/sec", 0.95e9),
        ("231 MBytes   949,4 Mbits/sec", 949.4e6),
    ],
)
def test_units(cells: str, expected: float) -> None:
    reading = parse(Capture(stdout=f"{HEAD}[  1] 0.0000-2.0411 sec  {cells}\n".encode()))
    assert reading.ok
    assert reading.bits_per_second == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("connect failed: Connection refused", ErrorKind.CONNECT_REFUSED),
        ("tcp connect failed: No route to host", ErrorKind.CONNECT_REFUSED),
        ("connect failed: Connection timed out", ErrorKind.CONNECT_REFUSED),
        ("tcp connect failed: Operation now in progress", ErrorKind.CONNECT_REFUSED),
        ("error: Name or service not known", ErrorKind.CONNECT_REFUSED),
        ("no.such.host: Host name lookup failure", ErrorKind.CONNECT_REFUSED),
        ("bind failed: Address already in use", ErrorKind.NO_DATA),
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_message_without_rows_names_the_cause(message: str, kind: ErrorKind, stream: str) -> None:
    capture = Capture(**{"stdout": b"", stream: f"{message}\n".encode()})  # type: ignore[arg-type]
    reading = parse(capture)
    assert (reading.ok, reading.error_kind, reading.bits_per_second) == (False, kind, None)


@pytest.mark.parametrize("message", ["write failed: Broken pipe", "write2 failed: Connection reset by peer"])
def test_a_lost_connection_behind_a_final_row(message: str) -> None:
    output = f"{HEAD}[  1] 0.0000-3.3000 sec   383 MBytes   973 Mbits/sec\n"
    reading = parse(Capture(stdout=output.encode(), stderr=message.encode(), requested_seconds=8))
    assert (reading.ok, reading.error_kind, reading.partial) == (False, ErrorKind.CONNECTION_LOST, True)
    assert reading.bits_per_second == pytest.approx(973e6, rel=0.005)


def test_a_lost_last_packet_is_no_lost_transfer() -> None:
    """The server's own rows confirm the client's bytes, so that the message is only a warning."""
    client = f"{HEAD}[  1] 0.0000-8.0100 sec   940 MBytes   985 Mbits/sec\n"
    server = (
        "Server listening on TCP port 5001\n"
        "[  1] local 10.9.0.2 port 5001 connected with 10.9.0.1 port 57481\n"
        "[  1] 0.0000-8.0000 sec   939 MBytes   985 Mbits/sec\n"
    )
    reading = parse(
        Capture(
            stdout=client.encode(),
            stderr=b"write failed: Connection reset by peer",
            server=server.encode(),
            requested_seconds=8,
        )
    )
    assert (reading.ok, reading.side, "error_lines_present" in reading.warnings) == (True, "receiver", True)


def test_retransmits_of_the_enhanced_report() -> None:
    output = HEAD.replace("Bandwidth", "Bandwidth       Write/Err  Rtry     Cwnd/RTT(var)        NetPwr") + (
        "[  1] 0.0000-1.0000 sec   119 MBytes   998 Mbits/sec  953/0         4     1234K/1234(12) us  12345\n"
        "[  1] 0.0000-1.0100 sec   119 MBytes   988 Mbits/sec  954/0         7     1234K/1234(12) us  12345\n"
    )
    assert parse(Capture(stdout=output.encode())).retransmits == 7


def test_udp_of_2_0_5_in_csv_is_the_receivers() -> None:
    output = (
        "20260101000000,10.0.0.1,40235,10.0.0.2,5001,3,0.0-10.0,1314180,1051344\n"
        "20260101000000,10.0.0.2,5001,10.0.0.1,40235,3,0.0-10.0,1312710,1050168,0.013,1,894,0.112,0\n"
    )
    reading = parse(Capture(stdout=output.encode(), requested_seconds=10, command="iperf -c 10.0.0.2 -u -y C"))
    assert (reading.ok, reading.side, reading.bits_per_second, reading.streams) == (True, "receiver", 1050168, 1)
    assert reading.udp is not None
    assert (reading.udp.lost_packets, reading.udp.packets) == (1, 894)


def test_fewer_streams_than_asked_for_are_no_result() -> None:
    (case,) = [one for one in CASES if one.expected["streams"] == 16]
    lines = case.capture.stdout.splitlines(keepends=True)
    reading = parse(replace(case.capture, stdout=b"".join(lines[:9]), server=None))
    assert (reading.ok, reading.error_kind, reading.partial) == (False, ErrorKind.TRUNCATED_OUTPUT, True)


WAITED = """------------------------------------------------------------
Client connecting to 198.18.4.11, TCP port 20000 with pid 71 (1 flows)
------------------------------------------------------------
[  1] local 198.18.4.10%eth0 port 40000 connected with 198.18.4.11 port 20000 (sock=3) (icwnd/mss/irtt=14/1448/55)
[ ID] Interval        Transfer    Bandwidth       Write/Err  Rtry     Cwnd/RTT(var)        NetPwr
[  1] 0.0000-5.0000 sec  312606780 Bytes  500170848 bits/sec  2385/0          0      350K/2086(17) us  29970
[  1] 5.0000-6.0269 sec  131072 Bytes  1021118 bits/sec  1/0          0      353K/2091(23) us  61.04
[  1] 0.0000-6.0269 sec  312737852 Bytes  415121636 bits/sec  2386/0          0      353K/2091(23) us  24816
"""
SERVED = """------------------------------------------------------------
Server listening on TCP port 20000 with pid 70
------------------------------------------------------------
[  1] local 198.18.4.11%eth0 port 20000 connected with 198.18.4.10 port 40000 (sock=4) (icwnd/mss/irtt=14/1448/60)
[ ID] Interval        Transfer    Bandwidth    Reads=Dist
[  1] 0.0000-5.0021 sec  312737852 Bytes  500166892 bits/sec    4369=1968:0:1:25:3:1:0:2371
"""


def waited(**other: float) -> Reading:
    known = {"requested_seconds": 5.0, "elapsed": 6.127} | other
    return parse(Capture(stdout=WAITED.encode(), server=SERVED.encode(), **known))  # type: ignore[arg-type]


def test_a_client_that_waits_for_the_end_of_its_connection_has_no_clock_that_jumped() -> None:
    """Measured: iperf 2.1.8 between two namespaces waited a second for the server to close."""
    reading = waited()
    assert (reading.ok, reading.partial, reading.warnings) == (True, False, ("irregular_intervals",))
    assert (reading.side, reading.seconds, reading.bits_per_second) == ("receiver", 5.0021, 500166892)


def test_a_client_that_claims_more_time_than_passed_has() -> None:
    assert "clock_jump" in waited(elapsed=5.2).warnings


def test_seconds_that_nobody_asked_for_explain_no_wait() -> None:
    assert "clock_jump" in waited(requested_seconds=8.0).warnings

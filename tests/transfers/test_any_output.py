"""What holds for every tool and every output that was cut, repeated or written anew on its way to the parser.

A figure is right, or it is flagged: by `ok`, by `partial`, or by a warning that the whole output doesn't have. And no parser
raises anything, whatever it is given.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.model.reading import Capture, Reading
from tests.transfers.captured import Case, cases
from workers.transfers.registry import PARSERS

CASES = [case for case in cases(*PARSERS) if case.capture.stdout]
WHOLE = [case for case in CASES if case.expected["ok"]]
TEXT = [case for case in CASES if case.capture.stdout[:2] != b"\xff\xfe"]
OTHERS = [case for case in TEXT if not case.expected["tool"].startswith("iperf")]
"""Cases of tools whose encodings are not tried elsewhere."""


def read(case: Case, capture: Capture) -> Reading:
    return PARSERS[case.expected["tool"]](capture)


def figures(case: Case) -> list[float]:
    """All figures that the whole output may rightly be said to hold."""
    reading = read(case, case.capture)
    found = [reading, *reading.documents]
    known = [one.bits_per_second for one in found if one.bits_per_second is not None]
    known += [one.reverse.bits_per_second for one in found if one.reverse is not None and one.reverse.bits_per_second]
    given = [case.expected["bits_per_second"], *case.expected.get("alternatives", [])]
    return [*known, *(float(one) for one in given if isinstance(one, int | float))]


def require_right_or_flagged(case: Case, reading: Reading) -> None:
    """A figure without a flag must be one of the whole output's."""
    if not reading.ok or reading.partial or reading.bits_per_second is None:
        return
    if set(reading.warnings) - set(read(case, case.capture).warnings):
        return
    tolerance = max(case.expected["rel_tol"], 1e-6)
    assert any(reading.bits_per_second == pytest.approx(one, rel=2 * tolerance) for one in figures(case)), reading


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_cut_output_is_right_or_flagged(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(WHOLE), label="case")
    at = data.draw(st.integers(0, len(case.capture.stdout)), label="at")
    require_right_or_flagged(case, read(case, replace(case.capture, stdout=case.capture.stdout[:at])))


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_an_output_that_was_cut_within_its_last_lines_is_right_or_flagged(case: Case) -> None:
    """Where totals stand, every byte is tried: a number that lost its last digits is the worst of all misreadings."""
    whole = case.capture.stdout
    for at in range(max(0, len(whole) - 260), len(whole)):
        require_right_or_flagged(case, read(case, replace(case.capture, stdout=whole[:at], server=None)))


@pytest.mark.parametrize("case", WHOLE, ids=str)
@pytest.mark.parametrize("between", [b"", b"\r\n"])
def test_an_output_that_was_kept_twice_is_right_or_flagged(case: Case, between: bytes) -> None:
    twice = case.capture.stdout + between + case.capture.stdout
    require_right_or_flagged(case, read(case, replace(case.capture, stdout=twice)))


@pytest.mark.parametrize("case", OTHERS, ids=str)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_another_encoding_changes_nothing(case: Case, encoding: str, end: str) -> None:
    """S9: also in what guests print."""
    text = case.capture.stdout.decode().replace("\r\n", "\n").replace("\n", end)
    reading = read(case, replace(case.capture, stdout=text.encode(encoding)))
    assert replace(reading, warnings=(), documents=()) == replace(read(case, case.capture), warnings=(), documents=())


@pytest.mark.parametrize("case", [case for case in TEXT if case.expected["ok"]], ids=str)
def test_decimal_commas_are_right_or_flagged(case: Case) -> None:
    commas = re.sub(rb"(?<=\d)\.(?=\d)", b",", case.capture.stdout)
    require_right_or_flagged(case, read(case, replace(case.capture, stdout=commas)))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_whatever_is_printed_nothing_is_raised(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES), label="case")
    other = data.draw(st.sampled_from(sorted(PARSERS)), label="parser")
    output = bytearray(case.capture.stdout)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(output)))
        output[at : at + data.draw(st.integers(0, 60))] = data.draw(st.binary(max_size=20))
    capture = replace(case.capture, stdout=bytes(output))
    PARSERS[other](capture)
    PARSERS[other](replace(capture, server=bytes(output), stderr=bytes(output[:500])))


STREAM_START = (
    b'{"event":"start","data":{"connected":[{"socket":5,"local_host":"a","local_port":1,"remote_host":"b","remote_port":2}],'
    b'"version":"iperf 3.18","test_start":{"protocol":"TCP","num_streams":1,"duration":%d}}}\n'
)
STREAM_ROW = (
    b'{"event":"interval","data":{"streams":[{"socket":5,"start":%d,"end":%d,"seconds":1.0,"bytes":125000000,'
    b'"bits_per_second":1e9,"retransmits":1,"snd_cwnd":344624,"rtt":48,"omitted":false,"sender":true}],'
    b'"sum":{"start":%d,"end":%d,"seconds":1.0,"bytes":125000000,"bits_per_second":1e9,"retransmits":1,'
    b'"omitted":false,"sender":true}}}\n'
)
STREAM_END = (
    b'{"event":"end","data":{"sum_sent":{"start":0,"end":%d,"seconds":%d,"bytes":%d,"bits_per_second":1e9,"retransmits":%d,'
    b'"sender":true},"sum_received":{"start":0,"end":%d,"seconds":%d,"bytes":%d,"bits_per_second":1e9,"sender":true}}}\n'
)


def stream(seconds: int) -> bytes:
    """A night of `iperf3 --json-stream`."""
    size = seconds * 125_000_000
    rows = b"".join(STREAM_ROW % (at, at + 1, at, at + 1) for at in range(seconds))
    end = STREAM_END % (seconds, seconds, size, seconds, seconds, seconds, size)
    return STREAM_START % seconds + rows + end


def test_a_long_stream_needs_little_memory_for_each_interval() -> None:
    """So many times what its text takes, with the result; `tests/benchmarks/parse_stream.py` does it with 100 MB."""
    import tracemalloc

    output = stream(5000)
    tracemalloc.start()
    reading = PARSERS["iperf3"](Capture(stdout=output))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (reading.ok, reading.bits_per_second, reading.retransmits) == (True, 1e9, 5000)
    assert len(reading.intervals or ()) == 5000
    assert peak < 5 * len(output), peak / len(output)

"""What holds for every iperf3 output, however it was cut, wrapped or encoded on its way."""

from __future__ import annotations

import codecs
import json
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.model.reading import Capture, ErrorKind
from tests.transfers.captured import Case, cases
from workers.transfers.registry import PARSERS

parse = PARSERS["iperf3"]
JSON_CASES = [case for case in cases("iperf3") if case.capture.stdout.lstrip().startswith(b"{")]
WHOLE = [case for case in JSON_CASES if case.expected["ok"] and "documents" not in case.expected]


def _is_plain_json(case: Case) -> bool:
    try:
        json.loads(case.capture.stdout)
    except ValueError:
        return False
    return True


PLAIN = [case for case in WHOLE if _is_plain_json(case)]


def test_the_cases_are_there() -> None:
    assert len(PLAIN) > 10


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_cut_document_is_never_a_result_and_keeps_only_complete_intervals(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(PLAIN))
    output = case.capture.stdout.rstrip()
    at = data.draw(st.integers(0, len(output) - 1))
    reading = parse(replace(case.capture, stdout=output[:at]))
    assert not reading.ok
    assert reading.error_kind is (ErrorKind.TRUNCATED_OUTPUT if output[:at].strip() else ErrorKind.NO_DATA)
    document = json.loads(output, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    rows = [row["sum"] for row in document["intervals"] if not row["sum"]["omitted"]]
    sums = list(accumulate((row["bytes"] for row in rows), initial=0))
    count = len(reading.intervals or ())
    assert (reading.bytes or 0) == sums[count]
    assert [one.end for one in reading.intervals or ()] == [row["end"] for row in rows[:count]]


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from(WHOLE),
    before=st.text(st.characters(exclude_characters="{}\x00\ufeff", exclude_categories=["Cs"]), max_size=200),
    after=st.text(st.characters(exclude_characters="{}\x00\ufeff", exclude_categories=["Cs"]), max_size=200),
)
def test_text_around_a_document_changes_nothing(case: Case, before: str, after: str) -> None:
    if case.capture.stdout.startswith(codecs.BOM_UTF16_LE):
        case = PLAIN[0]
    wrapped = replace(case.capture, stdout=before.encode() + b"\n" + case.capture.stdout + b"\n" + after.encode())
    assert replace(parse(wrapped), warnings=()) == replace(parse(case.capture), warnings=())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n"])
@pytest.mark.parametrize("case", JSON_CASES, ids=str)
def test_encodings_and_line_ends_change_nothing(case: Case, encoding: str, end: str) -> None:
    """S9: also in what guests print."""
    if case.capture.stdout.startswith(codecs.BOM_UTF16_LE):
        text = case.capture.stdout.decode("utf-16")
    else:
        text = case.capture.stdout.decode()
    encoded = text.replace("\r\n", "\n").replace("\n", end).encode(encoding)
    reading = parse(replace(case.capture, stdout=encoded))
    assert replace(reading, warnings=()) == replace(parse(case.capture), warnings=())


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_never_raises(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(cases("iperf3")))
    output = bytearray(case.capture.stdout)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(output)))
        length = data.draw(st.integers(0, 40))
        output[at : at + length] = data.draw(st.binary(max_size=20))
    parse(replace(case.capture, stdout=bytes(output)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000))
def test_garbage_is_no_result(output: bytes) -> None:
    assert not parse(Capture(stdout=output)).ok


def _document(**changes: object) -> dict[str, object]:
    document: dict[str, object] = json.loads(PLAIN[0].capture.stdout)
    document.update(changes)
    return document


@pytest.mark.parametrize(
    ("message", "role", "kind"),
    [
        ("unable to connect to server: Connection refused", "client", ErrorKind.CONNECTION_LOST),
        ("error - unable to receive control message: Connection reset by peer", "client", ErrorKind.CONNECTION_LOST),
        ("unable to write to stream socket: Broken pipe", "client", ErrorKind.CONNECTION_LOST),
        ("control socket has closed unexpectedly", "client", ErrorKind.CONNECTION_LOST),
        ("idle timeout for receiving data", "client", ErrorKind.CONNECTION_LOST),
        ("interrupt - the client has terminated by signal Terminated(15)", "client", ErrorKind.TRUNCATED_OUTPUT),
        ("error - the server has terminated", "client", ErrorKind.CONNECTION_LOST),
        ("something that nobody has seen yet", "client", ErrorKind.TRUNCATED_OUTPUT),
    ],
)
def test_an_error_after_data_is_named_by_its_cause(message: str, role: str, kind: ErrorKind) -> None:
    capture = Capture(stdout=json.dumps(_document(error=message)).encode(), role=role)
    reading = parse(capture)
    assert (reading.ok, reading.error_kind, reading.partial, reading.side) == (False, kind, True, "sender")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("the server is busy running a test. try again later", ErrorKind.SERVER_BUSY),
        ("unable to connect to server: Connection refused", ErrorKind.CONNECT_REFUSED),
        ("error - unable to connect to server: No route to host", ErrorKind.CONNECT_REFUSED),
        ("unable to connect to server: Connection timed out", ErrorKind.CONNECT_REFUSED),
        (
            "unable to connect to server - server may have stopped running or use a different port, firewall issue, etc.: "
            "Connection refused",
            ErrorKind.CONNECT_REFUSED,
        ),
        ("unable to connect to server: Name or service not known", ErrorKind.CONNECT_REFUSED),
        ("unable to receive control message: Connection reset by peer", ErrorKind.CONNECTION_LOST),
        ("test authorization failed", ErrorKind.NO_DATA),
    ],
)
@pytest.mark.parametrize("form", ["json", "stream", "stderr", "winrm"])
def test_an_error_before_data_is_named_by_its_cause(message: str, kind: ErrorKind, form: str) -> None:
    printed = f"iperf3: error - {message.removeprefix('error - ')}"
    capture = {
        "json": Capture(
            stdout=json.dumps({"start": {"connected": []}, "intervals": [], "end": {}, "error": message}).encode()
        ),
        "stream": Capture(
            stdout=b'{"event":"start","data":{"connected":[]}}\n'
            + json.dumps({"event": "error", "data": message}).encode()
            + b'\n{"event":"end","data":{}}\n'
        ),
        "stderr": Capture(stdout=b"", stderr=printed.encode()),
        "winrm": Capture(
            stdout=b"",
            stderr=(
                '#< CLIXML\r\n<Objs Version="1.1.0.1" xmlns="http://schemas.microsoft.com/powershell/2004/04">'
                f'<S S="Error">iperf3.exe : {printed[:50]}_x000D__x000A_</S>'
                f'<S S="Error">{printed[50:]}_x000D__x000A_</S>'
                '<S S="Error">    + CategoryInfo : NotSpecified_x000D__x000A_</S></Objs>'
            ).encode(),
        ),
    }[form]
    if form == "winrm" and not printed[50:51].isspace() and not printed[49:50].isspace():
        # A console breaks long messages anywhere; between words in this test.
        cut = printed.rfind(" ", 0, 50)
        text = capture.stderr.decode().replace(printed[:50], printed[:cut]).replace(printed[50:], printed[cut:])
        capture = replace(capture, stderr=text.encode())
    reading = parse(capture)
    assert (reading.ok, reading.error_kind, reading.partial) == (False, kind, False)
    assert reading.bits_per_second is None


def test_decimal_commas_in_json() -> None:
    case = PLAIN[0]
    text = case.capture.stdout.decode()
    commas = "".join(
        line.replace(".", ",") if line.strip().split(":")[-1].strip().rstrip(",").replace(".", "").isdigit() else line
        for line in text.splitlines(keepends=True)
    )
    assert commas != text
    reading = parse(replace(case.capture, stdout=commas.encode()))
    assert "json_repaired" in reading.warnings
    assert replace(reading, warnings=()) == replace(parse(case.capture), warnings=())


def test_duplicate_keys_of_any_value_are_kept_apart() -> None:
    (case,) = [one for one in JSON_CASES if "duplicate_keys" in one.expected["warnings"]]
    reading = parse(case.capture)
    assert reading.reverse is not None
    assert reading.reverse.bits_per_second != reading.bits_per_second


def test_a_wrapped_document_is_found() -> None:
    case = PLAIN[0]
    wrapped = b'{"changed": true, "rc": 0, "result": ' + case.capture.stdout + b"}"
    assert parse(replace(case.capture, stdout=wrapped)).bits_per_second == parse(case.capture).bits_per_second


def test_a_cut_document_before_a_whole_one() -> None:
    case = PLAIN[0]
    output = case.capture.stdout
    whole = parse(case.capture)
    for at in range(1, len(output), 97):
        reading = parse(replace(case.capture, stdout=output[:at].rstrip() + output))
        assert (reading.ok, reading.bits_per_second) == (True, whole.bits_per_second), at


def test_the_orchestrators_clock_unmasks_a_jump() -> None:
    case = PLAIN[0]
    reading = parse(replace(case.capture, elapsed=0.5))
    assert (reading.ok, reading.error_kind, reading.partial) == (False, None, True)
    assert "clock_jump" in reading.warnings


def test_a_run_shorter_than_asked_is_no_result() -> None:
    case = PLAIN[0]
    reading = parse(replace(case.capture, requested_seconds=60.0))
    assert (reading.ok, reading.error_kind, reading.partial) == (False, ErrorKind.TRUNCATED_OUTPUT, True)

"""What holds for every output of ntttcp and of the tools that copy files."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.model.reading import Capture, ErrorKind
from tests.transfers.captured import CAPTURES, Case, cases, load
from workers.transfers.registry import PARSERS

TOOLS = ("ntttcp-linux", "ntttcp-windows", "robocopy", "smbclient", "scp")
CASES = cases(*TOOLS)


def _case(name: str) -> Case:
    return load(next(CAPTURES.glob(f"{name}-*")))


@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_damage_never_raises(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    streams = {"stdout": bytearray(case.capture.stdout), "stderr": bytearray(case.capture.stderr)}
    for output in streams.values():
        for _ in range(data.draw(st.integers(0, 4))):
            at = data.draw(st.integers(0, len(output)))
            output[at : at + data.draw(st.integers(0, 60))] = data.draw(st.binary(max_size=20))
    PARSERS[case.expected["tool"]](
        replace(case.capture, stdout=bytes(streams["stdout"]), stderr=bytes(streams["stderr"]))
    )


@pytest.mark.parametrize("name", TOOLS)
def test_nothing_at_all_is_no_data(name: str) -> None:
    reading = PARSERS[name](Capture(stdout=b""))
    assert (reading.ok, reading.error_kind) == (False, ErrorKind.NO_DATA)


@pytest.mark.parametrize("case", [case for case in CASES if case.expected["ok"] and case.capture.stdout], ids=str)
def test_a_cut_output_is_no_result(case: Case) -> None:
    """Cut in the middle, before any of these tools prints its totals."""
    reading = PARSERS[case.expected["tool"]](
        replace(case.capture, stdout=case.capture.stdout[: len(case.capture.stdout) // 3], stderr=b"", server=None)
    )
    assert not reading.ok


def test_xml_of_a_sender_alone_is_no_result() -> None:
    """It looks the same whether the receiver lived or died."""
    xml = (_case("72").folder / "input.xml").read_bytes()
    reading = PARSERS["ntttcp-linux"](replace(_case("72").capture, stdout=xml))
    assert (reading.ok, reading.error_kind, reading.partial) == (False, ErrorKind.CONNECTION_LOST, True)
    assert "receiver_result_missing" in reading.warnings
    assert reading.bits_per_second == pytest.approx(485451124.016)


def test_an_error_at_the_close_of_windows_ntttcp_doesnt_matter_when_both_sides_agree() -> None:
    lost = _case("82").capture
    sender = lost.stdout.replace(b"ERROR: DoSendsReceives failed: Unexpected disconnect\r\n", b"").replace(
        b"ERROR: DoWork failed: error in send/recv\r\n", b""
    )
    assert b"ERROR" not in sender
    reading = PARSERS["ntttcp-windows"](replace(lost, server=sender))
    assert (reading.ok, "error_lines_present" in reading.warnings) == (True, True)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("failed to connect to receiver: 10.9.0.2:5000 on socket: 3. errno = 110", ErrorKind.CONNECT_REFUSED),
        ("sender: receiver is busy with another test", ErrorKind.SERVER_BUSY),
    ],
)
def test_errors_of_linux_ntttcp(line: str, kind: ErrorKind) -> None:
    output = f"NTTTCP for Linux 1.4.0\n---------\n13:36:47 ERR : {line}\n"
    reading = PARSERS["ntttcp-linux"](Capture(stdout=output.encode()))
    assert (reading.ok, reading.error_kind, reading.tool_version) == (False, kind, "1.4.0")


def test_robocopy_in_another_language_with_separators() -> None:
    english = _case("84").capture.stdout.decode()
    german = (
        english.replace("Speed :", "Geschwindigkeit:").replace("Bytes/sec.", "Bytes/Sek.")
        .replace("109585846", "109.585.846").replace("Files :", "Dateien:").replace("Times :", "Zeiten:")
        .replace("2.857 g", "3068403712")
    )  # fmt: skip
    reading = PARSERS["robocopy"](Capture(stdout=german.encode("utf-16"), exit_code=1))
    assert (reading.ok, reading.bits_per_second, reading.bytes) == (True, 876686768, 3068403712)


@pytest.mark.parametrize("code", [53, 59, 64, 121, 1231])
def test_robocopy_names_a_lost_path_by_its_code(code: int) -> None:
    output = _case("87").capture.stdout.replace(b"ERROR 64 (0x00000040)", f"FEHLER {code} (0x{code:08X})".encode())
    reading = PARSERS["robocopy"](replace(_case("87").capture, stdout=output))
    assert (reading.ok, reading.error_kind) == (False, ErrorKind.CONNECTION_LOST)


def test_robocopy_that_had_nothing_to_do_copied_nothing() -> None:
    output = _case("84").capture.stdout.replace(b"2.857 g   2.857 g         0", b"2.857 g         0   2.857 g")
    reading = PARSERS["robocopy"](Capture(stdout=output, exit_code=0))
    assert (reading.ok, reading.error_kind, reading.warnings) == (False, ErrorKind.NO_DATA, ("nothing_copied",))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("NT_STATUS_CONNECTION_REFUSED", ErrorKind.CONNECT_REFUSED),
        ("NT_STATUS_HOST_UNREACHABLE", ErrorKind.CONNECT_REFUSED),
        ("NT_STATUS_IO_TIMEOUT", ErrorKind.CONNECTION_LOST),
        ("NT_STATUS_LOGON_FAILURE", ErrorKind.NO_DATA),
        ("NT_STATUS_OBJECT_NAME_NOT_FOUND", ErrorKind.NO_DATA),
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_smbclient_names_the_cause_on_either_stream(status: str, kind: ErrorKind, stream: str) -> None:
    capture = replace(Capture(stdout=b""), **{stream: f"do_connect: failed (Error {status})\n".encode()})
    reading = PARSERS["smbclient"](capture)
    assert (reading.ok, reading.error_kind) == (False, kind)


def test_smbclient_get_is_the_receivers_and_has_a_size() -> None:
    line = (
        "getting file \\f300.bin of size 314572800 as f300.bin (114456.0 KiloBytes/sec) (average 1.0 KiloBytes/sec)\n"
    )
    reading = PARSERS["smbclient"](Capture(stdout=b"", stderr=line.encode()))
    assert (reading.ok, reading.side, reading.bytes, reading.bits_per_second) == (
        True,
        "receiver",
        314572800,
        937623552,
    )
    assert reading.seconds == pytest.approx(2.684, rel=1e-3)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (
            "ssh: connect to host 10.9.0.2 port 22: Connection refused\r\nscp: Connection closed",
            ErrorKind.CONNECT_REFUSED,
        ),
        ("ssh: Could not resolve hostname nowhere: Name or service not known", ErrorKind.CONNECT_REFUSED),
        ("root@10.9.0.2: Permission denied (publickey).", ErrorKind.NO_DATA),
        ("Host key verification failed.", ErrorKind.NO_DATA),
        ('scp: stat local "f": No such file or directory', ErrorKind.NO_DATA),
    ],
)
def test_scp_names_the_cause(message: str, kind: ErrorKind) -> None:
    reading = PARSERS["scp"](Capture(stdout=b"", stderr=message.encode(), exit_code=255))
    assert (reading.ok, reading.error_kind) == (False, kind)


def test_scp_that_ended_before_its_final_line() -> None:
    case = _case("92")
    updates = case.capture.stdout.split(b"\r")
    reading = PARSERS["scp"](replace(case.capture, stdout=b"\r".join(updates[:8]), exit_code=143))
    assert (reading.ok, reading.error_kind, reading.bits_per_second) == (False, ErrorKind.CONNECTION_LOST, None)

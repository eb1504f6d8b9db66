"""Command lines of NTttcp on both systems, and which of its forms an output is of."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from labctl.model.lab import GuestSystem
from labctl.model.order import TransferOrder
from labctl.model.reading import Capture, ErrorKind
from tests.transfers.captured import CAPTURES, Case, cases, load
from workers.transfers.registry import TOOLS

NTTTCP = TOOLS["ntttcp"]
ORDER = TransferOrder(tool="ntttcp", seconds=10.0, interval=1.0, streams=4)
WINDOWS = replace(ORDER, sender_system=GuestSystem.WINDOWS, receiver_system=GuestSystem.WINDOWS)
SETTINGS = {"omit": 2.0, "buffer": 65536, "rate": 8_192_000, "family": "ipv6"}


def _words(order: TransferOrder) -> tuple[str, str]:
    client = NTTTCP.client_command(order, server="10.0.0.2", port=20_000)
    server = NTTTCP.server_command(order, server="10.0.0.2", port=20_000)
    return " ".join(client[client[0] == "/bin/sh" and 5 :]), " ".join(server[server[0] == "/bin/sh" and 5 :])


def test_on_linux() -> None:
    order = replace(ORDER, client_args=("--no-delay",), **SETTINGS)  # type: ignore[arg-type]
    common = "-m 4,*,10.0.0.2 -p 20000 -t 10 -V --show-tcp-retrans -W 2 -b 65536"
    assert _words(order) == (
        f"ntttcp -s {common} --fq-rate-limit 32768000 -6 --no-delay",
        f"ntttcp -r {common} -6",
    )


def test_on_windows() -> None:
    order = replace(WINDOWS, window=262_144, **SETTINGS)  # type: ignore[arg-type]
    common = "-m 4,*,10.0.0.2 -p 20000 -t 10 -nsb -wu 2 -l 65536"
    assert _words(order) == (
        f"ntttcp.exe -s {common} -sb 262144 -thr 1000 -6",
        f"ntttcp.exe -r {common} -rb 262144 -6",
    )


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (replace(ORDER, seconds=2.5), "whole seconds"),
        (replace(ORDER, reverse=True), "no direction reverse"),
        (replace(ORDER, both=True), "no direction both"),
        (replace(ORDER, streams=65), "a port for each stream"),
        (replace(ORDER, window=65536), "socket buffers"),
        (replace(ORDER, protocol="udp", rate=1_000_000), "TCP only"),
        (replace(ORDER, receiver_system=GuestSystem.WINDOWS), "don't understand each other"),
        (replace(WINDOWS, mss=1000), "largest segment"),
        (replace(WINDOWS, congestion="cubic"), "congestion control"),
        (replace(WINDOWS, dscp=46), "DSCP"),
        (replace(WINDOWS, omit=0.5), "whole seconds of omit"),
    ],
)
def test_what_it_cant_do_is_said(order: TransferOrder, words: str) -> None:
    assert words in NTTTCP.unsupported(order)
    assert NTTTCP.unsupported(ORDER) == NTTTCP.unsupported(replace(WINDOWS, window=65536)) == ""


@pytest.mark.parametrize("case", cases("ntttcp-linux", "ntttcp-windows"), ids=str)
def test_the_form_is_told_by_the_output(case: Case) -> None:
    assert NTTTCP.parse(case.capture).tool == case.expected["tool"]


def _json_case() -> Case:
    return load(next(CAPTURES.glob("108-*")))


def test_json_in_the_middle_of_console_text() -> None:
    case = _json_case()
    text = b"NTTTCP for Linux 1.4.3\n--------\n" + case.capture.stdout + b"---------------------\n"
    reading = NTTTCP.parse(replace(case.capture, stdout=text))
    assert reading.ok
    assert reading.bytes == case.expected["bytes"]
    assert reading.tool_version == "1.4.3"


def test_a_cut_json_document_is_no_result() -> None:
    case = _json_case()
    for at in range(30, len(case.capture.stdout) - 2, 97):
        reading = NTTTCP.parse(replace(case.capture, stdout=case.capture.stdout[:at], server=None))
        assert (reading.ok, reading.error_kind) == (False, ErrorKind.TRUNCATED_OUTPUT), at


@pytest.mark.parametrize(
    "document", [{"ntttcps": 1}, {"ntttcps": {"totalBytes": "x"}}, {"ntttcpr": {"throughputs": 3}}]
)
def test_other_json_is_no_result(document: object) -> None:
    assert not NTTTCP.parse(Capture(stdout=json.dumps(document).encode())).ok


def test_retransmits_of_the_system_are_none_of_a_udp_transfer() -> None:
    case = _json_case()
    assert NTTTCP.parse(replace(case.capture, command=f"{case.capture.command} -u")).retransmits is None

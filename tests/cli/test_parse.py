"""`labctl parse` as people and programs call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.transfers.captured import CAPTURES, Case, cases, output_file
from workers.cli.parse import parse
from workers.transfers.registry import PARSERS

FIELDS = {
    "tool", "tool_version", "ok", "error_kind", "partial", "bits_per_second", "side", "bytes", "seconds", "streams",
    "retransmits", "intervals", "reverse", "udp", "warnings", "documents",
}  # fmt: skip


def call(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(parse, [str(one) for one in arguments], input=stdin)


@pytest.mark.parametrize("case", cases(*PARSERS), ids=str)
def test_every_case_is_read_with_its_meta_file(case: Case) -> None:
    result = call(
        "--tool", case.expected["tool"], output_file(case.folder), "--meta", case.folder / "meta.json", "--json"
    )
    assert result.exit_code == 0, result.output
    fields = json.loads(result.output)
    assert set(fields) >= FIELDS
    for name in ("tool", "ok", "error_kind", "partial", "side", "streams", "retransmits"):
        assert fields[name] == case.expected[name] or fields[name] in case.expected.get("alternatives", []), name
    rates = [case.expected["bits_per_second"], *case.expected.get("alternatives", [])]
    numbers = [one for one in rates if isinstance(one, int | float)]
    if fields["bits_per_second"] is None:
        assert numbers == []
    else:
        tolerance = case.expected["rel_tol"]
        assert any(fields["bits_per_second"] == pytest.approx(one, rel=tolerance) for one in numbers)


@pytest.mark.parametrize("case", cases(*PARSERS), ids=str)
def test_the_tool_is_guessed(case: Case) -> None:
    result = call(output_file(case.folder), "--meta", case.folder / "meta.json", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["tool"] == case.expected["tool"]


def test_files_named_in_the_meta_file_are_beside_the_output() -> None:
    folder = CAPTURES / "47-iperf2-p16-csv-without-sum"
    with_peer = json.loads(call(output_file(folder), "--meta", folder / "meta.json", "--json").output)
    alone = json.loads(call(output_file(folder), "--json").output)
    given = json.loads(call(output_file(folder), "--server", folder / "input.server.txt", "--json").output)
    assert (with_peer["side"], alone["side"], given["side"]) == ("receiver", "sender", "receiver")


def test_standard_error_changes_the_reading() -> None:
    folder = CAPTURES / "54-iperf2-server-killed-looks-complete"
    result = call(output_file(folder), "--tool", "iperf", "--stderr", folder / "input.stderr.txt", "--json")
    assert json.loads(result.output)["error_kind"] == "connection_lost"


def test_standard_input() -> None:
    folder = CAPTURES / "18-iperf3-udp-loss-sum-is-sender"
    result = call("-", stdin=output_file(folder).read_bytes())
    assert result.exit_code == 0
    assert "652.3 Mbit/s at the receiver, 1 stream" in result.output
    assert "29875 of 199021 lost (15 %), jitter 0.005 ms" in result.output


def test_people_are_told_how_far_a_figure_can_be_trusted() -> None:
    folder = CAPTURES / "05-iperf3-server-sigterm-rate-above-line"
    output = call(output_file(folder), "--meta", folder / "meta.json").output
    assert "not a result: connection lost, figures cover only a part" in output
    assert "971.6 Mbit/s at the sender, 2 streams" in output
    assert "sum_sent_bytes_and_seconds_disagree" in output


def test_a_reading_that_is_no_result_is_still_a_reading() -> None:
    result = call("--tool", "iperf3", "-", "--json", stdin=b"")
    assert result.exit_code == 0
    assert json.loads(result.output)["error_kind"] == "no_data"


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["/does/not/exist"], None, ["/does/not/exist", "No such file"]),
        (["-", "--tool", "iperf4"], b"x", ["no tool 'iperf4'", "iperf3"]),
        (["-"], b"hello", ["doesn't tell which tool", "--tool"]),
        (["-", "--tool", "iperf3", "--meta", "/does/not/exist"], b"", ["/does/not/exist"]),
        (["-", "--tool", "iperf3", "--server", "/does/not/exist"], b"", ["/does/not/exist"]),
    ],
)
def test_bad_input_is_refused(arguments: list[str], stdin: bytes | None, words: list[str]) -> None:
    result = call(*arguments, stdin=stdin)
    assert result.exit_code == 2
    assert all(word in result.output for word in words), result.output


@pytest.mark.parametrize(
    "text",
    ["[1]", "{", '{"requested_seconds": "4"}', '{"requested_seconds": true}', '{"role": 3}', '{"peer_file": "gone"}'],
)
def test_a_wrong_meta_file_is_refused(tmp_path: Path, text: str) -> None:
    meta = tmp_path / "meta.json"
    meta.write_text(text)
    output = tmp_path / "out.txt"
    output.write_text("")
    result = call(output, "--tool", "iperf3", "--meta", meta)
    assert result.exit_code == 2, result.output

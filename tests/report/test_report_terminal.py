from __future__ import annotations

import io

import pytest
from rich.console import Console

from labctl.model.result import CampaignRecord
from labctl.report import print_terminal
from labctl.report.data import report_of
from tests.report.records import demo_campaign, matrix_record, published_campaign


def _printed(record: CampaignRecord, *, width: int = 180) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_terminal(record, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().replace("\N{NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-")


def test_shows_every_cell_with_unit_count_interval_and_change() -> None:
    text = _printed(matrix_record())
    lines = [line for line in text.splitlines() if line.strip().startswith("cross-host")]
    assert len(lines) == 5
    rtl8139 = next(line for line in lines if "rtl8139" in line)
    assert "161 Mbit/s" in rtl8139
    assert "94.7 to 228 Mbit/s" in rtl8139
    assert "2 of 3" in rtl8139
    assert "-77.8 % (-83.4 to -70.3)" in rtl8139


def test_shows_flags_migrations_holes_and_faults() -> None:
    record = matrix_record()
    text = _printed(record, width=240)
    for flag in {flag.kind for row in report_of(record).rows for flag in row.flags}:
        assert f"{flag}: " in text
    assert "2.60 s, until the end of the record" in text
    assert "no measure of the gap that traffic saw" in text
    assert "A VM with vt-d can't migrate. (during-migration · vt-d)" in text
    assert "system under test: connection-lost (1 attempt)" in text
    assert "lab: boot-timeout on host b (4 attempts, 3 cured by a later attempt)" in text
    assert "to do: See the serial console" in text


def test_shows_claims_with_their_numbers() -> None:
    text = _printed(matrix_record(published_campaign(), troubles=False))
    assert "holds: emulated adapters are much slower than virtio or VT-d" in text
    assert "not measured: rtl8139 against vt-d; e1000 against vt-d" in text


def test_lists_what_is_missing_and_cuts_long_lists() -> None:
    text = _printed(matrix_record(share=0.0))
    assert "Nothing can be said yet" in text
    assert "same-host · virtio: 0 of 3 runs done" in text
    assert "and 8 more cells" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = _printed(matrix_record(), width=width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_markup_in_names_is_text() -> None:
    text = _printed(matrix_record(demo_campaign(question="[red]what[/red] [/nonsense]?"), troubles=False))
    assert "[red]what[/red] [/nonsense]?" in text

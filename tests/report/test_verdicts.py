"""What the user expects, from the files to every format; and figures above what the path carries."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from labctl.errors import SpecError
from labctl.model.campaign import Campaign, Expectation
from labctl.report import print_terminal, to_csv, to_markdown
from labctl.report.data import report_of
from labctl.report.html import render_html
from labctl.spec.campaign import parse_campaign
from labctl.spec.cross_check import cross_check
from labctl.spec.lab import parse_lab
from tests.report.records import demo_campaign, matrix_record

CAMPAIGN = """
campaign: expected
scenarios: [same-host, cross-host]
factors: {nic_model: [virtio, e1000]}
expect:
  - {of: speed, excellent: 95%, where: {scenario: cross-host}}
  - {of: 40G}
"""
TWO = """
lab: two
hosts: {a: {hypervisor: kvm, uri: "qemu+ssh://a/system"}, b: {hypervisor: kvm, uri: "qemu+ssh://b/system"}}
networks: {data: {bridge: br0, guest_range: [192.0.2.10, 192.0.2.20]}}
images: {probe: {kind: disk, disk: /images/probe.qcow2}}
"""
LAB = {"networks": {"data": {"speed": 2e9}}, "test_network": "data"}


def expecting() -> Campaign:
    return demo_campaign(expectations=(Expectation(of=4_000_000_000),))


def test_a_campaign_file_says_what_is_expected() -> None:
    first, second = parse_campaign(CAMPAIGN).expectations
    assert (first.of, first.excellent, first.good, dict(first.levels)) == (
        None,
        0.95,
        0.7,
        {"scenario": ("cross-host",)},
    )
    assert (second.of, second.levels) == (40_000_000_000, {})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{of: 10G, good: 95%}", "the shares must fall from excellent to good to poor"),
        ("{of: fast}", "expect[0].of"),
        ("{of: 10G, where: {scenario: vm-to-host}}", "is no level of this campaign"),
        ("{excellent: 90%}", "expect[0]"),
    ],
)
def test_what_cannot_be_expected_is_refused_at_its_place(line: str, message: str) -> None:
    head = CAMPAIGN.partition("expect:")[0]
    with pytest.raises(SpecError) as caught:
        parse_campaign(f"{head}expect: {line}")
    assert message in " ".join(f"{one.key} {one.message}" for one in caught.value.problems)


def test_a_verdict_by_the_speed_of_a_network_needs_one() -> None:
    with pytest.raises(SpecError) as caught:
        cross_check(parse_campaign(CAMPAIGN), parse_lab(TWO))
    assert "doesn't say the `speed`" in caught.value.problems[0].message


def test_a_lab_file_says_what_its_path_carries() -> None:
    fast = TWO.replace("bridge: br0", "bridge: br0, speed: 10G")
    assert parse_lab(fast).network().speed == 10_000_000_000


def test_every_format_tells_the_verdict() -> None:
    record = matrix_record(expecting())
    grades = {row.verdict.grade.value for row in report_of(record).rows if row.verdict is not None}
    assert len(grades) > 1
    out = io.StringIO()
    print_terminal(record, Console(file=out, width=250))
    for text in (out.getvalue(), to_markdown(record), to_csv(record, rows="cells"), render_html(report_of(record))):
        assert all(grade in text for grade in grades)
    assert "excellent from 90 %" in render_html(report_of(record))


def test_figures_above_what_the_path_carries_are_flagged_between_hosts_only() -> None:
    report = report_of(replace(matrix_record(), lab_document=LAB))
    flagged = {row.title for row in report.rows if any(flag.kind == "beyond-path" for flag in row.flags)}
    assert "cross-host · virtio" in flagged
    assert "same-host · virtio" not in flagged, "two VMs on one host share no wire"
    assert "cross-host · e1000" not in flagged, "an emulated 1 Gbit/s adapter may carry more than 1 Gbit/s"


@pytest.mark.parametrize(
    "lab", [{}, {"networks": {}, "test_network": "x"}, {"networks": {"x": {}}, "test_network": "x"}]
)
def test_a_lab_that_says_nothing_of_its_path_flags_nothing(lab: dict[str, object]) -> None:
    report = report_of(replace(matrix_record(), lab_document=lab))
    assert not any(flag.kind == "beyond-path" for row in report.rows for flag in row.flags)

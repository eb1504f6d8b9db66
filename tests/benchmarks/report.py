"""How long the report of a large campaign takes, and how large it is.

    python -m tests.benchmarks.report [--runs 5000] [--intervals 100]

The campaign has 300 cells, of which a fifth migrates a VM, and intervals in every run. It is made up in memory, so that the
time is that of the report alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from labctl.model.outcome import RunState
from labctl.model.result import CampaignRecord, RunRecord
from labctl.model.scenario import Scenario
from labctl.report import to_csv, to_json, to_markdown, write_html
from tests.report.records import EPOCH, campaign_record, cell_record, demo_campaign, ok_result, steady

MODELS = ("virtio", "e1000", "e1000e", "vmxnet3", "rtl8139")
SCENARIOS = (
    Scenario.SAME_HOST,
    Scenario.CROSS_HOST,
    Scenario.VM_TO_HOST,
    Scenario.HOST_TO_VM,
    Scenario.DURING_MIGRATION,
)
STREAMS = tuple(range(1, 13))


def record_of(runs: int, intervals: int) -> CampaignRecord:
    """A campaign of 300 cells and so many runs."""
    rng = random.Random(1)
    campaign = demo_campaign(
        scenarios=SCENARIOS,
        factors={"nic_model": MODELS, "streams": STREAMS},
        overrides=(),
        repeats=runs // (len(SCENARIOS) * len(MODELS) * len(STREAMS)) + 1,
    )
    levels = [
        {"scenario": scenario.value, "nic_model": model, "streams": streams}
        for scenario in SCENARIOS for model in MODELS for streams in STREAMS
    ]  # fmt: skip
    cells = [cell_record(one, at) for at, one in enumerate(levels)]
    found = []
    for number in range(runs):
        cell = cells[number % len(cells)]
        result = ok_result(rng, dict(cell.levels))
        if not result.migrations:
            result = replace(
                result,
                transfers=tuple(
                    replace(
                        one, reading=replace(one.reading, intervals=tuple(steady(rng, 1e9, seconds=float(intervals))))
                    )
                    for one in result.transfers
                ),
            )
        found.append(
            RunRecord(
                id=number + 1, cell=cell.id, replicate=number // len(cells) + 1, state=RunState.DONE, sequence=number,
                attempts=1, started=EPOCH + 20 * number, ended=EPOCH + 20 * number + 18, result=result,
                hosts=(("a", "b"), ("c", "d"))[number % 2],
            )
        )  # fmt: skip
    return campaign_record(campaign, cells, found)


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.report")
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--intervals", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="where the page is kept")
    asked = parser.parse_args(arguments)
    record = record_of(asked.runs, asked.intervals)
    with tempfile.TemporaryDirectory() as directory:
        page = asked.keep or Path(directory) / "report.html"
        began = time.monotonic()
        write_html(record, page)
        took = time.monotonic() - began
        print(
            f"report: {asked.runs} runs with {asked.intervals} intervals each: HTML in {took:.1f} s (goal: under 20 s), "
            f"{page.stat().st_size / 1e6:.1f} MB (goal: under 15 MB)",
            flush=True,
        )
    for name, text in (
        ("JSON", to_json),
        ("Markdown", to_markdown),
        ("CSV of runs", lambda one: to_csv(one, rows="runs")),
        ("CSV of cells", lambda one: to_csv(one, rows="cells")),
    ):
        began = time.monotonic()
        size = len(text(record))
        print(f"report: {name} in {time.monotonic() - began:.1f} s, {size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from labctl.analysis.figures import figure_of
from labctl.model.outcome import Outcome, OutcomeDetail, RunState
from labctl.model.reading import ErrorKind, Reading
from labctl.model.result import AttemptResult, RunRecord
from tests.report.records import lab_error, ok_result, reading, transfer


def _run(result: AttemptResult | None, state: str = RunState.DONE) -> RunRecord:
    return RunRecord(id=1, cell="c", replicate=1, state=state, sequence=0, result=result)


def _result(*counted: Reading) -> AttemptResult:
    warmup = transfer(0, reading(1e9), counted=False)
    made = [transfer(index, one) for index, one in enumerate(counted, start=1)]
    return AttemptResult(detail=OutcomeDetail(outcome=Outcome.OK), transfers=(warmup, *made))


def test_the_figure_is_the_mean_of_counted_transfers_and_warmups_stay_apart() -> None:
    figure = figure_of(_run(_result(reading(2e9), reading(4e9))))
    assert figure.bits_per_second == 3e9
    assert figure.transfers == (2e9, 4e9)
    assert figure.warmups == (1e9,)
    assert figure.why_none == ""


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (reading(2e9, partial=True), "covers less than was asked for"),
        (reading(2e9, ok=False), "clock stepped"),
        (reading(None, ok=False, error_kind=ErrorKind.CONNECT_REFUSED, error="refused"), "connect refused (refused)"),
        (reading(None), "no throughput"),
    ],
)
def test_one_bad_counted_transfer_leaves_the_run_without_a_figure(bad: Reading, why: str) -> None:
    figure = figure_of(_run(_result(reading(2e9), bad)))
    assert figure.bits_per_second is None
    assert why in figure.why_none
    assert "transfer 2" in figure.why_none


def test_a_bad_warmup_costs_nothing() -> None:
    result = _result(reading(2e9))
    bad = transfer(0, reading(1e9, partial=True), counted=False)
    assert figure_of(_run(replace(result, transfers=(bad, *result.transfers[1:])))).bits_per_second == 2e9


def test_runs_that_did_not_end_ok_have_no_figure() -> None:
    good = ok_result(random.Random(1), {"scenario": "same-host", "nic_model": "virtio"})
    failed = replace(good, detail=OutcomeDetail(outcome=Outcome.FAILED, kind="connection-lost"))
    assert figure_of(_run(failed)).why_none == "outcome failed"
    assert figure_of(_run(lab_error())).why_none == "outcome lab-error"
    assert figure_of(_run(None, RunState.PENDING)).why_none == "not done yet"
    assert figure_of(_run(_result())).why_none == "no counted transfer"

"""The figure of a run: what one replicate counts for, or why it counts for nothing."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.model.outcome import Outcome, RunState
from labctl.model.reading import Reading
from labctl.model.result import AttemptResult, RunRecord, TransferResult


@dataclass(frozen=True, kw_only=True)
class RunFigure:
    """What a run counts for. Throughput in bit/s.

    `transfers` are the sub-samples that `bits_per_second` is the mean of, `warmups` the transfers before them, which
    never count. `bits_per_second` is None when the run counts for nothing; `why_none` then says why in a sentence.
    """

    run: int
    cell: str
    replicate: int
    sequence: int
    outcome: Outcome | None
    """None while the run is not done."""
    bits_per_second: float | None
    transfers: tuple[float, ...] = ()
    warmups: tuple[float, ...] = ()
    hosts: tuple[str, ...] = ()
    began: float | None = None
    """When its first counted transfer began, in seconds since the Unix epoch."""
    why_none: str = ""


def figure_of(run: RunRecord) -> RunFigure:
    """The run's figure: the mean of its counted transfers, each by the receiver's figure where that can be trusted.

    A run that did not end `ok`, or one of whose counted transfers is partial, invalid or missing, has no figure: a mean
    over what is left would look like the others and cover something else.
    """
    result = run.result
    outcome = result.detail.outcome if result is not None else None
    why = _why_none(run)
    counted = _throughputs(result, counted=True)
    return RunFigure(
        run=run.id,
        cell=run.cell,
        replicate=run.replicate,
        sequence=run.sequence,
        outcome=outcome,
        bits_per_second=None if why else sum(counted) / len(counted),
        transfers=counted,
        warmups=_throughputs(result, counted=False),
        hosts=run.hosts,
        began=next((one.started for one in result.transfers if one.counted), None) if result is not None else None,
        why_none=why,
    )


def throughput_of(result: AttemptResult) -> float | None:
    """What the figure of a run with this recorded result is, in bit/s; None when it counts for nothing."""
    if _why_no_figure(result):
        return None
    counted = _throughputs(result, counted=True)
    return sum(counted) / len(counted)


def why_not_counted(reading: Reading) -> str:
    """Why a reading is no figure, in words; empty when it is one."""
    if reading.error_kind is not None:
        return f"{reading.error_kind.value.replace('_', ' ')}" + (f" ({reading.error})" if reading.error else "")
    if not reading.ok:
        return "a clock stepped during the transfer"
    if reading.partial:
        return "it covers less than was asked for"
    if reading.bits_per_second is None:
        return "the tool gave no throughput"
    return ""


def _why_none(run: RunRecord) -> str:
    if run.unrun is not None:
        return f"not run ({run.unrun.kind})"
    if run.result is None:
        return "not done yet" if run.state != RunState.DONE else "done without a result"
    return _why_no_figure(run.result)


def _why_no_figure(result: AttemptResult) -> str:
    if result.detail.outcome is not Outcome.OK:
        return f"outcome {result.detail.outcome.value}"
    counted = [transfer for transfer in result.transfers if transfer.counted]
    if not counted:
        return "no counted transfer"
    for transfer in counted:
        why = why_not_counted(transfer.reading)
        if why:
            return f"transfer {transfer.index} is not counted: {why}"
    return ""


def _throughputs(result: AttemptResult | None, *, counted: bool) -> tuple[float, ...]:
    transfers: tuple[TransferResult, ...] = result.transfers if result is not None else ()
    return tuple(
        transfer.reading.bits_per_second
        for transfer in transfers
        if transfer.counted is counted
        and not why_not_counted(transfer.reading)
        and transfer.reading.bits_per_second is not None
    )

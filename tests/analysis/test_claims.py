from __future__ import annotations

import pytest

from labctl.analysis.claims import CheckedClaim, Limits, Verdict, check_claims
from labctl.analysis.comparison import Ratio
from labctl.analysis.matrix import matrix_of
from labctl.model.settings import Level
from tests.report.records import cell_record, cells_of, published_campaign

PUBLISHED = "kvm-nic-models-2010"


def _check(rates: dict[tuple[str, str], float], *, spread: float = 0.02, runs: int = 3) -> tuple[CheckedClaim, ...]:
    """Claims against a campaign in which a NIC model (`host` for none) moves so much to that peer, in Gbit/s."""
    campaign = published_campaign()
    cells = [cell_record(levels, position) for position, levels in enumerate(cells_of(campaign))]

    def figures(levels: dict[str, Level]) -> list[float]:
        rate = rates.get((str(levels.get("nic_model", "host")), str(levels["peer"])))
        return [] if rate is None else [rate * (1 + spread * (i - (runs - 1) / 2)) for i in range(runs)]

    return check_claims(PUBLISHED, matrix_of(campaign, cells), {cell.id: figures(dict(cell.levels)) for cell in cells})


def _rates(virtio: float, e1000: float, rtl8139: float, host: float) -> dict[tuple[str, str], float]:
    models = {"virtio": virtio, "e1000": e1000, "rtl8139": rtl8139, "host": host}
    return {(model, peer): rate for model, rate in models.items() for peer in ("own-host", "other-host")}


def test_a_lab_that_behaves_as_published() -> None:
    slower, close, own = _check(_rates(0.94, 0.30, 0.08, 0.94))
    assert slower.verdict is Verdict.HOLDS
    assert len(slower.pairs) == 8  # two emulated adapters, two peers, 1 and 4 streams, against virtio
    assert slower.missing == ("rtl8139 against vt-d", "e1000 against vt-d")
    assert close.verdict is Verdict.HOLDS
    assert len(close.pairs) == 2  # to the other host only, 1 and 4 streams, against the host itself
    assert own.verdict is Verdict.NOT_TOLD  # no VT-d here
    assert own.pairs == ()
    assert own.missing == ("virtio against vt-d",)


def test_a_lab_that_behaves_otherwise() -> None:
    slower, close, _ = _check(_rates(1.0, 0.9, 0.08, 3.0))
    assert slower.verdict is Verdict.DOES_NOT_HOLD
    assert {pair.verdict for pair in slower.pairs} == {Verdict.HOLDS, Verdict.DOES_NOT_HOLD}
    assert close.verdict is Verdict.DOES_NOT_HOLD


def test_too_few_or_too_scattered_runs_tell_nothing() -> None:
    assert {claim.verdict for claim in _check(_rates(0.94, 0.3, 0.08, 0.94), runs=1)} == {Verdict.NOT_TOLD}
    scattered = _check(_rates(0.94, 0.45, 0.08, 0.94), spread=0.3)
    assert scattered[0].verdict is Verdict.NOT_TOLD
    assert _check({})[0].pairs == ()


def test_an_unknown_experiment_has_no_claims() -> None:
    campaign = published_campaign()
    assert check_claims("something-else", matrix_of(campaign, []), {}) == ()


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.2, 0.4, Verdict.HOLDS),
        (0.4, 0.6, Verdict.NOT_TOLD),
        (0.5, 0.6, Verdict.DOES_NOT_HOLD),
        (None, None, Verdict.NOT_TOLD),
    ],
)
def test_limits_judge_by_the_whole_interval(low: float | None, high: float | None, verdict: Verdict) -> None:
    assert Limits(high=0.5).judge(Ratio(n=3, baseline_n=3, ratio=0.5, low=low, high=high)) is verdict

"""Claims of published experiments, checked against what was measured.

The claims stand as data: each is a set of comparisons with the limits that make its words checkable. The words of the
sources ("much slower", "very close") have no limits of their own; ours are stated beside every verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from labctl.analysis.comparison import Ratio, ratio_of_means
from labctl.analysis.matrix import Matrix
from labctl.model.scenario import OTHER_HOST, OWN_HOST
from labctl.model.settings import SCENARIO, Level


class Verdict(StrEnum):
    """Whether a claim stands up."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    NOT_TOLD = "can't be told"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a ratio must be for the claim to hold: above `low` and below `high`."""

    low: float = 0.0
    high: float = float("inf")

    def judge(self, ratio: Ratio) -> Verdict:
        """By the 95 % interval: it holds when all of it is within the limits, not when all of it is outside."""
        if ratio.low is None or ratio.high is None:
            return Verdict.NOT_TOLD
        if self.low < ratio.low and ratio.high < self.high:
            return Verdict.HOLDS
        if ratio.high <= self.low or ratio.low >= self.high:
            return Verdict.DOES_NOT_HOLD
        return Verdict.NOT_TOLD


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two selections of cells to be compared, everything else that both vary being equal."""

    measured: Mapping[str, Level]
    against: Mapping[str, Level]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim: its words in the source, our rule in words, and the rule."""

    text: str
    rule: str
    limits: Limits
    pairs: tuple[Pair, ...]
    where: Mapping[str, Level] = field(default_factory=dict)
    """Levels that both sides of every pair have."""


@dataclass(frozen=True, kw_only=True)
class CheckedPair:
    """One comparison that bears on a claim. `measured` and `against` are cell ids."""

    measured: str
    against: str
    ratio: Ratio
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class CheckedClaim:
    """A claim with its verdict and the numbers. `missing` names pairs that the campaign has no figures for."""

    text: str
    rule: str
    verdict: Verdict
    pairs: tuple[CheckedPair, ...]
    missing: tuple[str, ...]


_NATIVE = {SCENARIO: "host-to-host"}

CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "kvm-nic-models-2010": (
        Claim(
            text="emulated adapters are much slower than virtio or VT-d",
            rule="an emulated adapter moves less than half of what virtio or VT-d moves",
            limits=Limits(high=0.5),
            pairs=tuple(
                Pair(measured={"nic_model": emulated}, against={"nic_model": fast})
                for emulated in ("rtl8139", "e1000")
                for fast in ("virtio", "vt-d")
            ),
        ),
        Claim(
            text="to a remote peer, virtio is very close to VT-d and to native",
            rule="virtio moves within 10 % of what VT-d and the host itself move to another host",
            limits=Limits(low=0.9, high=1 / 0.9),
            pairs=(
                Pair(measured={"nic_model": "virtio"}, against={"nic_model": "vt-d"}),
                Pair(measured={"nic_model": "virtio"}, against=_NATIVE),
            ),
            where={"peer": OTHER_HOST},
        ),
        Claim(
            text="to its own host, virtio is much faster than VT-d, because in this set-up VT-d is a second NIC",
            rule="virtio moves more than twice what VT-d moves to the own host",
            limits=Limits(low=2.0),
            pairs=(Pair(measured={"nic_model": "virtio"}, against={"nic_model": "vt-d"}),),
            where={"peer": OWN_HOST},
        ),
    ),
}
"""Claims by the id of the published experiment."""


def check_claims(published: str, matrix: Matrix, figures: Mapping[str, Sequence[float]]) -> tuple[CheckedClaim, ...]:
    """The claims of a published experiment against the figures (bit/s) of every cell; none for an unknown id.

    A claim holds when every pair that was measured holds; it does not when any pair does not. Pairs without figures on
    both sides are listed as missing and judge nothing.
    """
    return tuple(_check(claim, matrix, figures) for claim in CLAIMS.get(published, ()))


def _check(claim: Claim, matrix: Matrix, figures: Mapping[str, Sequence[float]]) -> CheckedClaim:
    checked: list[CheckedPair] = []
    missing: list[str] = []
    for pair in claim.pairs:
        found = [
            CheckedPair(measured=one, against=other, ratio=ratio, verdict=claim.limits.judge(ratio))
            for one, other in _counterparts(pair, claim.where, matrix)
            if (ratio := ratio_of_means(figures.get(one, ()), figures.get(other, ()))).ratio is not None
        ]
        checked += found
        if not found:
            missing.append(f"{_words(pair.measured)} against {_words(pair.against)}")
    verdicts = {pair.verdict for pair in checked}
    if Verdict.DOES_NOT_HOLD in verdicts:
        verdict = Verdict.DOES_NOT_HOLD
    elif verdicts == {Verdict.HOLDS}:
        verdict = Verdict.HOLDS
    else:
        verdict = Verdict.NOT_TOLD
    return CheckedClaim(text=claim.text, rule=claim.rule, verdict=verdict, pairs=tuple(checked), missing=tuple(missing))


def _counterparts(pair: Pair, where: Mapping[str, Level], matrix: Matrix) -> list[tuple[str, str]]:
    """Cells that match the pair and are equal in every varied setting that both have and the pair doesn't name."""
    named = {*pair.measured, *pair.against}
    others = [cell for cell in matrix.cells if _matches(matrix.levels[cell], {**where, **pair.against})]
    found = []
    for one in matrix.cells:
        own = matrix.levels[one]
        if not _matches(own, {**where, **pair.measured}):
            continue
        for other in others:
            theirs = matrix.levels[other]
            shared = {*own} & {*theirs} - named
            if one != other and all(own[name] == theirs[name] for name in shared):
                found.append((one, other))
    return found


def _matches(levels: Mapping[str, Level], wanted: Mapping[str, Level]) -> bool:
    return all(levels.get(name) == level for name, level in wanted.items())


def _words(levels: Mapping[str, Level]) -> str:
    return " ".join(str(level) for level in levels.values())

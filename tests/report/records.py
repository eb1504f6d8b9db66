"""Campaign records as the store would hand them over: seeded figures, migrations, failures, holes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from labctl.model.campaign import Campaign, Cell, Override, Selection
from labctl.model.nic import NIC_MODELS
from labctl.model.outcome import CampaignState, Outcome, OutcomeDetail, RunState
from labctl.model.reading import ErrorKind, Interval, Reading
from labctl.model.result import (
    AttemptResult,
    CampaignRecord,
    CellRecord,
    FactSet,
    MigrationResult,
    MigrationSample,
    RunRecord,
    TransferResult,
)
from labctl.model.scenario import Scenario, Side
from labctl.model.settings import Level, find_setting
from labctl.spec.documents import to_json

EPOCH = 1_790_000_000.0
MODELS = ("virtio", "vmxnet3", "e1000e", "e1000", "rtl8139")
RATES = {
    "virtio": 4.2e9,
    "vmxnet3": 1.9e9,
    "e1000e": 0.95e9,
    "e1000": 0.83e9,
    "rtl8139": 0.19e9,
    "igb": 1.1e9,
    "": 11e9,
}
SHARES = {
    Scenario.SAME_HOST: 1.0,
    Scenario.CROSS_HOST: 0.82,
    Scenario.DURING_MIGRATION: 0.9,
    Scenario.VM_TO_HOST: 1.1,
    Scenario.HOST_TO_VM: 0.95,
    Scenario.HOST_TO_HOST: 1.0,
}


def reading(
    bits_per_second: float | None, intervals: Sequence[Interval] = (), *, seconds: float = 10.0, **other: object
) -> Reading:
    """A good reading of iperf3, unless `other` says differently."""
    values: dict[str, object] = {
        "tool": "iperf3",
        "ok": True,
        "tool_version": "3.12",
        "bits_per_second": bits_per_second,
        "side": "receiver",
        "bytes": round(bits_per_second * seconds / 8) if bits_per_second is not None else None,
        "seconds": seconds,
        "streams": 1,
        "retransmits": 0,
        "intervals": tuple(intervals),
    }
    return Reading(**(values | other))  # type: ignore[arg-type]


def transfer(
    index: int, content: Reading, *, counted: bool = True, started: float = EPOCH, **other: object
) -> TransferResult:
    """A transfer whose tool showed zero 50 ms after it was started, known to within 4 ms."""
    values: dict[str, object] = {
        "index": index,
        "counted": counted,
        "tool": content.tool,
        "reading": content,
        "measured_on": Side.SENDER,
        "client_command": ("iperf3", "-c", "10.77.0.11", "-J"),
        "server_command": ("iperf3", "-s", "-1"),
        "port": 5201 + index,
        "started": started,
        "elapsed": (content.seconds or 0.0) + 0.3,
        "zero": started + 0.05,
        "zero_uncertainty": 0.004,
    }
    return TransferResult(**(values | other))  # type: ignore[arg-type]


def steady(
    rng: random.Random, rate: float, *, seconds: float = 10.0, step: float = 1.0, noise: float = 0.04
) -> list[Interval]:
    """Intervals of a transfer that nothing disturbs."""
    count = round(seconds / step)
    return [
        Interval(start=i * step, end=(i + 1) * step, bits_per_second=max(0.0, rng.gauss(rate, rate * noise)))
        for i in range(count)
    ]


def disturbed(
    rng: random.Random,
    rate: float,
    *,
    seconds: float = 30.0,
    step: float = 0.1,
    start: float = 10.0,
    total: float = 2.8,
    gap: float = 0.5,
    slow: float = 0.72,
    ramp: float = 1.2,
) -> list[Interval]:
    """Intervals around a migration: slower while memory is copied, a gap at its end, then a ramp back to the old rate."""

    def share(at: float) -> float:
        end = start + total
        if at < start:
            return 1.0
        if at < end - gap / 2:
            return slow
        if at < end + gap / 2:
            return 0.0
        return min(1.0, 0.35 + 0.65 * (at - end - gap / 2) / ramp) if ramp else 1.0

    return [
        replace(one, bits_per_second=one.bits_per_second * share((one.start + one.end) / 2))
        for one in steady(rng, rate, seconds=seconds, step=step)
    ]


def migration(
    zero: float, *, start: float = 10.0, total: float = 2.8, downtime_ms: int | None = 210, **other: object
) -> MigrationResult:
    """A completed migration of the receiver from host a to host b."""
    values: dict[str, object] = {
        "domain": "labctl-1-receiver",
        "mover": Side.RECEIVER,
        "source": "a",
        "destination": "b",
        "started": zero + start,
        "ended": zero + start + total,
        "completed": True,
        "transfer_index": 1,
        "total_ms": round(total * 1000) - 60,
        "downtime_ms": downtime_ms,
        "setup_ms": 3,
        "bytes_moved": 71_000_000,
        "iterations": 3,
        "stats_source": "libvirt job statistics of the source",
        "samples": (
            MigrationSample(
                at=0.5, memory_total=201_000_000, memory_processed=20_000_000, memory_remaining=180_000_000
            ),
        ),
    }
    return MigrationResult(**(values | other))  # type: ignore[arg-type]


def facts(nic_model: str, rng: random.Random, *, scenario: Scenario = Scenario.SAME_HOST) -> tuple[FactSet, ...]:
    """Facts of the hosts, and of the VMs if the scenario has any."""
    model = NIC_MODELS.get(nic_model)
    hosts = tuple(
        FactSet(
            subject=f"host:{name}",
            when="before",
            facts={
                "kernel": "6.1.0-25-amd64",
                "qemu": "7.2.11",
                "libvirt": "9.0.0",
                "load_1m": round(rng.uniform(0.1, 0.6), 2),
            },
        )
        for name in ("a", "b")
    )
    if model is None or not scenario.vms:
        return hosts
    guests = tuple(
        FactSet(
            subject=f"vm:{side}",
            when="before",
            facts={
                "ethtool.driver": (model.linux_drivers or ("?",))[0],
                "pci": (model.pci_ids or ("?",))[0],
                "nic.mac": f"52:54:00:{rng.randrange(256):02x}:{rng.randrange(256):02x}:{rng.randrange(256):02x}",
                "kernel": "6.1.0-25-amd64",
                "mtu": 1500,
                "offload.tso": nic_model != "rtl8139",
            },
        )
        for side in ("sender", "receiver")
    )
    return (*hosts, *guests)


def ok_result(rng: random.Random, levels: dict[str, Level], *, scale: float = 1.0, transfers: int = 1) -> AttemptResult:
    """A good attempt of a cell: a slower warm-up, then counted transfers; with a migration if the scenario has one."""
    scenario = Scenario(str(levels["scenario"]))
    model = str(levels.get("nic_model", ""))
    streams = levels.get("streams", 1)
    rate = RATES[model] * SHARES[scenario] * scale * (1.15 if streams == 4 else 1.0) * rng.gauss(1, 0.05)
    warmup = steady(rng, 0.85 * rate, seconds=2.0)
    made = [transfer(0, reading(0.85 * rate, warmup, seconds=2.0), counted=False)]
    moved: tuple[MigrationResult, ...] = ()
    for index in range(1, transfers + 1):
        started = EPOCH + 10 + 40 * index
        if scenario.migrates:
            gap = rng.uniform(0.25, 0.8) * (1.6 if model == "e1000" else 1.0)
            total = rng.uniform(2.2, 4.0)
            intervals = disturbed(rng, rate, gap=gap, total=total)
            made.append(transfer(index, _averaged(intervals), started=started))
            moved += (migration(started + 0.05, total=total, transfer_index=index, ordinal=index),)
        else:
            made.append(transfer(index, _averaged(steady(rng, rate)), started=started))
    return AttemptResult(
        detail=OutcomeDetail(outcome=Outcome.OK),
        transfers=tuple(made),
        migrations=moved,
        facts=facts(model, rng, scenario=scenario),
        phases=(("lease", 0.02), ("place", 3.9), ("verify", 0.4), ("transfer", 12.6), ("release", 0.3)),
    )


def lab_error() -> AttemptResult:
    """An attempt that the lab let down."""
    return AttemptResult(
        detail=OutcomeDetail(
            outcome=Outcome.LAB_ERROR,
            kind="boot-timeout",
            what="The receiver's guest agent did not answer within 60 s.",
            why="Host b was loaded by something else: its load was 14.2.",
            todo="See the serial console in the raw output; free the host; `labctl retry` if it is worth it.",
            host="b",
            phase="place",
        )
    )


def lost_connection(rng: random.Random, model: str = "e1000") -> AttemptResult:
    """A migration that cut the connection: a result about the system under test."""
    intervals = [one for one in disturbed(rng, 0.8 * RATES[model], gap=4.0, ramp=0.0) if one.end < 13.5]
    content = reading(
        None, intervals, ok=False, partial=True, error_kind=ErrorKind.CONNECTION_LOST, error="Connection reset by peer"
    )
    return AttemptResult(
        detail=OutcomeDetail(
            outcome=Outcome.FAILED,
            kind="connection-lost",
            what="The transfer's connection was lost 0.6 s after the VM had moved.",
            why="iperf3 says: Connection reset by peer.",
            todo="Nothing to repair in the lab: compare with other NIC models.",
            phase="transfer",
        ),
        transfers=(transfer(1, content),),
        migrations=(migration(EPOCH + 0.05, downtime_ms=None),),
        facts=facts(model, rng, scenario=Scenario.DURING_MIGRATION),
    )


def demo_campaign(**changes: object) -> Campaign:
    """The five NIC models in three scenarios with controls."""
    campaign = Campaign(
        name="kvm-nic-models",
        question="Which NIC model moves the most between two VMs, and what does a live migration cost?",
        scenarios=(
            Scenario.SAME_HOST,
            Scenario.CROSS_HOST,
            Scenario.DURING_MIGRATION,
            Scenario.VM_TO_HOST,
            Scenario.HOST_TO_HOST,
        ),
        factors={"nic_model": MODELS},
        settings={"tool": "iperf3", "streams": 1},
        overrides=(
            Override(
                when=Selection(levels={"scenario": ("during-migration",)}), settings={"seconds": 30.0, "interval": 0.1}
            ),
        ),
        baseline={"nic_model": "e1000"},
        labels={"purpose": "demo"},
        seed=42,
    )
    return replace(campaign, **changes)  # type: ignore[arg-type]


def cells_of(campaign: Campaign) -> list[dict[str, Level]]:
    """All combinations of levels that concern their scenarios, in the order of the file."""
    cells: list[dict[str, Level]] = []
    for scenario in campaign.scenarios:
        names = [name for name in campaign.factors if _concerns(name, scenario)]
        for combination in product(*(campaign.factors[name] for name in names)):
            levels: dict[str, Level] = {"scenario": scenario.value, **dict(zip(names, combination, strict=True))}
            if not (scenario.migrates and levels.get("nic_model") not in ("virtio", "e1000", "vt-d")):
                cells.append(levels)
    return cells


def _concerns(name: str, scenario: Scenario) -> bool:
    setting = find_setting(name)
    return setting is not None and setting.concern.applies_to(scenario)


def published_campaign() -> Campaign:
    """The published experiment of 2010: NIC model, own or other host, 1 and 4 streams, native control."""
    return demo_campaign(
        name="kvm-nic-models-2010",
        question="Do the claims of 2010 hold here?",
        scenarios=(Scenario.VM_TO_HOST, Scenario.HOST_TO_HOST),
        factors={
            "nic_model": ("virtio", "e1000", "rtl8139"),
            "peer": ("own-host", "other-host"),
            "streams": (1, 4),
        },
        baseline={"nic_model": "virtio"},
        overrides=(),
        published="kvm-nic-models-2010",
    )


def cell_record(levels: Mapping[str, Level], position: int = 0, *, reason: str = "") -> CellRecord:
    return CellRecord(id=Cell(levels=levels).id, levels=levels, applicable=not reason, reason=reason, position=position)


def campaign_record(
    campaign: Campaign, cells: Iterable[CellRecord], runs: Iterable[RunRecord], **changes: object
) -> CampaignRecord:
    """A finished campaign, unless `changes` say differently."""
    record = CampaignRecord(
        id=7,
        name=campaign.name,
        state=CampaignState.DONE,
        lab="local",
        submitted=EPOCH - 30,
        started=EPOCH - 20,
        ended=EPOCH + 700,
        campaign_text="name: kvm-nic-models\n# <b>as the user wrote it</b>\n",
        lab_text="name: local\n",
        document=json.loads(to_json(campaign)),
        cells=tuple(cells),
        runs=tuple(runs),
        versions={"labctl": "0.1.0", "qemu": "7.2.11", "libvirt": "9.0.0"},
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def matrix_record(
    campaign: Campaign | None = None, *, seed: int = 7, troubles: bool = True, share: float = 1.0
) -> CampaignRecord:
    """A campaign worked off in seeded random blocks.

    With `troubles`: retried lab errors, one that was not cured, a lost connection, a partial reading, and VT-d cells that
    are not applicable. Only the first `share` of the order is done.
    """
    rng = random.Random(seed)
    campaign = campaign or demo_campaign()
    cells = [cell_record(levels, position) for position, levels in enumerate(cells_of(campaign))]
    if troubles:
        for scenario, reason in (
            (Scenario.SAME_HOST, "Host a has no device to pass through."),
            (Scenario.DURING_MIGRATION, "A VM with vt-d can't migrate."),
        ):
            levels: dict[str, Level] = {"scenario": scenario.value, "nic_model": "vt-d"}
            cells.append(cell_record(levels, len(cells), reason=reason))
    order = []
    for replicate in range(1, campaign.repeats + 1):
        block = [cell for cell in cells if cell.applicable]
        rng.shuffle(block)
        order += [(cell, replicate) for cell in block]
    runs = []
    for sequence, (cell, replicate) in enumerate(order):
        run = RunRecord(id=sequence + 1, cell=cell.id, replicate=replicate, state=RunState.PENDING, sequence=sequence)
        if sequence < share * len(order):
            levels = dict(cell.levels)
            result = ok_result(rng, levels, transfers=campaign.transfers)
            run = replace(
                run,
                state=RunState.DONE,
                attempts=1,
                started=EPOCH + 20 * sequence,
                ended=EPOCH + 20 * sequence + 18,
                result=_troubled(run, levels, result, rng) if troubles else result,
            )
            if troubles and sequence % 17 == 5:
                run = replace(run, attempts=2, earlier=(lab_error(),))
        runs.append(run)
    state = CampaignState.DONE if share >= 1 else CampaignState.PAUSED
    return campaign_record(campaign, cells, runs, state=state, ended=EPOCH + 700 if share >= 1 else None)


def _troubled(run: RunRecord, levels: dict[str, Level], result: AttemptResult, rng: random.Random) -> AttemptResult:
    if levels == {"scenario": "during-migration", "nic_model": "e1000"} and run.replicate == 2:
        return lost_connection(rng)
    if levels == {"scenario": "cross-host", "nic_model": "rtl8139"} and run.replicate == 3:
        return lab_error()
    if levels == {"scenario": "vm-to-host", "nic_model": "vmxnet3"} and run.replicate == 1:
        cut = [
            replace(one, reading=replace(one.reading, partial=True, seconds=4.2)) if one.counted else one
            for one in result.transfers
        ]
        return replace(result, transfers=tuple(cut))
    if levels == {"scenario": "same-host", "nic_model": "e1000e"} and run.replicate == 2:
        stalled = [
            replace(one, reading=replace(one.reading, intervals=_with_zero(one.reading.intervals or ())))
            for one in result.transfers
        ]
        return replace(result, transfers=tuple(stalled))
    return result


def _with_zero(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    return tuple(replace(one, bits_per_second=0.0) if index == 1 else one for index, one in enumerate(intervals))


def _averaged(intervals: Sequence[Interval]) -> Reading:
    seconds = sum(one.end - one.start for one in intervals)
    mean = sum((one.end - one.start) * one.bits_per_second for one in intervals) / seconds
    return reading(mean, intervals, seconds=seconds)

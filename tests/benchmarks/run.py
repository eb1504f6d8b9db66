"""The figures that labctl is held to, measured here and now: `make bench`, or this file with names of benchmarks.

    efficiency     seconds of transfer / wall seconds, five NIC models, fresh pairs; and the same matrix by a shell script
    reuse          the same with `reuse: true`
    migration      one cell with a migration in mid-transfer, from nothing to the figure
    perturbation   labctl's figure against the same iperf3 by hand in the same two guests, alternating
    planning       a million cells
    schedules      300 seeded nights of faults on simulated hosts: what was lost (see `schedules.py` for one night)
    night          a night of faults on real guests
    dispatch       runs a second through the whole engine beside bare Celery, and what one costs among 100,000

Each prints its figure with its goal. Nothing here is a test: figures depend on the machine and on what else runs on it.
"""

from __future__ import annotations

import base64
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from scipy import stats

from labctl.campaign import commands, scheduler
from labctl.campaign.progress import Meter
from labctl.campaign.queues import queue_of
from labctl.campaign.session import Session, session
from labctl.campaign.worker_files import Wanted
from labctl.model.campaign import Campaign
from labctl.model.lab import Lab
from labctl.model.outcome import AttemptState, CampaignState, Outcome
from labctl.spec.campaign import load_campaign
from labctl.spec.lab import load_lab
from labctl.store import CampaignHead, Store, VmRecord, open_store, sqlite_url

HERE = Path(__file__).parent
LABCTL = Path(sys.executable).parent / "labctl"
LAB_TEXT = "lab: bench\nembedded:\n  hosts: [a, b]\n"
PAIRS = 36


@contextmanager
def bench_lab(directory: Path) -> Iterator[Path]:
    """An embedded lab of the benchmarks' own, up for as long as the block runs."""
    file = directory / "lab.yaml"
    file.write_text(LAB_TEXT)
    subprocess.run([LABCTL, "lab", "up", file], check=True, stdout=subprocess.DEVNULL)
    try:
        yield file
    finally:
        subprocess.run([LABCTL, "lab", "down", file], check=True, stdout=subprocess.DEVNULL)


def run_campaign(name: str, lab: Path, state: Path) -> tuple[float, Store]:
    """`labctl run` as a user types it. Returns its wall seconds and the store."""
    began = time.monotonic()
    ended = subprocess.run(
        [LABCTL, "--state", state, "run", HERE / "campaigns" / f"{name}.yaml", "--lab", lab],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        raise SystemExit(f"labctl run {name} ended with {ended.returncode}:\n{ended.stdout[-3000:]}")
    return time.monotonic() - began, open_store(state)


def transfer_seconds(campaign: Campaign) -> float:
    """Seconds of warm-up and counted transfer of one run."""
    seconds, warmup = float(campaign.settings["seconds"]), float(campaign.settings["warmup_seconds"])
    return campaign.warmups * warmup + campaign.transfers * seconds


def efficiency(name: str, goal: float) -> Callable[[Path, Path], None]:
    """The benchmark of that campaign."""

    def measure(lab: Path, directory: Path) -> None:
        _, store = run_campaign(name, lab, directory / name)
        record = store.record(1)
        campaign = load_campaign(HERE / "campaigns" / f"{name}.yaml")
        results = [run.result for run in record.runs if run.result is not None]
        moved = transfer_seconds(campaign) * len(results)
        first, last = store.span(1)
        print(f"{name}: {len(results)} runs, {moved:.0f} s of transfer in {last - first:.1f} s: "
              f"efficiency {moved / (last - first):.3f} (goal: at least {goal})")  # fmt: skip
        phases: dict[str, list[float]] = {}
        for result in results:
            for phase, seconds in result.phases:
                phases.setdefault(phase, []).append(seconds)
        said = ", ".join(f"{phase} {statistics.median(values):.2f} s" for phase, values in phases.items())
        print(f"{name}: median of each phase: {said}")
        store.close()

    return measure


def by_hand(lab_file: Path, _directory: Path) -> None:
    """The plain shell script for the same matrix."""
    lab = load_lab(lab_file)
    host, image, network = lab.hosts["a"], lab.images["probe"], lab.network()
    assert network.guest_range is not None
    prefix = str(network.guest_range[0]).rpartition(".")[0]
    kind = "kvm" if accelerator(lab) == "kvm" else "qemu"
    began = time.monotonic()
    subprocess.run(
        [HERE / "by_hand.sh", host.uri, network.bridge, image.kernel, image.initrd, image.command_line, prefix,
         str(network.prefix_length), "2", "10", kind],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    seconds = time.monotonic() - began
    print(f"by hand: 15 runs, 180 s of transfer in {seconds:.1f} s: efficiency {180 / seconds:.3f} (for comparison)")


def accelerator(lab: Lab) -> str:
    """What the lab was found to have."""
    assert lab.embedded is not None
    return str(json.loads(Path(lab.embedded.directory, "accelerator.json").read_text())["accelerator"])


def migration(lab: Path, directory: Path) -> None:
    """One cell from nothing to the figure."""
    seconds, store = run_campaign("one-migration", lab, directory / "migration")
    result = store.record(1).runs[0].result
    assert result is not None
    moved = result.migrations[0]
    print(f"migration: one e1000 cell, {seconds:.1f} s from the command to the report (goal: at most 30 s); "
          f"the migration took {moved.total_ms} ms, downtime {moved.downtime_ms} ms, by the hypervisor's word")  # fmt: skip
    store.close()


def perturbation(lab_file: Path, directory: Path) -> None:
    """labctl's transfers and transfers by hand in one pair of guests, one after the other."""
    state = directory / "perturbation"
    store = open_store(state)
    lab = load_lab(lab_file)
    file = HERE / "campaigns" / "perturbation.yaml"
    campaign_id = commands.submit(
        store, load_campaign(file), lab, campaign_text=file.read_text(), lab_text=lab_file.read_text()
    )
    head = store.head(campaign_id)
    ratios: list[float] = []
    wanted = Wanted(queues=(queue_of(lab),), slots=2)
    with session(state=state, store_url=sqlite_url(state), broker=None, wanted=wanted, say=print) as running:
        for number in range(PAIRS + 1):
            by_labctl = _one_run(store, head, running)
            by_hand = transfer_by_hand(lab, store.idle_vms(campaign_id))
            if number:  # the first transfer of a pair of guests is slower than the rest
                ratios.append(by_labctl / by_hand)
        commands.interrupt(store, campaign_id)
        while store.active_attempts(campaign_id):
            time.sleep(0.2)
        running.dispatcher.clean(lab, campaign_id)
        while store.idle_vms(campaign_id):
            time.sleep(0.2)
    logs = [math.log(ratio) for ratio in ratios]
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(statistics.fmean(logs) - half), math.exp(statistics.fmean(logs) + half)
    print(f"perturbation: labctl / by hand = {math.exp(statistics.fmean(logs)):.3f}, 95 % interval {low:.3f} to {high:.3f} "
          f"over {len(ratios)} pairs (goal: contains 1, narrower than +-0.05)")  # fmt: skip
    store.close()


def _one_run(store: Store, head: CampaignHead, running: Session) -> float:
    """Start exactly one run, watch it as `labctl run` does, and return its bit/s."""
    done = store.run_counts(head.id).get(Outcome.OK, 0)
    while store.run_counts(head.id).get(Outcome.OK, 0) == done:
        store.set_state(head.id, CampaignState.ACTIVE)
        while not any(item.state is AttemptState.CLAIMED for item in store.active_attempts(head.id)):
            scheduler.advance(store, running.dispatcher, only=head.id)
            time.sleep(0.1)
        store.set_state(head.id, CampaignState.PAUSED)
        meter, looked = Meter(store, head.id), 0.0
        while store.active_attempts(head.id):
            store.version()
            if time.monotonic() - looked >= 1:
                meter.look()
                looked = time.monotonic()
            time.sleep(0.1)
    newest = max((run for run in store.record(head.id).runs if run.result), key=lambda run: run.ended or 0.0)
    assert newest.result is not None
    value = newest.result.transfers[-1].reading.bits_per_second
    assert value is not None
    return value


def transfer_by_hand(lab: Lab, pair: tuple[VmRecord, ...]) -> float:
    """bit/s of the same iperf3 command, started by virsh in the same two guests, with nothing else going on."""
    uri = lab.hosts["a"].uri
    sender = next(vm for vm in pair if vm.role == "sender")
    receiver = next(vm for vm in pair if vm.role == "receiver")

    def virsh(*arguments: str) -> str:
        return subprocess.run(["virsh", "-q", "-c", uri, *arguments], check=True, capture_output=True, text=True).stdout

    def execute(vm: VmRecord, *argv: str) -> int:
        order = {"execute": "guest-exec", "arguments": {"path": argv[0], "arg": argv[1:], "capture-output": True}}
        return int(json.loads(virsh("qemu-agent-command", vm.name, json.dumps(order)))["return"]["pid"])

    def ended(vm: VmRecord, pid: int) -> dict[str, object]:
        order = {"execute": "guest-exec-status", "arguments": {"pid": pid}}
        answer: dict[str, object] = json.loads(virsh("qemu-agent-command", vm.name, json.dumps(order)))["return"]
        return answer

    for vm in pair:
        virsh("resume", vm.name)
    execute(receiver, "iperf3", "-s", "-1", "-p", "5999", "-J", "-i", "1")
    time.sleep(0.5)
    pid = execute(
        sender, "iperf3", "-c", receiver.address.partition("/")[0], "-p", "5999", "-J", "-t", "5", "-i", "1", "-P", "1"
    )
    time.sleep(5)
    while not (answer := ended(sender, pid))["exited"]:
        time.sleep(0.2)
    for vm in pair:
        virsh("suspend", vm.name)
    document = json.loads(base64.b64decode(str(answer["out-data"])))
    return float(document["end"]["sum_received"]["bits_per_second"])


def planning(lab: Path, _directory: Path) -> None:
    """A million cells, planned and counted by the command."""
    began = time.monotonic()
    printed = subprocess.run(
        [LABCTL, "plan", HERE / "campaigns" / "million.yaml", "--lab", lab, "--json"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    cells = json.loads(printed)["cells"]
    print(f"planning: {cells} in {seconds:.1f} s, at most {peak:.0f} MiB (goal: 10 s, 300 MB)")


def schedules(_lab: Path, _directory: Path) -> None:
    """Nights in which everything goes wrong that a seed can think of."""
    subprocess.run([sys.executable, "-m", "tests.benchmarks.schedules"], cwd=HERE.parents[1], check=False)


def night(_lab: Path, _directory: Path) -> None:
    """Hosts, guests and processes broken one after the other: a test, but one that takes minutes."""
    began = time.monotonic()
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "night", "-p", "no:cacheprovider", "tests/faults"]
    kept = subprocess.run(pytest, cwd=HERE.parents[1], check=False).returncode == 0
    print(
        f"night: {'all promises kept' if kept else 'PROMISES BROKEN'} in {time.monotonic() - began:.0f} s (goal: kept)"
    )


def dispatch(_lab: Path, _directory: Path) -> None:
    """20,000 runs that take no time, and a store with 100,000."""
    subprocess.run([sys.executable, "-m", "tests.benchmarks.dispatch"], check=True, cwd=HERE.parents[1])


BENCHMARKS: dict[str, Callable[[Path, Path], None]] = {
    "planning": planning,
    "efficiency": efficiency("efficiency", 0.65),
    "by-hand": by_hand,
    "reuse": efficiency("reuse", 0.80),
    "migration": migration,
    "perturbation": perturbation,
    "schedules": schedules,
    "night": night,
    "dispatch": dispatch,
}
WITHOUT_LAB = frozenset({"schedules", "night", "dispatch"})
"""Those that need no lab, or have their own."""


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise SystemExit(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before", flush=True)
    asked = names or list(BENCHMARKS)
    with (
        tempfile.TemporaryDirectory(prefix="labctl-bench-") as directory,
        nullcontext(Path()) if WITHOUT_LAB.issuperset(asked) else bench_lab(Path(directory)) as lab,
    ):
        for name in asked:
            BENCHMARKS[name](lab, Path(directory))
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

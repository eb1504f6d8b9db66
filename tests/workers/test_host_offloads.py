"""Offloads of hosts, on a real adapter over a real SSH server: set, read back, and restored whatever happens to the worker."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from labctl.campaign import commands
from labctl.campaign.hosts import host_lines, release_host
from labctl.cli.hosts import host_facts
from labctl.errors import LabError
from labctl.model.lab import Lab
from labctl.model.order import RunOrder
from labctl.model.outcome import HostState
from labctl.store import WORKER_LOST, After, AttemptHandle, AttemptStart, ClaimedAttempt, Store, open_store
from tests.values import a_campaign, a_lab, a_result, an_order
from tests.workers.host_namespace import HostNamespace, host_namespace
from workers.cleaning import clean_campaign
from workers.guard import Guard
from workers.machines import Machines
from workers.reaping import find, reap
from workers.stack import hosts as host_stacks

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("ethtool") is None, reason="needs ethtool"),
]

WORKER = """
import sys
from pathlib import Path
from labctl.store import AttemptHandle, open_store
from workers.guard import Guard
from workers.machines import Machines
from workers.stack import hosts
store = open_store(Path(sys.argv[1]))
claimed = store.claim(AttemptHandle(id=int(sys.argv[2]), token=sys.argv[3]), worker="w:1")
hosts.set_up(claimed, Machines(claimed.lab, store=store.identity, guard=Guard()), store, Guard())
print("changed", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def namespace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostNamespace]:
    with host_namespace(tmp_path_factory.mktemp("host")) as made:
        yield made


@pytest.fixture
def host(namespace: HostNamespace) -> Iterator[HostNamespace]:
    """The host; whatever a test does, its adapter is as it was."""
    before = namespace.features()
    yield namespace
    assert namespace.features() == before


@pytest.fixture
def lab(host: HostNamespace) -> Lab:
    base = a_lab()
    first = replace(base.hosts["a"], ssh=host.ssh, address=IPv4Interface("198.18.0.1/24"))
    return replace(base, hosts=base.hosts | {"a": first})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


class Bench:
    """Attempts on the host, one after the other."""

    def __init__(self, store: Store, lab: Lab) -> None:
        self.store = store
        self.lab = lab
        self.campaign = commands.submit(store, a_campaign(), lab, campaign_text="c", lab_text="l")

    def sent(self, **offloads: bool) -> AttemptHandle:
        order: RunOrder = replace(an_order(), host_offloads=offloads)
        run = self.store.pending_runs(self.campaign, limit=1)[0]
        start = AttemptStart(run_id=run.id, order=order, resources=frozenset({"host:a"}))
        (handle,) = self.store.start_attempts("lab", [start])
        assert handle is not None
        return handle

    def claimed(self, **offloads: bool) -> ClaimedAttempt:
        claimed = self.store.claim(self.sent(**offloads), worker="w:1")
        assert claimed is not None
        return claimed

    def machines(self) -> Machines:
        return Machines(self.lab, store=self.store.identity, guard=Guard())

    def set_up(self, claimed: ClaimedAttempt) -> dict[str, dict[str, object]]:
        facts = host_stacks.set_up(claimed, self.machines(), self.store, Guard())
        return {host: dict(of_host) for host, of_host in facts.items()}

    def release(self, claimed: ClaimedAttempt) -> tuple[str, ...]:
        return host_stacks.release(claimed, self.machines(), self.store, Guard())

    def lose(self, claimed: ClaimedAttempt) -> None:
        self.store.lose_attempts([claimed.id], WORKER_LOST)


@pytest.fixture
def bench(store: Store, lab: Lab) -> Bench:
    return Bench(store, lab)


def tso(host: HostNamespace) -> str:
    return next(line for line in host.features().splitlines() if line.startswith("tcp-segmentation-offload"))


def test_they_are_set_read_back_and_restored_to_every_part(bench: Bench, host: HostNamespace) -> None:
    """L9: the adapter is found under the bridge of the test network, taps of VMs are not touched."""
    before, claimed = host.features(), bench.claimed(tso=False, gro=True)
    facts = bench.set_up(claimed)
    assert facts == {"a": {"test_adapters": "nic0", "offload.nic0.tso": "off", "offload.nic0.gro": "on"}}
    assert tso(host) == "tcp-segmentation-offload: off"
    recorded = {item.name: item.before for item in bench.store.adjustments_of(claimed.id)}
    assert recorded.pop("gro") == "off"
    assert set(recorded.values()) == {"on"}
    assert "tx-tcp-mangleid-segmentation" not in recorded, "it was off before"
    assert host_stacks.verify(claimed, bench.machines()) == facts
    assert bench.release(claimed) == ()
    assert host.features() == before
    assert bench.store.open_adjustments() == ()


def test_what_is_as_asked_already_is_not_touched(bench: Bench) -> None:
    claimed = bench.claimed(tso=True)
    assert bench.set_up(claimed)["a"]["offload.nic0.tso"] == "on"
    assert bench.store.open_adjustments() == ()


def test_they_are_restored_by_cleaning_after_the_worker_was_killed(
    bench: Bench, host: HostNamespace, tmp_path: Path
) -> None:
    before, handle = host.features(), bench.sent(tso=False)
    argv = [sys.executable, "-c", WORKER, str(tmp_path), str(handle.id), handle.token]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "changed\n"
        worker.send_signal(signal.SIGKILL)
    assert tso(host) == "tcp-segmentation-offload: off"
    clean_campaign(bench.store, bench.campaign)
    assert host.features() != before, "nobody knows yet that it is dead"
    bench.store.lose_attempts([handle.id], WORKER_LOST)
    clean_campaign(bench.store, bench.campaign)
    assert host.features() == before
    assert bench.store.open_adjustments() == ()
    assert bench.store.leases("lab") == ()
    host.run("ethtool", "-K", "nic0", "gro", "on")
    clean_campaign(bench.store, bench.campaign)
    assert "generic-receive-offload: on" in host.features(), "what others set later is not touched"
    host.run("ethtool", "-K", "nic0", "gro", "off")


def test_a_host_that_can_not_be_restored_is_struck_told_and_kept(bench: Bench, host: HostNamespace) -> None:
    claimed = bench.claimed(tso=False)
    bench.set_up(claimed)
    bench.lose(claimed)
    host.stop()
    clean_campaign(bench.store, bench.campaign)
    line = next(line for line in host_lines(bench.store, "lab") if line.record.host == "a")
    assert line.record.strikes == 1
    assert "tx-tcp-segmentation of adapter nic0 was on, was set to off and is not restored" in str(host_facts(line))
    assert bench.store.leases("lab"), "nothing is measured there"
    host.start()
    clean_campaign(bench.store, bench.campaign)
    assert bench.store.leases("lab") == ()
    assert host_lines(bench.store, "lab")[0].changed == ()


def test_the_next_attempt_restores_what_even_cleaning_could_not(bench: Bench, host: HostNamespace) -> None:
    """A host in quarantine is let go; its health check comes first."""
    before, claimed = host.features(), bench.claimed(tso=False)
    bench.set_up(claimed)
    bench.lose(claimed)
    bench.store.set_host("lab", "a", HostState.QUARANTINED)
    host.stop()
    clean_campaign(bench.store, bench.campaign)
    assert bench.store.leases("lab") == ()
    following = bench.claimed()
    with pytest.raises(LabError, match="could not be restored") as refused:
        bench.set_up(following)
    assert (refused.value.kind, refused.value.host) == ("not-restored", "a")
    host.start()
    assert bench.set_up(following) == {}
    assert host.features() == before


def test_the_reaper_restores_too_what_no_lease_tells_of(bench: Bench, host: HostNamespace) -> None:
    before, claimed = host.features(), bench.claimed(tso=False)
    bench.set_up(claimed)
    bench.lose(claimed)
    bench.store.cleaned(claimed.id, again=True)
    sight = find(bench.lab, bench.store)
    assert {item.host for item in sight.changed} == {"a"}
    assert not sight.clean
    reaped = reap(bench.lab, bench.store)
    assert "a nic0 tx-tcp-segmentation" in reaped.restored
    assert host.features() == before
    assert find(bench.lab, bench.store).changed == ()


def test_an_attempt_that_can_not_restore_says_so_and_keeps_its_hosts(bench: Bench, host: HostNamespace) -> None:
    claimed = bench.claimed(tso=False)
    bench.set_up(claimed)
    host.stop()
    (said,) = bench.release(claimed)
    assert said.startswith(
        "Settings of host a could not be restored to what they were before a run: nic0 tx-tcp-segmentation on"
    )
    handle = AttemptHandle(id=claimed.id, token=claimed.token)
    assert bench.store.accept(handle, a_result(), After()) is not None
    assert bench.store.lost_attempts(lab="lab") == (claimed.id,)
    host.start()
    clean_campaign(bench.store, bench.campaign)
    assert bench.store.leases("lab") == ()


def test_who_lets_a_host_in_again_has_seen_to_its_settings(bench: Bench, host: HostNamespace) -> None:
    claimed = bench.claimed(tso=False)
    bench.set_up(claimed)
    bench.lose(claimed)
    host.stop()
    clean_campaign(bench.store, bench.campaign)
    host.start()
    for feature, value in (("tso", "on"), ("tx-tcp-mangleid-segmentation", "off")):
        host.run("ethtool", "-K", "nic0", feature, value)
    release_host(bench.store, "lab", "a")
    assert bench.store.open_adjustments() == ()


def test_a_change_by_somebody_else_in_between_is_seen(bench: Bench, host: HostNamespace) -> None:
    claimed = bench.claimed(tso=False)
    bench.set_up(claimed)
    host.run("ethtool", "-K", "nic0", "tx-tcp-segmentation", "on")
    with pytest.raises(LabError, match="offload tso of adapter nic0 is on, though off was asked for") as seen:
        host_stacks.verify(claimed, bench.machines())
    assert (seen.value.kind, seen.value.host) == ("offload-mismatch", "a")
    bench.release(claimed)


@pytest.mark.parametrize(
    ("offload", "kind", "why"),
    [("lro", "offload-mismatch", "keeps it fixed"), ("tx-of-nobody", "offload-missing", "nic0")],
)
def test_what_the_adapter_can_not_do_is_told_and_nothing_is_recorded(
    bench: Bench, offload: str, kind: str, why: str
) -> None:
    with pytest.raises(LabError) as told:
        bench.set_up(bench.claimed(**{offload: True}))
    assert told.value.kind == kind
    assert why in told.value.why
    assert bench.store.open_adjustments() == ()

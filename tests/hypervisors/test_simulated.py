"""The parts of the simulated hypervisor: what its tools print, how its migrations go, when its faults strike."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl import clock
from labctl.errors import LabError
from labctl.model.lab import Lab
from labctl.model.order import TransferOrder
from labctl.model.reading import Capture, ErrorKind, Reading
from tests.hypervisors.guests import Guests, an_order, guests_of
from tests.simulated import a_simulated_lab, vms_left
from workers.guard import Guard
from workers.hypervisors.base import OwnershipMark
from workers.hypervisors.simulated import iperf3_output, iperf_output
from workers.hypervisors.simulated import vm as vms
from workers.hypervisors.simulated.asked import asked
from workers.hypervisors.simulated.faults import Fault, FaultKind, Faults, hits, write_faults
from workers.hypervisors.simulated.figures import Figures
from workers.hypervisors.simulated.lines import Move
from workers.hypervisors.simulated.migration import course
from workers.hypervisors.simulated.talk import Talk
from workers.hypervisors.simulated.traffic import traffic
from workers.hypervisors.simulated.world import World
from workers.transfers.registry import TOOLS

OUTPUTS = {"iperf3": iperf3_output, "iperf": iperf_output}

orders = st.builds(
    TransferOrder,
    tool=st.sampled_from(["iperf3", "iperf"]),
    seconds=st.integers(1, 30).map(float),
    interval=st.sampled_from([0.5, 1.0]),
    streams=st.integers(1, 9),
    protocol=st.sampled_from(["tcp", "udp"]),
    rate=st.just(20_000_000),
    reverse=st.booleans(),
)


def talk_of(order: TransferOrder, *, rate: float, lost_at: float | None = None, lost: float = 0.0) -> Talk:
    """The talk of one client with its server over a path of this rate."""
    command = TOOLS[order.tool].client_command(order, server="198.18.0.2", port=20_101)
    what = asked(command)
    assert what is not None
    moved = traffic(
        zero=0.0,
        seconds=what.seconds,
        interval=what.interval,
        rate_at=lambda _moment: rate,
        moves=(),
        seed="1",
        noise=0.01,
        drift=0.0,
        lost_at=lost_at,
    )
    return Talk(
        asked=what, client="198.18.0.1", server="198.18.0.2", port=40_000, moved=moved, lost=lost, started=1e9, pid=77
    )


def read(order: TransferOrder, talk: Talk, *, stderr: bytes = b"") -> Reading:
    """What the tool's real parser reads from both outputs."""
    output = OUTPUTS[order.tool]
    command = TOOLS[order.tool].client_command(order, server="198.18.0.2", port=20_101)
    return TOOLS[order.tool].parse(
        Capture(
            stdout=output.client_output(talk),
            stderr=stderr,
            server=output.server_output(talk),
            exit_code=0,
            requested_seconds=order.seconds,
            command=" ".join(command),
            elapsed=order.seconds + 0.3,
        )
    )


@given(order=orders, rate=st.floats(1e7, 4e10))
def test_what_tools_print_is_read_back_to_the_byte(order: TransferOrder, rate: float) -> None:
    talk = talk_of(order, rate=rate, lost=0.001 if order.protocol == "udp" else 0.0)
    reading = read(order, talk)
    assert reading.ok, reading
    assert not reading.warnings
    assert reading.bytes == talk.moved.bytes
    assert reading.seconds == pytest.approx(order.seconds)
    assert reading.streams == order.streams
    assert len(reading.intervals or ()) == round(order.seconds / order.interval)
    assert (reading.udp is not None) == (order.protocol == "udp")


@given(order=orders, share=st.floats(0.3, 0.7))
def test_a_lost_connection_is_read_as_one(order: TransferOrder, share: float) -> None:
    order = replace(order, seconds=max(8.0, order.seconds), protocol="tcp")
    talk = talk_of(order, rate=1e9, lost_at=share * order.seconds)
    reading = read(order, talk, stderr=iperf_output.LOST if order.tool == "iperf" else b"")
    assert (reading.ok, reading.error_kind) == (False, ErrorKind.CONNECTION_LOST)


@pytest.mark.parametrize("tool", ["iperf3", "iperf"])
def test_a_refused_connection_is_read_as_one(tool: str) -> None:
    if tool == "iperf3":
        capture = Capture(stdout=iperf3_output.refused(), requested_seconds=2.0, exit_code=1)
    else:
        text = iperf_output.refused("198.18.0.2", 5001)
        capture = Capture(stdout=text, stderr=iperf_output.REFUSED, requested_seconds=2.0, exit_code=1)
    assert TOOLS[tool].parse(capture).error_kind is ErrorKind.CONNECT_REFUSED


@given(
    rates=st.tuples(st.floats(1e8, 4e10), st.floats(1e8, 4e10)),
    start=st.floats(0, 20),
    copying=st.floats(0.1, 20),
    pause=st.floats(0.01, 0.5),
)
def test_no_byte_moves_while_a_vm_stands_still(
    rates: tuple[float, float], start: float, copying: float, pause: float
) -> None:
    move = Move(start=start, down=start + copying, end=start + copying + pause, source="a", destination="b")
    moved = traffic(
        zero=0.0,
        seconds=60.0,
        interval=1.0,
        rate_at=lambda moment: rates[move.host_at(moment) == "b"],
        moves=(move,),
        seed="1",
        noise=0.0,
        drift=0.0,
        lost_at=None,
    )
    most = 60 * max(rates) / 8
    assert 0 < moved.bytes <= most
    before = [one for one in moved.stretches if one.end <= start]
    assert all(one.bytes == int(rates[0] / 8) for one in before)
    without = traffic(
        zero=0.0, seconds=60.0, interval=60.0, rate_at=lambda _moment: min(rates), moves=(), seed="1", noise=0.0,
        drift=0.0, lost_at=None,
    )  # fmt: skip
    assert moved.bytes >= 0.5 * without.bytes - pause * max(rates) / 8


@given(used=st.integers(2**20, 2**34), bandwidth=st.floats(1e7, 1e11), share=st.floats(0, 2))
def test_a_migration_converges_when_memory_is_copied_faster_than_it_is_written(
    used: int, bandwidth: float, share: float
) -> None:
    found = course(used, bandwidth=bandwidth, dirty=share * bandwidth)
    if share >= 1 and used * 8 > bandwidth:
        assert found.copying == float("inf")
    elif share < 0.8:
        assert found.copying < float("inf")
        assert found.bytes >= used
        assert 0 < found.pause < 0.5
        assert found.copying >= (used * 8 / bandwidth if found.passes > 1 else 0.0)


# Faults


def the_world(lab: Lab) -> World:
    return World(lab, Guard())


def test_a_fault_strikes_the_operations_that_fit(tmp_path: Path) -> None:
    write_faults(
        tmp_path,
        [
            Fault(kind=FaultKind.FAIL, operation="create", host="a", nth=2),
            Fault(kind=FaultKind.HOST_LOST, host="b", end=0),
        ],
    )
    faults = Faults.read(tmp_path)
    assert [faults.hit("create", host) for host in ("a", "b", "a", "a")] == [None, None, FaultKind.FAIL, None]
    assert faults.hit("destroy", "a") is None
    (hit,) = hits(tmp_path)
    assert (hit.kind, hit.operation, hit.host) == (FaultKind.FAIL, "create", "a")


def test_of_many_at_once_the_nth_strikes_one(tmp_path: Path) -> None:
    """Occurrences are counted over all processes and threads."""
    write_faults(tmp_path, [Fault(kind=FaultKind.FAIL, operation="create", nth=50)])

    def hurry(_number: int) -> list[FaultKind | None]:
        mine = Faults.read(tmp_path)
        return [mine.hit("create", "a") for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        struck = [fault for found in pool.map(hurry, range(8)) for fault in found if fault is not None]
    assert struck == [FaultKind.FAIL]


DIE = """
import sys
from pathlib import Path
from tests.hypervisors.guests import Guests
from tests.simulated import a_simulated_lab
guests = Guests(a_simulated_lab(Path(sys.argv[1])))
vm = guests.create()
guests.driver.locate(vm)
guests.driver.destroy(vm)
print("alive")
"""


@pytest.mark.parametrize(("operation", "left"), [("create", 0), ("locate", 1), ("destroy", 1), ("migrate", 0)])
def test_a_process_that_is_killed_leaves_what_it_would_leave_on_real_hosts(
    tmp_path: Path, operation: str, left: int
) -> None:
    world = tmp_path / "world"
    lab = a_simulated_lab(
        world, figures=Figures.instant(), faults=[Fault(kind=FaultKind.DIE, operation=operation, nth=1)]
    )
    done = subprocess.run([sys.executable, "-c", DIE, str(world)], capture_output=True, text=True, cwd=Path.cwd())
    if operation == "migrate":
        assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
    else:
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
        assert [hit.kind for hit in hits(world)] == [FaultKind.DIE]
    assert len(vms_left(lab)) == left
    assert len(Guests(lab).another_driver().owned("a")) == left


def test_the_lines_of_a_migration_can_be_died_at(tmp_path: Path) -> None:
    """Up to the hand-over the VM is on its source, as after a managed migration whose client died (M10)."""
    script = DIE.replace("guests.driver.locate(vm)", "from tests.hypervisors.guests import an_order\n"
                         "guests.driver.migrate(vm, 'b', an_order())")  # fmt: skip
    for operation, where in (("migrate", "a"), ("hand-over", "a"), ("destroy", "b")):
        world = tmp_path / operation
        figures = replace(Figures.instant(), migration=1e12)
        lab = a_simulated_lab(world, figures=figures, faults=[Fault(kind=FaultKind.DIE, operation=operation, nth=1)])
        done = subprocess.run(
            [sys.executable, "-c", script, str(world)], capture_output=True, text=True, cwd=Path.cwd()
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert [name.split("/")[0] for name in vms_left(lab)] == [where], operation


def test_a_lost_host_answers_nothing_and_is_whole_when_it_is_back(tmp_path: Path) -> None:
    lab = a_simulated_lab(tmp_path, figures=Figures.instant())
    with guests_of(lab) as guests:
        vm = guests.create()
        write_faults(tmp_path, [Fault(kind=FaultKind.HOST_LOST, host="a")])
        cut_off = guests.another_driver()
        for call in (
            lambda: cut_off.locate(vm),
            lambda: cut_off.owned("a"),
            lambda: cut_off.destroy(vm),
            lambda: cut_off.host_facts("a"),
            lambda: cut_off.create("a", guests.request(), timeout=1.0),
        ):
            with pytest.raises(LabError) as caught:
                call()
            assert (caught.value.kind, caught.value.host) == ("host-unreachable", "a")
        assert cut_off.owned("b") == ()
        write_faults(tmp_path, [])
        assert guests.another_driver().locate(vm) == "a"


def test_a_migration_to_a_lost_host_is_an_outcome(tmp_path: Path) -> None:
    lab = a_simulated_lab(tmp_path, figures=Figures.instant(), faults=[Fault(kind=FaultKind.HOST_LOST, host="b")])
    with guests_of(lab) as guests:
        vm = guests.create()
        outcome = guests.driver.migrate(vm, "b", an_order())
        assert (outcome.completed, outcome.error_kind) == (False, "unreachable")
        assert guests.driver.locate(vm) == "a"
        write_faults(tmp_path, [])


def test_a_busy_host_shows_in_its_facts(tmp_path: Path) -> None:
    lab = a_simulated_lab(tmp_path, faults=[Fault(kind=FaultKind.BUSY, host="a", factor=0.5)])
    guests = Guests(lab)
    facts, idle = guests.driver.host_facts("a"), guests.driver.host_facts("b")
    assert float(str(facts["load.1min"])) > 0.4 * float(str(facts["cpu.count"]))
    assert float(str(idle["load.1min"])) < 1.0
    busy = float(str(facts["cpu.busy_seconds"])) / float(str(facts["cpu.idle_seconds"]))
    assert busy > 0.5


def test_a_vm_without_a_mark_is_foreign_and_never_ended(tmp_path: Path) -> None:
    lab = a_simulated_lab(tmp_path, figures=Figures.instant())
    with guests_of(lab) as guests:
        vm = guests.create()
        world = the_world(lab)
        presence = vms.find(world, "a", vm.name)
        assert presence is not None
        vms.set_paused(world, replace(presence, mark=None), paused=False)
        assert guests.driver.owned("a") == ()
        assert guests.driver.host_facts("a")["vms.foreign"] == 1
        with pytest.raises(LabError) as caught:
            guests.driver.destroy(vm)
        assert caught.value.kind == "not-ours"
        vms.set_paused(world, presence, paused=False)


names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=40)


@given(name=names, memory=st.integers(2**20, 2**40), offloads=st.dictionaries(names, st.booleans(), max_size=4))
def test_a_vm_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, memory: int, offloads: dict[str, bool]
) -> None:
    lab = a_simulated_lab(tmp_path_factory.mktemp("world"), figures=Figures.instant())
    guests = Guests(lab)
    request = guests.request(memory=memory, offloads=offloads)
    mark = OwnershipMark(lab=name, campaign=1, run=2, attempt=3, role=name, store=name)
    world = the_world(lab)
    vms.create(world, lab.hosts["a"], replace(request, mark=mark))
    found = vms.find(world, "a", request.name)
    assert found is not None
    assert (found.shape, found.mark, found.uuid, found.mac) == (request.shape, mark, request.uuid, request.mac)
    assert found.ready is not None
    assert found.ready <= clock.monotonic()

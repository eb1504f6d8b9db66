"""Connections: made where they are used, with deadlines, and made anew when libvirt was restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import libvirt
import pytest

from labctl.errors import LabError
from labctl.model.lab import Lab
from labctl.spec.documents import to_json
from tests.hypervisors.guests import Guests, guests_of
from tests.values import a_lab
from workers.hypervisors.kvm import connection as connection_module
from workers.hypervisors.kvm.connection import CallTimeout, Connections, bounded
from workers.locallab import embedded


def test_a_call_that_does_not_return_is_given_up() -> None:
    """L15: the library itself has no deadlines."""
    forever = threading.Event()
    with pytest.raises(CallTimeout):
        bounded(forever.wait, 0.05)
    forever.set()


def test_a_calls_error_is_the_callers() -> None:
    def fail() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        bounded(fail, 5)


def test_a_uri_where_nobody_listens_is_an_unreachable_host(capfd: pytest.CaptureFixture[str]) -> None:
    connections = Connections(a_lab().hosts)
    with pytest.raises(LabError, match="/nowhere/a") as caught:
        connections.read("a", lambda c: c.getHostname())
    assert (caught.value.kind, caught.value.host) == ("host-unreachable", "a")
    assert caught.value.todo
    assert "libvirt" not in capfd.readouterr().err, "the library's own messages reach the terminal"


def test_a_host_that_the_lab_lacks_is_unreachable() -> None:
    with pytest.raises(LabError, match="no host z"):
        Connections(a_lab().hosts).read("z", lambda c: c.getHostname())


@pytest.mark.lab
def test_many_threads_are_served_at_once(embedded_lab: Lab) -> None:
    connections = Connections(embedded_lab.hosts)
    names: list[str] = []
    threads = [
        threading.Thread(target=lambda: names.append(connections.read("a", lambda c: c.getHostname())))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 20
    connections.close()


@pytest.mark.lab
def test_a_forked_child_is_told_so_and_its_parent_unharmed(embedded_lab: Lab) -> None:
    """M8, C6: it would read from its parent's socket."""
    script = textwrap.dedent("""
        import os, sys
        from labctl.errors import LabError
        from labctl.model.lab import Lab
        from labctl.spec.documents import from_json
        from workers.hypervisors.kvm.connection import Connections

        connections = Connections(from_json(Lab, sys.stdin.read()).hosts)
        ask = lambda: connections.read("a", lambda c: c.getHostname())
        before = ask()
        child = os.fork()
        if child == 0:
            try:
                ask()
            except LabError as error:
                os._exit(7 if "forked" in error.what else 1)
            os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        assert ask() == before
        connections.close()
    """)
    done = run_with_lab(script, embedded_lab)
    assert done.returncode == 0, done.stderr


@pytest.mark.lab
def test_a_child_forked_before_the_first_use_works(embedded_lab: Lab) -> None:
    """M8, C6: connections are made where they are used."""
    script = textwrap.dedent("""
        import os, sys
        from labctl.model.lab import Lab
        from labctl.spec.documents import from_json
        from workers.hypervisors.kvm.connection import Connections

        connections = Connections(from_json(Lab, sys.stdin.read()).hosts)
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(connections.read("a", lambda c: c.getHostname()) for _ in range(50)) else 1)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
        assert connections.read("a", lambda c: c.getHostname())
    """)
    done = run_with_lab(script, embedded_lab)
    assert done.returncode == 0, done.stderr


@pytest.mark.lab
@pytest.mark.faults
def test_a_restarted_libvirtd_costs_nothing(make_lab: Callable[..., Lab]) -> None:
    """L2: stale connections are replaced and VMs looked up anew."""
    lab = make_lab("restart", hosts=("a",), machines=())
    embedded.up(lab, say=print)
    with guests_of(lab) as guests:
        vm, channel = guests.boot()
        os.kill(libvirtd(lab, "a"), signal.SIGKILL)
        embedded.up(lab, say=print)
        assert guests.driver.locate(vm) == "a"
        assert guests.driver.read_back(vm)["nic.model"] == "virtio"
        channel.wait_ready(timeout=30)
        assert channel.run(["true"], timeout=20).exit_code == 0
        guests.driver.destroy(vm)
        assert guests.driver.locate(vm) is None


@pytest.mark.lab
@pytest.mark.faults
def test_a_write_on_a_connection_that_dies_under_it_is_made_once(embedded_lab: Lab) -> None:
    """L2: it may have taken effect."""
    connections = Connections(embedded_lab.hosts)
    calls: list[int] = []

    def dies(connection: libvirt.virConnect) -> None:
        calls.append(1)
        connection.close()
        connection.getHostname()

    with pytest.raises((LabError, libvirt.libvirtError)):
        connections.write("a", dies)
    assert len(calls) == 1
    assert connections.read("a", lambda c: c.getHostname())
    connections.close()


@pytest.mark.lab
@pytest.mark.faults
def test_a_libvirtd_that_hangs_is_given_up_and_found_again(guests: Guests, monkeypatch: pytest.MonkeyPatch) -> None:
    """L15: and other hosts go on meanwhile."""
    monkeypatch.setattr(connection_module, "OPEN_SECONDS", 1.0)
    vm = guests.create()
    connections = Connections(guests.lab.hosts)
    assert connections.read("a", lambda c: c.getHostname())
    with stopped(libvirtd(guests.lab, "a")):
        with pytest.raises(LabError) as caught:
            connections.read("a", lambda c: c.getHostname(), seconds=1.0)
        assert (caught.value.kind, caught.value.host) == ("host-unreachable", "a")
        with pytest.raises(LabError, match="doesn't answer"):
            connections.read("a", lambda c: c.getHostname(), seconds=1.0)
        assert guests.driver.host_facts("b")["hostname"], "the other host is not affected"
    monkeypatch.setattr(connection_module, "OPEN_SECONDS", 10.0)
    assert connections.read("a", lambda c: c.getHostname())
    assert guests.driver.locate(vm) == "a"
    connections.close()


@pytest.mark.lab
@pytest.mark.faults
def test_keepalive_ends_a_connection_to_a_libvirtd_that_hangs(
    embedded_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "KEEPALIVE_SECONDS", 1)
    monkeypatch.setattr(connection_module, "KEEPALIVE_COUNT", 1)
    connections = Connections(embedded_lab.hosts)
    with connections.lease("a") as opened, stopped(libvirtd(embedded_lab, "a")):
        with pytest.raises(libvirt.libvirtError):
            bounded(opened.getHostname, 30)
        assert connection_module.is_dead(opened)
    connections.close()


@pytest.mark.lab
def test_l2_m9_the_event_loop_runs_from_the_first_connection_on(embedded_lab: Lab) -> None:
    """M9: an idle connection dies after half a minute when nobody runs the loop that answers for it."""
    connections = Connections(embedded_lab.hosts)
    assert connections.read("a", lambda c: c.getHostname())
    fired = threading.Event()
    timer = libvirt.virEventAddTimeout(20, lambda _timer, _opaque: fired.set(), None)
    assert fired.wait(30), "a timer of the loop has not come to pass"
    libvirt.virEventRemoveTimeout(timer)
    connections.close()


@pytest.mark.lab
def test_a_driver_of_a_lab_with_a_dead_host_still_serves_the_others(embedded_lab: Lab) -> None:
    hosts = dict(embedded_lab.hosts)
    hosts["b"] = replace(hosts["b"], uri="qemu+unix:///system?socket=/nowhere/b")
    with guests_of_reachable(replace(embedded_lab, hosts=hosts)) as guests:
        vm = guests.create()
        assert guests.driver.locate(vm) == "a"
        stranger = guests.another_driver()
        assert stranger.locate(vm) == "a"
        guests.driver.destroy(vm)
        with pytest.raises(LabError) as caught:
            stranger.destroy(vm)
        assert (caught.value.kind, caught.value.host) == ("host-unreachable", "b"), "it may be there: not a success"


@contextmanager
def guests_of_reachable(lab: Lab) -> Iterator[Guests]:
    """Guests of a lab of which only host `a` can be asked whether something was left behind."""
    guests = Guests(lab)
    yield guests
    guests.driver.close()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.2)


def libvirtd(lab: Lab, host: str) -> int:
    """The process of a host's libvirtd."""
    assert lab.embedded is not None
    return int(next(Path(lab.embedded.directory).glob(f"**/{host}/libvirtd.pid")).read_text())


def run_with_lab(script: str, lab: Lab) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], input=to_json(lab), capture_output=True, text=True, timeout=120
    )

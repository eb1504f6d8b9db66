"""The load of KVM hosts: what the script prints, and that it sees what really happens on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.model.lab import Lab
from tests.hypervisors.guests import STORE
from workers.guard import Guard
from workers.hypervisors.kvm.driver import KvmDriver
from workers.hypervisors.kvm.load import Counters, parse_counters
from workers.machines import Machines

HARDWARE = """uptime 4711.02
load 0.50
interface lo other 1000 1000
interface eno1 device 70 7
interface eno2 device 700 0
interface bond0 other 770 7
interface br0 bridge 770 7
interface vnet0 tap 5 5
"""
NAMESPACE = """uptime 4711.50
load 1.25
interface lo other 1000 1000
interface data0 other 70 7
interface mgmt0 other 0 700
interface labctl0 bridge 770 7
interface vnet0 tap 5 5
"""


def test_hardware_counts_and_what_is_built_on_it_does_not() -> None:
    assert parse_counters(HARDWARE) == Counters(uptime=4711.02, load=0.5, octets=777)


def test_without_hardware_all_counts_but_loopback_bridges_and_taps() -> None:
    assert parse_counters(NAMESPACE) == Counters(uptime=4711.5, load=1.25, octets=777)


NAMES = st.from_regex(r"[a-z][a-z0-9.@_-]{0,14}", fullmatch=True).filter(lambda name: name != "lo")
INTERFACE = st.tuples(
    NAMES, st.sampled_from(["device", "other", "bridge", "tap"]), st.integers(0, 2**64), st.integers(0, 2**64)
)


@given(st.lists(INTERFACE, unique_by=lambda one: one[0]))
def test_nothing_is_counted_twice(interfaces: list[tuple[str, str, int, int]]) -> None:
    text = "uptime 1.00\nload 0.00\n" + "".join(f"interface {' '.join(map(str, one))}\n" for one in interfaces)
    kinds = {one[1] for one in interfaces}
    counted = "device" if "device" in kinds else "other"
    assert parse_counters(text).octets == sum(rx + tx for _, kind, rx, tx in interfaces if kind == counted)


@contextmanager
def one_core_busy() -> Iterator[None]:
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


@pytest.fixture
def driver(embedded_lab: Lab) -> Iterator[KvmDriver]:
    made = KvmDriver(embedded_lab, store=STORE, guard=Guard())
    yield made
    made.close()


@pytest.mark.lab
def test_a_busy_core_is_seen(driver: KvmDriver) -> None:
    cores = os.cpu_count() or 1
    with one_core_busy():
        seen = [driver.load("a") for _ in range(3)]
    assert max(one.cpu for one in seen) >= 0.8 / cores
    assert [one.running for one in seen] == [frozenset()] * 3


@pytest.mark.lab
def test_moving_data_is_seen(embedded_lab: Lab, driver: KvmDriver) -> None:
    machines = Machines(embedded_lab, store=STORE, guard=Guard())
    quiet = driver.load("a").network
    done = threading.Event()

    def move() -> None:
        while not done.is_set():
            machines.channel("a").run(["head", "-c", "4000000", "/dev/zero"], timeout=30.0)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        seen = [driver.load("a").network for _ in range(3)]
    finally:
        done.set()
        mover.join()
        machines.close()
    assert quiet is not None
    assert max(rate for rate in seen if rate is not None) > max(10e6, 2 * quiet)

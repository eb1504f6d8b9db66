"""Fixtures that tests of several rooms share: the embedded lab with real hosts, and the probe guest's image."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

import pytest

from labctl.model.lab import Lab
from labctl.spec.embedded import BENCHMARK_NETWORK, BLOCK_PREFIX_LENGTH, EmbeddedSpec, expand_embedded
from tests.desk import Desk, a_desk
from tests.quick_stores import quick_stores
from workers.locallab import embedded, namespaces
from workers.locallab.directory import REGISTRY
from workers.locallab.image import ProbeImage, build, default_cache

NAME = "pytest"
"""Names of labs of tests: `pytest-` and the id of the test process, so that two test runs don't share a lab."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`.ci/tests` finds files with tests on real guests by the words of their marks: all of them say those themselves."""
    marked = {item.path for item in items if any(item.get_closest_marker(name) for name in ("lab", "faults"))}
    hidden = [path.name for path in marked if not re.search(r"mark\.(lab|faults)\b", path.read_text())]
    if hidden:
        raise pytest.UsageError(f"write pytest.mark.lab or pytest.mark.faults out in: {', '.join(sorted(hidden))}")


@pytest.fixture(scope="session", autouse=True)
def _quick_stores() -> Iterator[None]:
    """Tests of the store itself undo it where they mean what users have: `real_stores`."""
    with quick_stores():
        yield


@pytest.fixture(scope="session")
def probe_image() -> ProbeImage:
    """The probe guest's image; built the first time."""
    return build(default_cache(), progress=print)


@pytest.fixture(scope="session")
def embedded_lab(probe_image: ProbeImage) -> Iterator[Lab]:
    """A lab of two hosts, `a` and `b`, and a plain machine, `box`; up for the whole test run."""
    _remove_labs_of_dead_test_runs()
    lab = a_lab_of_tests("lab", hosts=("a", "b"), machines=("box",))
    try:
        embedded.up(lab, say=print)
        yield lab
    finally:
        embedded.down(lab, say=print)


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Makes lab values of the test's own, and takes down at the end whatever there is of them."""
    made: list[Lab] = []

    def make(
        word: str, hosts: tuple[str, ...] = ("a", "b"), machines: tuple[str, ...] = ("box",), mtu: int = 1500
    ) -> Lab:
        made.append(a_lab_of_tests(word, hosts=hosts, machines=machines, mtu=mtu, beside=made))
        return made[-1]

    yield make
    for lab in made:
        embedded.down(lab, say=print)


@pytest.fixture
def desk(embedded_lab: Lab, tmp_path: Path) -> Iterator[Desk]:
    """A desk at the lab of the tests; the test fails when anything is left at its end."""
    with a_desk(embedded_lab, tmp_path) as desk:
        yield desk


@pytest.fixture
def mended_lab(embedded_lab: Lab) -> Iterator[Lab]:
    """The lab, for tests that break it: it is whole again afterwards."""
    yield embedded_lab
    embedded.up(embedded_lab, say=print)


@pytest.fixture
def another_key(tmp_path: Path) -> Path:
    """An SSH key that the lab doesn't know."""
    path = tmp_path / "another_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def a_lab_of_tests(
    word: str, *, hosts: tuple[str, ...], machines: tuple[str, ...], mtu: int = 1500, beside: list[Lab] | None = None
) -> Lab:
    """An embedded lab with a name of this test run's own and a free block of addresses."""
    spec = EmbeddedSpec(hosts=hosts, machines=machines, subnet=_free_block(beside or []), mtu=mtu)
    return expand_embedded(f"{NAME}-{os.getpid()}-{word}", "tests", spec)


def _free_block(beside: list[Lab]) -> IPv4Network:
    """A block that no interface of this machine and none of these labs is in."""
    taken = [
        IPv4Interface(address).network for seen in (namespaces.look(None) or {}).values() for address in seen.addresses
    ]
    taken += [lab.embedded.uplink.network for lab in beside if lab.embedded is not None]
    blocks = list(BENCHMARK_NETWORK.subnets(new_prefix=BLOCK_PREFIX_LENGTH))
    first = os.getpid() % len(blocks)
    return next(
        block for block in blocks[first:] + blocks[:first] if not any(block.overlaps(network) for network in taken)
    )


def _remove_labs_of_dead_test_runs() -> None:
    for directory in REGISTRY.glob(f"{NAME}-*-*"):
        pid = directory.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            embedded.down(expand_embedded(directory.name, "tests", EmbeddedSpec(hosts=("a",))), say=print)

"""`make demo-vsphere` ends with a report, and leaves nothing whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.report.pretence import SIMULATED_HYPERVISOR
from tests.simulators.demo_vsphere import ROOT
from workers.locallab import namespaces

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]

CAMPAIGN = """
campaign: demo
scenarios: {scenario}
factors: {{nic_model: [vmxnet3]}}
settings: {{tool: iperf3, seconds: {seconds}, memory: 64 MiB}}
repeats: 1
warmups: 0
"""


class Demo:
    """The demo with a state directory and temporary files of its own."""

    def __init__(self, folder: Path) -> None:
        self.state, self.temporary = folder / "state", folder / "tmp"
        self._campaign = folder / "demo.yaml"
        self.temporary.mkdir()

    def start(self, *, scenario: str, seconds: int) -> subprocess.Popen[str]:
        self._campaign.write_text(CAMPAIGN.format(scenario=scenario, seconds=seconds))
        environment = {**os.environ, "LABCTL_STATE": str(self.state), "TMPDIR": str(self.temporary)}
        self.process = subprocess.Popen(
            [str(ROOT / ".ci" / "demo-vsphere"), str(self._campaign)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self.process

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def assert_nothing_left(self) -> None:
        assert not list(self.temporary.iterdir())
        own = f"lw{self.process.pid}"
        assert not [name for name in namespaces.look(None) or {} if name.startswith(own)]

    @property
    def guests(self) -> list[str]:
        """The ends of guests' adapters on the bridge of the demo's world."""
        return [name for name in namespaces.look(None) or {} if name.startswith(f"lw{self.process.pid}x")]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    yield demo
    demo.end()


def test_it_ends_with_a_report_that_says_what_is_simulated(demo: Demo) -> None:
    said, _ = demo.start(scenario="same-host", seconds=1).communicate(timeout=100)
    assert demo.process.returncode == 0, said
    (report,) = (demo.state / "reports").glob("*.html")
    assert str(report) in said.replace("\n", "")
    assert SIMULATED_HYPERVISOR in report.read_text()
    demo.assert_nothing_left()


def test_nothing_is_left_when_it_is_told_to_end(demo: Demo) -> None:
    process = demo.start(scenario="same-host", seconds=100)
    end = time.monotonic() + 60
    while len(demo.guests) < 2:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    demo.assert_nothing_left()

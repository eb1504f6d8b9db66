"""A Hyper-V host that restarts in mid-campaign: the run is the lab's loss and is measured again, and nothing is left of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.desk import outcomes, until
from tests.journeys.elsewhere import a_far_desk
from tests.simulators.hyperv.endpoint import PASSWORD, PASSWORD_VARIABLE, USER, endpoints_of
from tests.simulators.hyperv.lab import DISK, STORAGE, a_datacentre
from tests.simulators.hyperv.state import RUNNING
from tests.simulators.world import GuestWorld

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


def test_a_host_that_restarts_in_mid_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    with GuestWorld() as world:
        network = world.network
        centre = a_datacentre("hv1", world=world)
        host = centre.hosts["hv1"]
        with endpoints_of(centre) as endpoints:
            lab = {
                "lab": "hyperv",
                "hosts": {
                    "hv1": {
                        "hypervisor": "hyperv",
                        "winrm": {"url": endpoints["hv1"].url, "user": USER, "password": f"env:{PASSWORD_VARIABLE}"},
                        "storage": STORAGE,
                    }
                },
                "networks": {
                    "data": {
                        "bridge": "data",
                        "guest_range": [str(network[20]), str(network[120])],
                        "prefix_length": network.prefixlen,
                    }
                },
                "images": {
                    "probe": {
                        "kind": "disk",
                        "disk": DISK,
                        "ssh_key": f"file:{world.key}",
                        "known_hosts": str(world.known_hosts),
                    }
                },
            }
            with a_far_desk(lab, tmp_path, seen=lambda: [vm.name for vm in host.vms.values()]) as desk:
                settings = {
                    "nic_model": "synthetic",
                    "tool": "iperf3",
                    "seconds": 6,
                    "interval": 0.5,
                    "rate": "100M",
                }
                going = desk.run(desk.campaign(scenarios=["same-host"], settings=settings, retries=2))
                until(
                    "two guests run",
                    lambda: sum(vm.state == RUNNING and vm.address is not None for vm in host.vms.values()) == 2,
                )
                centre.restart("hv1", seconds=0)
                endpoints["hv1"].restart()
                ended = going.wait()
                assert ended.code == 0, ended.said
                record = desk.record()
                (run,) = record.runs
                assert outcomes(record) == {"ok": 1}
                assert run.attempts == 2
                (lost,) = run.earlier
                assert lost.detail.outcome == "lab-error"
            assert all(path.parent.name == "images" for path in host.files), "folders of both attempts are gone"
        centre.close()

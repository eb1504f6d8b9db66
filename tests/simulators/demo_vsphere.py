"""The demo of vSphere: a campaign on a simulated vCenter, whose VMs boot guests that really send.

    .venv/bin/python -m tests.simulators.demo_vsphere [CAMPAIGN]

Needs root. Vcenter and guests are gone at the end, whatever happens; campaign and report stay where `labctl` keeps them.
The exit code is that of `labctl run`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from tests.simulators.vcsim import HOSTS, LINUX, VM_NETWORK, VcSim, vcsim
from tests.simulators.world import GuestWorld

ROOT = Path(__file__).parents[2]
CAMPAIGN = ROOT / "configs" / "campaigns" / "vsphere-nic-models.yaml"
VCENTER_PASSWORD, GUEST_PASSWORD = "LABCTL_DEMO_VCENTER_PASSWORD", "LABCTL_DEMO_GUEST_PASSWORD"
"""Environment variables that the lab file names for its passwords."""


def main(campaign: Path) -> int:
    """Run the campaign and return the exit code."""
    print("Starting a simulated vCenter. The first time it is built, which takes a minute.", flush=True)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, _end)
    with GuestWorld() as world, vcsim(world=world) as vc, tempfile.TemporaryDirectory(prefix="labctl-demo-") as folder:
        lab = Path(folder) / "vsphere-demo.yaml"
        lab.write_text(json.dumps(lab_file(vc, world), indent=2))  # JSON is YAML
        secrets = {VCENTER_PASSWORD: vc.password, GUEST_PASSWORD: vc.guest_password}
        return run_labctl(["run", str(campaign), "--lab", str(lab)], secrets)


def lab_file(vc: VcSim, world: GuestWorld) -> dict[str, Any]:
    """Two ESXi hosts with a shared datastore. Commands reach the guests by VMware Tools."""
    network = world.network
    return {
        "lab": "vsphere-demo",
        "vcenters": {
            "vc": {
                "address": vc.address,
                "user": vc.user,
                "password": f"env:{VCENTER_PASSWORD}",
                "ca_file": str(vc.ca_file),
            }
        },
        "hosts": {
            f"esx{number}": {"hypervisor": "vsphere", "vcenter": "vc", "inventory": name, "datastore": "shared"}
            for number, name in enumerate(HOSTS, start=1)
        },
        "networks": {
            "data": {
                "bridge": VM_NETWORK,
                "guest_range": [str(network[20]), str(network[99])],
                "prefix_length": network.prefixlen,
            }
        },
        "images": {
            "probe": {
                "kind": "template",
                "template": LINUX.name,
                "customisation": "guestinfo",
                "login": {"user": vc.guest_user, "password": f"env:{GUEST_PASSWORD}"},
            }
        },
        "migration": "all",
    }


def run_labctl(arguments: list[str], secrets: dict[str, str]) -> int:
    """Run `labctl` to its end. Ctrl-C is for `labctl`, which ends in good order; so are other requests to end."""
    labctl = subprocess.Popen([str(ROOT / ".venv" / "bin" / "labctl"), *arguments], env={**os.environ, **secrets})
    while True:
        try:
            return labctl.wait()
        except KeyboardInterrupt:
            continue  # the terminal has told labctl too
        except SystemExit:
            labctl.terminate()
            labctl.wait()
            raise


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else CAMPAIGN))

"""Runs `up`, `up`, `status`, `down`, `down` where nobody else is, and prints as JSON what was there at each moment.

To be started in mount, network and process namespaces of its own with an empty /run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from labctl.spec.embedded import EmbeddedSpec, expand_embedded
from workers.locallab import embedded


def everything() -> dict[str, list[str]]:
    """All processes, interfaces, mounts and files under /run."""
    links = subprocess.run(["ip", "-json", "address"], capture_output=True, check=True, text=True).stdout
    return {
        "processes": sorted(
            (process / "comm").read_text().strip()
            for process in Path("/proc").glob("[0-9]*")
            if int(process.name) != os.getpid() and (process / "cmdline").read_bytes()
        ),
        "interfaces": sorted(link["ifname"] for link in json.loads(links)),
        "mounts": Path("/proc/mounts").read_text().splitlines(),
        "files": sorted(str(path) for path in Path("/run").rglob("*")),
    }


def main() -> None:
    """The whole life of a lab."""
    lab = expand_embedded("clean-room", "tests", EmbeddedSpec(hosts=("a", "b"), machines=("box",)))
    said: list[str] = []
    before = everything()
    embedded.up(lab, say=said.append)
    first = len(said)
    up = everything()
    embedded.up(lab, say=said.append)
    again = everything()
    is_up = embedded.status(lab).up
    embedded.down(lab, say=lambda _: None)
    after = everything()
    embedded.down(lab, say=lambda _: None)
    print(
        json.dumps(
            {
                "before": before,
                "up": up,
                "again": again,
                "after": after,
                "finally": everything(),
                "is_up": is_up,
                "second_up_did": said[first:],
            }
        )
    )


main()

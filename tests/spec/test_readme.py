"""The examples of the README are files that labctl takes."""

from __future__ import annotations

import re
from pathlib import Path

from labctl.model.campaign import Campaign
from labctl.model.nic import Hypervisor
from labctl.spec.campaign import parse_campaign
from labctl.spec.lab import parse_lab

README = (Path(__file__).parents[2] / "README.md").read_text()


def example(title: str) -> str:
    """The first example of a section."""
    match = re.search(rf"^#+ {title}\n.*?```yaml\n(.*?)```", README, re.DOTALL | re.MULTILINE)
    assert match is not None, title
    return match[1]


def test_a_campaign_with_what_is_said_of_nights() -> None:
    day = example("Your own campaign")
    assert parse_campaign(day).repeats == 5
    night = parse_campaign(re.sub(r"^repeats:.*\n", "", day, flags=re.MULTILINE) + example("A night"))
    assert night.windows is not None
    assert night.adaptive is not None
    assert night.anchor is not None
    assert (night.priority, night.notify) != (Campaign.priority, Campaign.notify)


def test_labs_of_other_hypervisors() -> None:
    for title, hypervisor in (("A vSphere lab", Hypervisor.VSPHERE), ("A Hyper-V lab", Hypervisor.HYPERV)):
        lab = parse_lab(example(title), base=Path("/"))
        assert {host.hypervisor for host in lab.hosts.values()} == {hypervisor}
        assert len(lab.migration_pairs) == 2


def test_a_lab_and_what_its_hosts_may_be_doing() -> None:
    limits = example("Quiet hosts").split("\n\n")[0]
    assert parse_lab(example("Your own lab") + limits, base=Path("/")).quiet is not None

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.errors import SpecError
from labctl.spec.campaign import parse_campaign
from labctl.spec.cross_check import cross_check, load_both
from labctl.spec.lab import parse_lab

TWO = "lab: two\nembedded: {hosts: [a, b], machines: [box]}\n"
ONE = "lab: one\nembedded: {hosts: [a]}\n"
BARE = """\
lab: bare
hosts:
  a: {hypervisor: kvm, uri: "qemu:///system"}
  b: {hypervisor: kvm, uri: "qemu+ssh://b/system"}
networks: {data: {bridge: br0, guest_range: [192.0.2.100, 192.0.2.199]}}
images: {debian: {kind: disk, disk: /d.qcow2}}
"""


def files(folder: Path, campaign: str, lab: str) -> tuple[Path, Path]:
    paths = folder / "c.yaml", folder / "l.yaml"
    for path, text in zip(paths, (campaign, lab), strict=True):
        path.write_text(text)
    return paths


@pytest.mark.parametrize(
    ("lab", "campaign", "key", "near"),
    [
        (TWO, "campaign: x\nscenarios: vm-to-host\nfactors: {peer: [own-host, ¦bxo]}\n", "factors.peer[1]", "box"),
        (TWO, "campaign: x\nscenarios: same-host\nsettings: {image: ¦probee}\n", "settings.image", "probe"),
        (TWO, "campaign: x\nscenarios: same-host\nfactors: {nic_model: [virtio, ¦legacy]}\n", "factors.nic_model[1]", ""),
        (TWO, "campaign: x\ninclude: [{scenario: same-host, nic_model: ¦synthetic}]\n", "include[0].nic_model", ""),
        (ONE, "campaign: x\nscenarios: [¦cross-host]\n", "scenarios[0]", ""),
        (ONE, "campaign: x\nscenarios: ¦during-migration\n", "scenarios", ""),
        (BARE, "campaign: x\nscenarios: [¦host-to-host]\n", "scenarios[0]", ""),
        (BARE, "campaign: x\nscenarios: [¦vm-to-host]\nsettings: {image: debian}\n", "scenarios[0]", ""),
        (BARE, "campaign: x\nscenarios: [¦during-migration]\nsettings: {image: debian}\n", "scenarios[0]", ""),
        (BARE, "campaign: x\nscenarios: [same-host]\nsettings: {¦streams: 1}\n", "settings", ""),
    ],
)  # fmt: skip
def test_what_only_the_lab_can_know_is_told_with_its_place(
    tmp_path: Path, lab: str, campaign: str, key: str, near: str
) -> None:
    before = campaign[: campaign.index("¦")]
    with pytest.raises(SpecError) as caught:
        load_both(*files(tmp_path, campaign.replace("¦", ""), lab))
    (problem,) = caught.value.problems
    assert (problem.key, problem.nearest) == (key if near or "¦streams" not in campaign else "settings", near)
    assert problem.line == before.count("\n") + 1
    if "¦streams" not in campaign:
        assert problem.column == len(before) - (before.rfind("\n") + 1) + 1


def test_a_scenario_that_can_run_lets_the_campaign_through() -> None:
    lab = parse_lab(ONE)
    cross_check(parse_campaign("campaign: x\nscenarios: [same-host, cross-host, during-migration]\n"), lab)


def test_without_the_file_mistakes_are_told_without_a_place() -> None:
    campaign = parse_campaign("campaign: x\nscenarios: vm-to-host\nsettings: {peer: bxo}\n")
    with pytest.raises(SpecError) as caught:
        cross_check(campaign, parse_lab(TWO))
    (problem,) = caught.value.problems
    assert (problem.line, problem.key, problem.value, problem.nearest) == (0, "settings.peer", "bxo", "box")


def test_mistakes_of_both_files_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_both(*files(tmp_path, "campaign: x\nscenarois: []\n", "lab: x\nhosts: 3\n"))
    assert {Path(problem.file).name for problem in caught.value.problems} == {"c.yaml", "l.yaml"}


def test_both_files_of_the_demo_fit(tmp_path: Path) -> None:
    configs = Path(__file__).parents[2] / "configs"
    for path in (configs / "campaigns").glob("*.yaml"):
        kind, _, _ = path.stem.partition("-")
        campaign, _ = load_both(path, configs / "labs" / f"{kind if kind in ('vsphere', 'hyperv') else 'local'}.yaml")
        assert campaign.name == path.stem

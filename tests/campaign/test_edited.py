"""What is different between two states of a lab file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from labctl.campaign.edited import Difference, differences
from labctl.model.lab import Lab, QuietLimits
from labctl.spec.lab import load_lab, parse_lab
from tests.values import a_lab

CONFIGS = Path(__file__).parents[2] / "configs" / "labs"


def changed(**of_host: object) -> Lab:
    """The lab with another host a."""
    lab = a_lab()
    return replace(lab, hosts=dict(lab.hosts) | {"a": replace(lab.hosts["a"], **of_host)})  # type: ignore[arg-type]


def words(now: Lab, kept: Lab | None = None) -> list[str]:
    return [str(difference) for difference in differences(kept or a_lab(), now)]


def test_the_same_lab_is_the_same_however_often_it_is_read() -> None:
    for file in CONFIGS.glob("*.yaml"):
        assert differences(load_lab(file), load_lab(file)) == ()


def test_a_changed_key_is_told_with_what_it_was_and_is() -> None:
    assert differences(a_lab(), changed(machine="two")) == (Difference(key="hosts.a.machine", kept="one", now="two"),)
    assert words(changed(uri="qemu:///system")) == [
        "hosts.a.uri was qemu+unix:///system?socket=/nowhere/a and is qemu:///system"
    ]
    assert words(changed(address=None)) == ["hosts.a.address was 198.18.0.1/24 and is not given"]
    assert words(replace(a_lab(), quiet=QuietLimits(cpu=0.2))) == ["quiet was not given and is given"]


def test_a_host_that_came_or_went_is_one_difference() -> None:
    lab = a_lab()
    hosts = {"a": lab.hosts["a"], "c": replace(lab.hosts["b"], name="c")}
    now = replace(lab, hosts=hosts, migration_pairs=frozenset({("a", "c")}))
    assert words(now) == ["hosts.b is gone", "hosts.c is new"]


def test_migration_paths_between_hosts_that_stay_are_told() -> None:
    now = replace(a_lab(), migration_pairs=frozenset({("a", "b")}))
    assert words(now) == ["migration_pairs[b, a] is gone"]


def simulated(hosts: str, *, more: str = "") -> Lab:
    return parse_lab(f"lab: x\nsimulated: {{hosts: {hosts}, machines: [box], directory: /world{more}}}\n")


def test_addresses_that_labctl_chooses_are_not_told_when_a_host_has_gone() -> None:
    eight = simulated("[h1, h2, h3, h4, h5, h6, h7, h8]")
    seven = simulated("[h1, h3, h4, h5, h6, h7, h8]", more=", host_facts: {h3: {rack: left}}")
    assert seven.hosts["h3"].address != eight.hosts["h3"].address
    assert words(seven, eight) == ["hosts.h2 is gone", "hosts.h3.facts.rack is new"]
    assert words(eight, seven) == ["hosts.h3.facts.rack is gone", "hosts.h2 is new"]


FACTS = st.dictionaries(st.sampled_from("xyz"), st.text(max_size=3))


@given(facts=FACTS, more=FACTS)
def test_each_changed_fact_is_one_difference_and_the_way_back_is_the_mirror(
    facts: dict[str, str], more: dict[str, str]
) -> None:
    there, back = (
        differences(changed(facts=facts), changed(facts=more)),
        differences(changed(facts=more), changed(facts=facts)),
    )
    wanted = {f"hosts.a.facts.{key}" for key in facts.keys() | more.keys() if facts.get(key) != more.get(key)}
    assert {difference.key for difference in there} == {difference.key for difference in back} == wanted
    mirrored = {(difference.key, difference.now, difference.kept) for difference in back}
    assert {(difference.key, difference.kept, difference.now) for difference in there} == mirrored

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.errors import Problem, SpecError
from labctl.model.campaign import Order
from labctl.model.scenario import Scenario
from labctl.spec.campaign import load_campaign, parse_campaign

CONFIGS = Path(__file__).parents[2] / "configs" / "campaigns"

FULL = """\
campaign: nic
question: Which one?
scenarios: [same-host, cross-host, during-migration]
factors:
  nic_model: [virtio, e1000, e1000e]
  offload.tso: [on, off]
  own.rmem: [212992, 010]
settings: {seconds: 5, tool: iperf3, streams: 1, window: 64k, memory: 192 MiB, reverse: no}
overrides:
  - when: {scenario: during-migration}
    set: {seconds: 15, interval: 0.1}
include:
  - {scenario: host-to-host, peer: other-host}
exclude:
  - {scenario: [cross-host, during-migration], nic_model: e1000e}
repeats: 4
warmups: 2
transfers: 3
reuse: yes
order: sequential
seed: 42
timeouts: {boot: 90 s, migration: 2 min}
retries: 1
limits: {max_runs: 500}
baseline: {nic_model: e1000}
prepare: [[sysctl, -w, "net.core.rmem_max={own.rmem}"]]
labels: {owner: me, ticket: 0012}
published: kvm-nic-models-2010
"""


def mistakes(text: str) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as caught:
        parse_campaign(text, file="c.yaml")
    assert caught.value.exit_code == 2
    return caught.value.problems


def edited(old: str, new: str) -> str:
    assert FULL.count(old) == 1
    return FULL.replace(old, new)


def test_everything_that_a_campaign_file_can_say() -> None:
    campaign = parse_campaign(FULL)
    assert campaign.name == "nic"
    assert campaign.scenarios == (Scenario.SAME_HOST, Scenario.CROSS_HOST, Scenario.DURING_MIGRATION)
    assert campaign.factors == {
        "nic_model": ("virtio", "e1000", "e1000e"),
        "offload.tso": (True, False),
        "own.rmem": ("212992", "010"),
    }
    assert campaign.settings == {
        "seconds": 5.0,
        "tool": "iperf3",
        "streams": 1,
        "window": 65536,
        "memory": 192 * 2**20,
        "reverse": False,
    }
    (override,) = campaign.overrides
    assert override.when.levels == {"scenario": ("during-migration",)}
    assert override.settings == {"seconds": 15.0, "interval": 0.1}
    assert campaign.include[0].levels == {"scenario": ("host-to-host",), "peer": ("other-host",)}
    assert campaign.exclude[0].levels["nic_model"] == ("e1000e",)
    assert (campaign.repeats, campaign.warmups, campaign.transfers, campaign.reuse) == (4, 2, 3, True)
    assert (campaign.order, campaign.seed, campaign.lab_error_retries, campaign.max_runs) == (
        Order.SEQUENTIAL,
        42,
        1,
        500,
    )
    assert (campaign.timeouts.boot, campaign.timeouts.command, campaign.timeouts.migration) == (90.0, 20.0, 120.0)
    assert campaign.baseline == {"nic_model": "e1000", "offload.tso": True, "own.rmem": "212992"}
    assert campaign.prepare == (("sysctl", "-w", "net.core.rmem_max={own.rmem}"),)
    assert campaign.labels == {"owner": "me", "ticket": "0012"}
    assert campaign.published == "kvm-nic-models-2010"


@pytest.mark.parametrize(
    ("old", "new", "key", "value", "near"),
    [
        ("[virtio, e1000, e1000e]", "[virtio, ¦virtoi, e1000e]", "factors.nic_model[1]", "virtoi", "virtio"),
        ("nic_model: [virtio", "¦nic_modle: [virtio", "factors.nic_modle", "", "nic_model"),
        ("repeats: 4", "¦repaets: 4", "repaets", "", "repeats"),
        ("repeats: 4", "repeats: ¦three", "repeats", "three", ""),
        ("repeats: 4", "repeats: ¦'4'", "repeats", "4", ""),
        ("repeats: 4", "repeats: ¦true", "repeats", "true", ""),
        ("repeats: 4", "repeats: ¦0", "repeats", "0", ""),
        ("repeats: 4", "¦repeats:", "repeats", "", ""),
        ("streams: 1", "streams: ¦[1]", "settings.streams", "[1]", ""),
        ("streams: 1", "streams: ¦1.5", "settings.streams", "1.5", ""),
        ("tool: iperf3", "tool: ¦iper3", "settings.tool", "iper3", "iperf3"),
        (
            "cross-host, during-migration]\nf",
            "¦crosshost, during-migration]\nf",
            "scenarios[1]",
            "crosshost",
            "cross-host",
        ),
        ("offload.tso: [on, off]", "offload.tso: [on, ¦of]", "factors.offload.tso[1]", "of", ""),
        ("offload.tso: [on, off]", "offload.tso: [on, ¦true]", "factors.offload.tso[1]", "true", ""),
        ("offload.tso", "¦offload.tos", "factors.offload.tos", "", "offload.tso"),
        ("set: {seconds: 15", "¦sett: {seconds: 15", "overrides[0].sett", "", "set"),
        ("set: {seconds: 15", "set: {seconds: ¦-15", "overrides[0].set.seconds", "-15", ""),
        ("set: {seconds: 15", "set: {¦nic_model: e1000", "overrides[0].set.nic_model", "", ""),
        ("nic_model: e1000e}", "nic_model: [e1000e, ¦rtl8139]}", "exclude[0].nic_model[1]", "rtl8139", ""),
        ("nic_model: e1000e}", "¦mtu: 1500}", "exclude[0].mtu", "", ""),
        ("{nic_model: e1000}", "{nic_model: ¦e100}", "baseline.nic_model", "e100", "e1000"),
        ("{nic_model: e1000}", "{¦streams: 1}", "baseline.streams", "", ""),
        ('"net.core.rmem_max={own.rmem}"', "¦'x={own.wmem}'", "prepare[0][2]", "x={own.wmem}", "own.rmem"),
        ("boot: 90 s", "boot: ¦90 x", "timeouts.boot", "90 x", ""),
        ("migration: 2 min", "¦migratoin: 60", "timeouts.migratoin", "", "migration"),
        ("order: sequential", "order: ¦random", "order", "random", ""),
        ("{max_runs: 500}", "¦500", "limits", "500", ""),
        ("{owner: me, ticket: 0012}", "{owner: ¦[me]}", "labels.owner", "[me]", ""),
        ("campaign: nic", "campaign: ¦../etc", "campaign", "../etc", ""),
        ("seed: 42", "seed: ¦forty", "seed", "forty", ""),
        ("streams: 1,", "streams: 1, ¦nic_model: virtio,", "settings.nic_model", "", ""),
        ("host-to-host, peer", "¦host_to_host, peer", "include[0].scenario", "host_to_host", "host-to-host"),
    ],
)
def test_one_mistake_is_told_with_its_place(old: str, new: str, key: str, value: str, near: str) -> None:
    """The bar in the new text marks the place that the message must name."""
    marked = edited(old, new)
    before = marked[: marked.index("¦")]
    (problem,) = mistakes(marked.replace("¦", ""))
    assert (problem.line, problem.column) == (before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
    assert (problem.key, problem.value, problem.nearest) == (key, value, near)


def test_an_unknown_nic_model_lists_all_that_are_known() -> None:
    (problem,) = mistakes(
        edited("[virtio, e1000, e1000e]", "[virtio, e1000, ne2k]").replace("nic_model: e1000e}", "nic_model: e1000}")
    )
    assert "rtl8139" in problem.allowed
    assert "vmxnet3" in problem.allowed
    assert str(problem).startswith(
        "c.yaml:5:30: factors.nic_model[2]: is no NIC model (value: ne2k); allowed: virtio, "
    )


def test_a_value_of_the_wrong_type_deep_in_a_list() -> None:
    (problem,) = mistakes(edited('[[sysctl, -w, "net.core.rmem_max={own.rmem}"]]', "[[true, ok], [sysctl, [-w, x]]]"))
    assert (problem.line, problem.column, problem.key, problem.value) == (26, 32, "prepare[1][1]", "[-w, x]")


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = FULL.replace("virtio", "virtoi").replace("repeats: 4", "repeats: x").replace("retries", "retires")
    found = mistakes(text)
    assert [problem.key for problem in found] == ["factors.nic_model[0]", "repeats", "retires"]
    assert [problem.line for problem in found] == sorted(problem.line for problem in found)


def test_a_level_given_twice_is_told_at_the_second() -> None:
    (problem,) = mistakes("campaign: x\nscenarios: [same-host]\nfactors: {window: [64k, 128k, 65536]}\n")
    assert (problem.line, problem.column, problem.value) == (3, 31, "65536")


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("campaign: x\n", 1, "", "no scenario"),
        ("campaign: x\nscenarios: []\n", 2, "scenarios", "no scenario"),
        ("scenarios: [same-host]\n", 1, "", "`campaign` is missing"),
        ("campaign: x\nscenarios: [same-host, same-host]\n", 2, "scenarios[1]", "twice"),
        ("campaign: x\nscenarios: [same-host]\nfactors: {streams: []}\n", 3, "factors.streams", "empty"),
        ("campaign: x\nscenarios: [same-host]\nexclude: [{}]\n", 3, "exclude[0]", "selects nothing"),
        ("campaign: x\nscenarios: [same-host]\nfactors: {scenario: same-host}\n", 3, "factors.scenario", "scenarios"),
        ("campaign: x\ninclude: [{streams: 4}]\n", 2, "include[0]", "no scenario"),
        (
            "campaign: x\nscenarios: [same-host]\nfactors: {own.x: [1, 2]}\nprepare: [[echo, '{own.x}']]\n"
            "include: [{scenario: vm-to-host}]\n",
            5,
            "include[0]",
            "`prepare` needs own.x",
        ),
    ],
)
def test_contradictions(text: str, line: int, key: str, words: str) -> None:
    problem = next(problem for problem in mistakes(text) if words in problem.message)
    assert (problem.line, problem.key) == (line, key)


def test_one_scenario_and_one_level_need_no_list() -> None:
    campaign = parse_campaign("campaign: 2010\nscenarios: same-host\nfactors: {streams: 4}\n")
    assert (campaign.name, campaign.scenarios, campaign.factors) == ("2010", (Scenario.SAME_HOST,), {"streams": (4,)})


def test_included_products_alone_make_a_campaign() -> None:
    campaign = parse_campaign("campaign: x\ninclude: [{scenario: [same-host, cross-host], streams: [1, 4]}]\n")
    assert campaign.scenarios == ()
    assert campaign.include[0].levels["scenario"] == ("same-host", "cross-host")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_campaigns_that_come_along_are_right(path: Path) -> None:
    assert load_campaign(path).name == path.stem

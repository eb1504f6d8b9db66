from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from labctl.model.nic import NIC_MODELS
from labctl.model.scenario import Scenario
from labctl.model.settings import SETTINGS
from labctl.spec.schema import schema
from labctl.spec.source import parse_document
from tests.spec.test_hypervisors_in_labs import HYPERV, VSPHERE

CONFIGS = Path(__file__).parents[2] / "configs"


def test_settings_and_their_choices_are_visible_to_editors() -> None:
    factors = schema("campaign")["properties"]["factors"]
    assert set(SETTINGS) <= set(factors["properties"])
    one, many = factors["properties"]["nic_model"]["anyOf"]
    assert one["enum"] == list(NIC_MODELS)
    assert many["items"]["enum"] == list(NIC_MODELS)
    assert factors["additionalProperties"] is False
    assert any(re.search(pattern, "own.governor") for pattern in factors["patternProperties"])
    assert not any(re.search(pattern, "nic_modle") for pattern in factors["patternProperties"])
    assert SETTINGS["window"].what in factors["properties"]["window"]["description"]


def test_scenarios_are_visible_to_editors() -> None:
    document = schema("campaign")
    assert document["$defs"]["Scenario"]["enum"] == [scenario.value for scenario in Scenario]


def test_secrets_are_described_as_references() -> None:
    assert "file:PATH" in json.dumps(schema("lab")["$defs"]["SshField"]["properties"]["key"])


@pytest.mark.parametrize("kind", ["campaign", "lab"])
def test_the_files_that_come_along_fit_their_schema(kind: str) -> None:
    rules = schema(kind)
    for path in sorted((CONFIGS / f"{kind}s").glob("*.yaml")):
        document = parse_document(path.read_text(), file=path.name, what=kind, base=path.parent)
        assert list(violations(document.plain(), rules, rules, path.name)) == []


@pytest.mark.parametrize(
    "text",
    [
        "campaign: x\nscenarios: [sam-host]\n",
        "campaign: x\nfactors: {nic_modle: [virtio]}\n",
        "campaign: x\nfactors: {nic_model: [virtoi]}\n",
        "campaign: x\nsettings: {nic_model: [virtio]}\n",
        "campaign: x\nrepeats: many\n",
        "scenarios: [same-host]\n",
        "campaign: x\noverrides: [{when: {scenario: same-host}, sett: {}}]\n",
        "campaign: x\nrepeats: {min: 3, max: 10}\n",
        "campaign: x\nrepeats: 0.5\n",
        "campaign: x\nwindows: [{day: mon, time: 22:00-06:00}]\n",
        "campaign: x\nwindows: [{days: [monday], time: 22:00-06:00}]\n",
        "campaign: x\nwindows: [[22:00-06:00]]\n",
        "campaign: x\nanchor: {cell: {scenario: same-hots}, every: 2}\n",
        "campaign: x\nquiet: {then: stop}\n",
        "campaign: x\npriority: high\n",
    ],
)
def test_mistakes_do_not_fit_the_schema(text: str) -> None:
    rules = schema("campaign")
    document = parse_document(text, file="c.yaml", what="campaign", base=Path())
    assert list(violations(document.plain(), rules, rules, "c.yaml")) != []


@pytest.mark.parametrize(
    "text",
    [
        "lab: x\nsimulated: {hosts: many}\n",
        "lab: x\nsimulated: {hosts: 8, sede: 1}\n",
        "lab: x\nquiet: {cup: 20%}\n",
        "lab: x\nquiet: {other_vms: none}\n",
        "lab: x\nhosts: {a: {hypervisor: vsphere, vcentre: vc}}\n",
        "lab: x\nhosts: {a: {hypervisor: hyperv, winrm: {url: 'https://a', user: u}}}\n",
        "lab: x\nhosts: {a: {hypervisor: hyperv, winrm: {url: 'https://a', user: u, password: hunter2}}}\n",
        "lab: x\nvcenters: {vc: {address: vc, user: u, password: 'env:P', pin: maybe}}\n",
        "lab: x\nimages: {i: {kind: template, template: t, generation: 3}}\n",
        "lab: x\nimages: {i: {kind: templat, template: t}}\n",
    ],
)
def test_mistakes_in_labs_do_not_fit_the_schema(text: str) -> None:
    rules = schema("lab")
    document = parse_document(text, file="l.yaml", what="lab", base=Path())
    assert list(violations(document.plain(), rules, rules, "l.yaml")) != []


def test_labs_of_other_hypervisors_fit_the_schema() -> None:
    rules = schema("lab")
    for text in (VSPHERE, HYPERV):
        document = parse_document(text, file="l.yaml", what="lab", base=Path())
        assert list(violations(document.plain(), rules, rules, "l.yaml")) == []


def test_campaigns_and_labs_of_nights_fit_the_schema() -> None:
    campaign, lab = schema("campaign"), schema("lab")
    texts = {
        "campaign": "campaign: x\nrepeats: {min: 3, max: 10, within: 5%, budget: 4h}\nwindow: 22:00-06:00\nzone: UTC\n"
        "blackout: [2026-12-24]\nquiet: {wait: 0, then: skip}\nback_off: 10s\nnotify: ['env:X']\npriority: -5\n"
        "anchor: {cell: {scenario: same-host, streams: 1}, every: 20}\nwindows: [{days: [mon], time: 22:00-06:00}, 8:00-9:00]\n",
        "lab": "lab: x\nsimulated: {hosts: 8, machines: [box]}\nquiet: {cpu: 20%, load: 0.5, network: 50M, other_vms: 0}\n",
    }
    for kind, rules in (("campaign", campaign), ("lab", lab)):
        document = parse_document(texts[kind], file=kind, what=kind, base=Path())
        assert list(violations(document.plain(), rules, rules, kind)) == []


TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def violations(value: Any, rules: dict[str, Any], root: dict[str, Any], where: str) -> list[str]:
    """The part of JSON Schema that these schemas use."""
    if "$ref" in rules:
        return violations(value, root["$defs"][rules["$ref"].split("/")[-1]], root, where)
    if "anyOf" in rules and all(violations(value, each, root, where) for each in rules["anyOf"]):
        return [f"{where}: fits none"]
    if "enum" in rules and value not in rules["enum"]:
        return [f"{where}: {value!r} is not among {rules['enum']}"]
    if "const" in rules and value != rules["const"]:
        return [f"{where}: {value!r} is not {rules['const']!r}"]
    kinds = rules.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and not any(
        isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds
    ):
        return [f"{where}: {value!r} is no {kinds}"]
    if isinstance(value, str) and "pattern" in rules and not re.search(rules["pattern"], value):
        return [f"{where}: {value!r} is not as {rules['pattern']}"]
    found: list[str] = []
    if isinstance(value, list) and "items" in rules:
        for index, item in enumerate(value):
            found += violations(item, rules["items"], root, f"{where}[{index}]")
    if isinstance(value, dict):
        found += [f"{where}: {name} is missing" for name in rules.get("required", []) if name not in value]
        for name, item in value.items():
            patterns = [each for p, each in rules.get("patternProperties", {}).items() if re.search(p, name)]
            known = [rules["properties"][name]] if name in rules.get("properties", {}) else patterns
            extra = rules.get("additionalProperties", True)
            if not known and extra is False:
                found.append(f"{where}: unknown {name}")
            if not known and isinstance(extra, dict):
                known = [extra]
            for each in known[:1]:
                found += violations(item, each, root, f"{where}.{name}")
    return found

"""What needs both files: names in the campaign that only the lab can know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from labctl.errors import Problem, SpecError
from labctl.model.campaign import Campaign
from labctl.model.lab import Host, Lab
from labctl.model.nic import NIC_MODELS, Hypervisor
from labctl.model.scenario import OTHER_HOST, OWN_HOST, Scenario
from labctl.model.settings import SETTINGS, Level
from labctl.spec.campaign import WHAT, campaign_of, load_campaign_document
from labctl.spec.lab import lab_of, load_lab_document
from labctl.spec.levels import spoken
from labctl.spec.source import Document, KeyPath, refusal, spell
from labctl.spec.values import DEFAULT, nearest


def load_both(campaign_path: Path, lab_path: Path) -> tuple[Campaign, Lab]:
    """Campaign and lab, each checked in itself and against the other.

    Raises one `SpecError` with the mistakes of both files.
    """
    campaign_document = lab_document = None
    errors: list[SpecError] = []
    campaign = lab = None
    try:
        campaign_document = load_campaign_document(campaign_path)
        campaign = campaign_of(campaign_document)
    except SpecError as error:
        errors.append(error)
    try:
        lab_document = load_lab_document(lab_path)
        lab = lab_of(lab_document)
    except SpecError as error:
        errors.append(error)
    if campaign is None or lab is None:
        raise _joined(errors)
    cross_check(campaign, lab, document=campaign_document)
    return campaign, lab


def cross_check(campaign: Campaign, lab: Lab, *, document: Document | None = None) -> None:
    """Refuses a campaign that names what the lab doesn't have, or of which no scenario can run in the lab.

    With the campaign's `document` the mistakes are told at their places. Raises `SpecError` with all of them.
    """
    file = document.file if document is not None else campaign.name
    problems = [
        *_unknown_names(campaign, lab, document, file),
        *_no_scenario(campaign, lab, document, file),
        *_no_speed(campaign, lab, document, file),
    ]
    if problems:
        raise refusal(file, WHAT, problems)


def scenario_obstacle(scenario: Scenario, lab: Lab) -> str:
    """Why no run of the scenario can take place in the lab, in a sentence; empty when one can."""
    endpoints = [host for host in lab.hosts.values() if host.can_be_endpoint]
    needed = endpoint_keys(lab.hosts.values())
    if scenario is Scenario.CROSS_HOST and len(lab.hosts) < 2:
        return f"cross-host needs two hosts, and the lab {lab.name} has one"
    if scenario is Scenario.DURING_MIGRATION and not lab.migration_pairs:
        return f"no two hosts of the lab {lab.name} have a migration path"
    if scenario is Scenario.HOST_TO_HOST and not endpoints:
        return f"no host of the lab {lab.name} has {needed}, so none can be an endpoint itself"
    if scenario.has_peer and not endpoints and not lab.machines:
        return f"the lab {lab.name} has no machine, and no host with {needed}, to be the other endpoint"
    return ""


def endpoint_keys(hosts: Iterable[Host]) -> str:
    """The keys that one of these hosts must have to be an endpoint itself, in words."""
    windows = all(host.hypervisor is Hypervisor.HYPERV for host in hosts)
    return "`address`" if windows else "`address` and `ssh`"


def _joined(errors: list[SpecError]) -> SpecError:
    if len(errors) == 1:
        return errors[0]
    problems = tuple(problem for error in errors for problem in error.problems)
    return SpecError(" ".join(f"{error.what}." for error in errors), problems=problems)


def _no_scenario(campaign: Campaign, lab: Lab, document: Document | None, file: str) -> Iterator[Problem]:
    named: list[tuple[Scenario, KeyPath]] = [
        (scenario, ("scenarios", index)) for index, scenario in enumerate(campaign.scenarios)
    ]
    for index, selection in enumerate(campaign.include):
        words = selection.levels.get("scenario", ())
        named += [(Scenario(str(word)), ("include", index, "scenario")) for word in words]
    obstacles = [(path, scenario_obstacle(scenario, lab)) for scenario, path in named]
    if all(why for _, why in obstacles):
        for path, why in obstacles:
            yield _problem(document, file, path, f"can't run in this lab: {why}")


def _no_speed(campaign: Campaign, lab: Lab, document: Document | None, file: str) -> Iterator[Problem]:
    """Verdicts against the speed of a network whose speed the lab file doesn't say."""
    for index, expected in enumerate(campaign.expectations):
        if expected.of is None and lab.network().speed is None:
            message = f"the lab {lab.name} doesn't say the `speed` of its network {lab.test_network}"
            yield _problem(document, file, ("expect", index, "of"), message, allowed="a rate such as 10G")


def _unknown_names(campaign: Campaign, lab: Lab, document: Document | None, file: str) -> Iterator[Problem]:
    peers = [OWN_HOST, OTHER_HOST, *lab.machines]
    kinds = {host.hypervisor for host in lab.hosts.values()}
    models = [name for name, model in NIC_MODELS.items() if model.hypervisors & kinds]
    known = {
        "image": (list(lab.images), f"is no image of the lab {lab.name}"),
        "peer": (peers, f"is neither own-host, other-host nor a machine of the lab {lab.name}"),
        "nic_model": (models, f"is no adapter of any hypervisor of the lab {lab.name}"),
    }
    for path, name, level in _levels(campaign):
        word = spoken(level)
        if name in known and level != DEFAULT and word not in known[name][0]:
            names, message = known[name]
            near = nearest(word, names)
            yield _problem(document, file, path, message, value=word, allowed=", ".join(names), near=near)
    yield from _default_image(campaign, lab, document, file)
    yield from _default_adapter(campaign, models, lab, document, file)


def _default_image(campaign: Campaign, lab: Lab, document: Document | None, file: str) -> Iterator[Problem]:
    named = any(name == "image" for _, name, _ in _levels(campaign))
    if not named and "probe" not in lab.images and any(scenario.vms for scenario in campaign.scenarios):
        message = f"no `image` is named, and the lab {lab.name} has no image `probe`, which is the default"
        yield _problem(document, file, ("settings",), message, allowed=", ".join(lab.images))


def _default_adapter(
    campaign: Campaign, models: list[str], lab: Lab, document: Document | None, file: str
) -> Iterator[Problem]:
    named = any(name == "nic_model" for _, name, _ in _levels(campaign))
    default = SETTINGS["nic_model"].default
    if not named and default not in models and any(scenario.vms for scenario in campaign.scenarios):
        message = f"no `nic_model` is named, and {default}, which is the default, is no adapter of the lab {lab.name}"
        yield _problem(document, file, ("settings",), message, allowed=", ".join(models))


def _levels(campaign: Campaign) -> Iterator[tuple[KeyPath, str, Level]]:
    """Every level that the campaign file gives to a setting, with its place."""
    for name, level in campaign.settings.items():
        yield ("settings", name), name, level
    for name, levels in campaign.factors.items():
        for index, level in enumerate(levels):
            yield ("factors", name, index), name, level
    for row, selection in enumerate(campaign.include):
        for name, levels in selection.levels.items():
            for index, level in enumerate(levels):
                yield ("include", row, name, index), name, level
    for row, override in enumerate(campaign.overrides):
        for name, level in override.settings.items():
            yield ("overrides", row, "set", name), name, level


def _problem(
    document: Document | None,
    file: str,
    path: KeyPath,
    message: str,
    *,
    value: str = "",
    allowed: str = "",
    near: str = "",
) -> Problem:
    if document is not None:
        show = document.node(path) is not None or isinstance(path[-1], int)
        return document.problem(path, message, show_value=show, allowed=allowed, nearest=near)
    return Problem(
        file=file, line=0, column=0, key=spell(path), value=value, message=message, allowed=allowed, nearest=near
    )

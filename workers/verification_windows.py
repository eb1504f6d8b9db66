"""Verification of Windows guests: as `workers.verification` does it for Linux, by what Windows and its drivers say."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.model.nic import NIC_MODELS, NicModel
from labctl.model.result import Fact
from workers.asked import Asked, check_mtu, check_path, check_tool, nic_mismatch, nic_missing, offload_mismatch
from workers.channels.windows import WindowsChannel
from workers.guard import Deadline, Guard
from workers.stack.adapters import MTU, Adapter, System, read_system
from workers.stack.base import Knob
from workers.stack.windows import set_knobs

LINK_SECONDS = 60.0
"""How long a link may take to come up after the guest has, or after its adapter was restarted."""

LOOK_SECONDS = 1.0


def verify_windows(channel: WindowsChannel, asked: Asked, *, guard: Guard, set_up: bool = True) -> Mapping[str, Fact]:
    """Set MTU and offloads where they are not as asked, read everything back, and return it as facts. Waits for the adapter
    and its link.

    Without `set_up` nothing is set. Raises the `LabError`s of `verify_vm`.
    """
    system = _ready(channel, asked, guard=guard)
    said = ""
    if set_up:
        knobs = _knobs(channel.endpoint, asked, system)
        if knobs:
            guard.confirm()
            said = set_knobs(channel.powershell, knobs)
            system = _ready(channel, asked, guard=guard)
    adapter = _adapter(channel.endpoint, asked, system)
    _check_offloads(channel.endpoint, asked, system, said)
    check_mtu(channel.endpoint, asked, adapter.mtu)
    facts = _facts(asked, system, adapter)
    check_path(channel.endpoint, asked, up=adapter.up, address=facts["address"], seconds=LINK_SECONDS)
    check_tool(channel.endpoint, asked.tool, system.tool)
    return facts


def _ready(channel: WindowsChannel, asked: Asked, *, guard: Guard) -> System:
    """The system, once its adapter is up with the address that was given to it, or when that took too long."""
    deadline = Deadline.after(LINK_SECONDS)
    while True:
        system = read_system(channel.powershell, mac=asked.mac, tool=asked.tool)
        if any(adapter.up and any(map(asked.has, adapter.addresses)) for adapter in system.adapters) or deadline.passed:
            return system
        guard.sleep(LOOK_SECONDS)


def _adapter(endpoint: str, asked: Asked, system: System) -> Adapter:
    """The adapter that was asked for, if it is one of the model that was."""
    if not system.adapters:
        raise nic_missing(endpoint, asked)
    adapter, model = system.adapters[0], NIC_MODELS[asked.shape.nic_model]
    if not is_model(model, adapter):
        ids = ", ".join(_ids(model))
        raise nic_mismatch(
            endpoint,
            wanted=f"{model.name} ({model.windows_name or model.what}; {ids})",
            found=f"{adapter.description} ({adapter.pnp or 'without an id'})",
        )
    return adapter


def is_model(model: NicModel, adapter: Adapter) -> bool:
    """Whether an adapter of Windows may be one of this model: by its plug and play id, or where it has none by its name.
    Of a model of which nothing is known any may be."""
    ids = _ids(model)
    if not ids:
        return True
    pnp = adapter.pnp.upper()
    if pnp:
        return any(pnp.startswith(each) for each in ids)
    return bool(model.windows_name) and adapter.description.startswith(model.windows_name)


def _ids(model: NicModel) -> tuple[str, ...]:
    """How the plug and play ids of a model's adapters begin."""
    pci = (each.upper().split(":") for each in model.pci_ids)
    ids = [f"PCI\\VEN_{vendor}&DEV_{device}" for vendor, device in pci]
    return tuple([*ids, model.windows_pnp.upper()] if model.windows_pnp else ids)


def _knobs(endpoint: str, asked: Asked, system: System) -> list[Knob]:
    """What has to be set so that the adapter is as asked."""
    adapter = _adapter(endpoint, asked, system)
    knobs = [
        knob
        for offload, on in asked.shape.offloads.items()
        for reading in system.readings(offload)
        if reading.on is not on
        for knob in reading.changes
    ]
    mtu = asked.shape.mtu
    if mtu is not None:
        jumbo = adapter.jumbo(mtu)
        knobs += [jumbo] if jumbo else []
        # An adapter that is restarted has the MTU of its driver again.
        if adapter.mtu != mtu or any(knob.adapter == adapter.name for knob in knobs):
            knobs.append(Knob(adapter=adapter.name, name=MTU, value=str(mtu)))
    return knobs


def _check_offloads(endpoint: str, asked: Asked, system: System, said: str) -> None:
    for offload, on in asked.shape.offloads.items():
        readings = system.readings(offload)
        wrong = next((reading for reading in readings if reading.on is not on), None)
        if readings and wrong is None:
            continue
        why = said or f"{system.windows} (build {system.build}) and the adapter's driver allow no other."
        raise offload_mismatch(endpoint, asked, offload, found=wrong.found if wrong is not None else "absent", why=why)


def read_windows_machine(channel: WindowsChannel, *, tool: str) -> Mapping[str, Fact]:
    """Facts of a Windows host or plain machine that is an endpoint. Raises `LabError` (`tool-missing`)."""
    system = read_system(channel.powershell, tool=tool)
    check_tool(channel.endpoint, tool, system.tool)
    return _system_facts(system)


def _facts(asked: Asked, system: System, adapter: Adapter) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "nic": adapter.name,
        "nic.description": adapter.description,
        "nic.pnp": adapter.pnp,
        "driver": adapter.driver,
        "driver.version": adapter.driver_version,
        "driver.date": adapter.driver_date,
        "driver.provider": adapter.driver_provider,
        "mtu": adapter.mtu,
        "link": int(adapter.up),
        "speed": adapter.speed,
        "address": next(filter(asked.has, adapter.addresses), next(iter(adapter.addresses), None)),
    }
    facts |= _system_facts(system)
    facts |= {f"feature.{keyword}": value for keyword, value in adapter.settings.items()}
    known = {name: on for name, on in adapter.actual.items() if on is not None}
    return facts | {f"offload.{name}": "on" if on else "off" for name, on in known.items()}


def _system_facts(system: System) -> dict[str, Fact]:
    return {
        "windows": system.windows,
        "build": system.build,
        "integration_services": system.integration_services,
        "vmware_tools": system.tools,
        "power_plan": system.power_plan,
        "chimney": system.chimney,
        "tool": system.tool,
    }

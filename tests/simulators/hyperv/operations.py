"""What the scripts of `workers.hypervisors.hyperv` do on a simulated host: the same documents, answers and kinds of errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import PureWindowsPath
from typing import Any

from tests.simulators.hyperv import moves
from tests.simulators.hyperv.state import OFF, PAUSED, RUNNING, Adapter, Datacentre, Refusal, SimulatedHost, SimulatedVm
from workers.powershell.base import Json

Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who runs a script."""

    delegated: bool = False
    """Whether it has credentials that other hosts take, as with CredSSP."""


DEVICE_MAC = "001B21000001"
"""Of a device that is assigned."""

NEVER_BOOTS = "never-boots"
"""A disk or ISO with this in its name holds no operating system."""


def run(centre: Datacentre, host: str, script: str, document: Mapping[str, Json], caller: Caller) -> Json:
    """Run a script on a host. Raises `Refusal` for what the script would tell as its error."""
    with centre.lock:
        centre.scripts.append((host, script, dict(document)))
    return OPERATIONS[script](centre, centre.hosts[host], document, caller)


def list_vms(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    wanted = {one.lower() for one in document["ids"]}
    with centre.lock:
        found: list[Json] = [
            {
                "id": vm.id,
                "name": vm.name,
                "state": vm.state,
                "notes": vm.notes,
                "heartbeat": _heartbeat(host, vm),
                "memory": vm.memory if vm.state != OFF else 0,
                "path": vm.path,
                "clustered": False,
            }
            for vm in host.vms.values()
            if not wanted or vm.id in wanted
        ]
    return {"host": host.name.upper(), "vms": found}


def create_vm(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    with centre.lock:
        _refuse_taken(host, document)
        adapter, disk = document["adapter"], document["disk"]
        _refuse_hardware(host, document)
        source = disk["parent"] if disk is not None else document["iso"]
        if not centre.exists(host, source):
            raise Refusal("no-disk", f"The host has no file {source}.")
        folder = document["folder"]
        if centre.exists(host, folder):
            raise Refusal("create-failed", f"The folder {folder} is there already.")
        vm = SimulatedVm(
            name=document["name"],
            generation=document["generation"],
            vcpus=document["vcpus"],
            memory=document["memory"],
            path=str(PureWindowsPath(folder) / document["name"]),
            notes=document["notes"],
            iso=document["iso"],
            boots=NEVER_BOOTS not in source,
        )
        if adapter == "vt-d":
            host.devices.discard(document["device"])
            vm.devices.append(document["device"])
        else:
            vm.adapters.append(
                Adapter(
                    mac=document["mac"],
                    switch=document["switch"],
                    legacy=adapter == "legacy",
                    vlan=document["vlan"],
                    iov_weight=100 if adapter == "sr-iov" else 0,
                )
            )
        if disk is not None:
            vm.disk = (disk["path"], disk["parent"] if disk["differencing"] else "")
            centre.make(host, disk["path"])
        centre.make(host, str(PureWindowsPath(folder) / f"{vm.id}.vmcx"))
        host.vms[vm.id] = vm
        try:
            centre.start(host, vm)
        except Refusal:
            _take_away(centre, host, vm)
            centre.remove_folder(host, folder)
            raise
        return {"id": vm.id, "mac": DEVICE_MAC if adapter == "vt-d" else document["mac"]}


def remove_vm(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    uuid, folder = document["uuid"], document["folder"]
    if PureWindowsPath(folder).name != f"labctl-{uuid}":
        raise Refusal("not-ours", f"The folder {folder} is not that of VM {uuid}.")
    with centre.lock:
        vm = host.vms.get(document["id"].lower())
        if vm is not None:
            if vm.name != document["name"] or f'"vm": "{uuid}"' not in vm.notes:
                raise Refusal("not-ours", f"The VM {vm.name} doesn't carry the mark of VM {uuid}.")
            _take_away(centre, host, vm)
        for half in [one for one in host.vms.values() if one.name == document["name"] and not one.notes]:
            if half.state == OFF and half.path.lower().startswith(f"{folder}\\".lower()):
                _take_away(centre, host, half)
        users = [one.name for one in host.vms.values() if one.path.lower().startswith(folder.lower())]
        if users:
            raise Refusal("folder-in-use", f"The VM {users[0]} is in the folder {folder}.")
        centre.remove_folder(host, folder)
        return {"present": False, "folder": centre.exists(host, folder)}


def switch_vm(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    with centre.lock:
        vm = _require(host, document["id"])
        if document["paused"] and vm.state == RUNNING:
            centre.set_paused(vm, paused=True)
        elif not document["paused"] and vm.state == PAUSED:
            centre.set_paused(vm, paused=False)
        return {"state": vm.state}


def read_vm(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    with centre.lock:
        vm = _require(host, document["id"])
        return {
            "name": vm.name,
            "state": vm.state,
            "generation": vm.generation,
            "version": "9.0",
            "vcpus": vm.vcpus,
            "memory": vm.memory,
            "dynamicMemory": False,
            "heartbeat": _heartbeat(host, vm),
            "integrationServices": "",
            "compatibleCpu": False,
            "adapters": [
                {
                    "name": "labctl",
                    "mac": one.mac,
                    "legacy": one.legacy,
                    "switch": one.switch,
                    "vlan": one.vlan,
                    "iovWeight": one.iov_weight,
                    "iovUsage": _iov_usage(host, one),
                    "vmqWeight": one.vmq_weight,
                    "vmqUsage": 0,
                    "status": "Ok",
                }
                for one in vm.adapters
            ],
            "devices": [{"location": one} for one in vm.devices],
            "disks": [] if vm.disk is None else [{"path": vm.disk[0], "parent": vm.disk[1]}],
            "checkpoints": 0,
        }


def guest_addresses(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    with centre.lock:
        vm = _require(host, document["id"])
        adapter, faults = vm.adapter(document["mac"]), host.faults
        if adapter is not None and not faults.link_local:
            centre.boot(vm, adapter, None)
        exchange = vm.boots and vm.state == RUNNING and not faults.no_exchange
        known = [] if vm.address is None else [str(vm.address.ip)]
        told = ["169.254.7.9"] if faults.link_local else known
        return {
            "told": list(told) if exchange else [],
            "seen": [] if faults.no_neighbours else list(known),
            "exchange": exchange,
            "heartbeat": _heartbeat(host, vm),
        }


def set_guest_address(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    with centre.lock:
        vm = _require(host, document["vmId"])
        adapter = vm.adapter(document["mac"])
        if adapter is None or adapter.legacy:
            raise Refusal("no-static-address", f"The VM has no synthetic adapter with address {document['mac']}.")
        if host.faults.no_exchange or not vm.boots:
            return {"state": "not-yet"}
        centre.boot(vm, adapter, IPv4Interface(f"{document['address']}/{document['subnet']}"))
        return {"state": "done"}


def compare_vm(centre: Datacentre, host: SimulatedHost, document: Document, caller: Caller) -> Json:
    with centre.lock:
        vm, there = _require(host, document["id"]), centre.host(document["destination"])
        moves.log_in(host, there, delegated=caller.delegated)
        return {
            "incompatibilities": moves.incompatibilities(centre, vm, there),
            "active": host.moving,
            "maximum": host.maximum,
            "iov": any(_iov_usage(host, one) for one in vm.adapters),
        }


def move_vm(centre: Datacentre, host: SimulatedHost, document: Document, caller: Caller) -> Json:
    with centre.lock:
        vm = _require(host, document["id"])
        centre.ended.discard(vm.id)
        there = centre.host(document["destination"])
        move = moves.Move(centre, host, there, vm, document["storage"], delegated=caller.delegated)
        host.moves[vm.id] = move
    queued, total = moves.wait(move)
    host.moves.pop(vm.id, None)
    if move.error is not None:
        active = move.error.detail.get("active", host.moving)
        raise Refusal("move-failed", move.error.message, active=active, maximum=host.maximum, code=0)
    return {"queuedMs": queued, "totalMs": total}


def await_move(_centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    return moves.watch(host, document["id"].lower(), document["seconds"])


def cancel_move(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    with centre.lock:
        asked = int(host.moving > 0)
        centre.ended.add(document["id"].lower())
    until = time.monotonic() + 1.0
    while host.moving and not host.faults.deaf and time.monotonic() < until:
        time.sleep(0.02)
    return {"asked": asked, "left": host.moving}


def vm_events(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    now, wanted = time.monotonic(), document["id"].upper()
    with centre.lock:
        return {
            "events": [
                {
                    "id": one.id,
                    "log": "Microsoft-Windows-Hyper-V-VMMS-Admin",
                    "agoMs": round((now - one.at) * 1000),
                    "properties": list(one.properties),
                }
                for one in host.events
                if one.id in document["ids"]
                and wanted in one.properties
                and (now - one.at) * 1000 <= document["sinceMs"]
            ]
        }


def migration_settings(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    return {
        "name": f"{host.name}.example.com",
        "enabled": host.migration_enabled,
        "authentication": host.authentication,
        "maximum": host.maximum,
        "active": host.moving,
        "anyNetwork": True,
        "networks": [],
        "switches": list(host.switches),
        "processor": host.processor,
        "version": "10.0.20348.0",
        "reached": not centre.host(document["reach"]).down if document["reach"] else None,
        "clustered": False,
    }


def host_load(centre: Datacentre, host: SimulatedHost, _document: Document, _caller: Caller) -> Json:
    with centre.lock:
        running: list[Json] = [vm.id for vm in host.vms.values() if vm.state == RUNNING]
    return {
        "before": {"at": 10_000_000, "busy": [1_000_000, 2_000_000], "octets": 1000},
        "after": {"at": 15_000_000, "busy": [1_500_000, 2_500_000], "octets": 126_000},
        "running": running,
    }


def host_facts(_centre: Datacentre, host: SimulatedHost, _document: Document, _caller: Caller) -> Json:
    facts: dict[str, Json] = {
        "simulated": True,
        "hostname": host.name.upper(),
        "windows.name": "Microsoft Windows Server 2022 Datacenter",
        "windows.version": "10.0.20348",
        "windows.build": "20348.1",
        "hyperv.module": "2.0.0.0",
        "powershell.version": "5.1.20348.1",
        "machine": "Simulated",
        "firmware.version": "1.0",
        "firmware.date": "2020-01-01",
        "cpu.model": "Simulated",
        "cpu.vendor": host.processor,
        "cpu.sockets": 1,
        "cpu.count": 2,
        "cpu.mhz": 2000,
        "memory.bytes": 64 << 30,
        "memory.free_bytes": 32 << 30,
        "power_plan": "High performance",
        "power_plan.id": "8c5e7fda-e8bf-4a96-9a85-a6e23a8c635c",
        "numa.spanning": True,
        "iov.supported": any(host.switches.values()),
        "teaming": "none",
    }
    for name, iov in host.switches.items():
        facts |= {f"switch.{name}.type": "External", f"switch.{name}.sriov": iov}
    return {"facts": facts | host.facts}


def host_lacks(centre: Datacentre, host: SimulatedHost, document: Document, _caller: Caller) -> Json:
    found: list[tuple[str, str, str]] = list(host.faults.lacks)
    found += [("switch", one, ", ".join(host.switches)) for one in document["switches"] if one not in host.switches]
    if document["migration"] and not host.migration_enabled:
        found.append(("migration", "", ""))
    found += [("file", one, "") for one in document["files"] if not centre.exists(host, one)]
    return {"lacks": [{"what": what, "object": thing, "detail": detail} for what, thing, detail in found]}


OPERATIONS: dict[str, Callable[[Datacentre, SimulatedHost, Document, Caller], Json]] = {
    "list-vms": list_vms,
    "create-vm": create_vm,
    "remove-vm": remove_vm,
    "switch-vm": switch_vm,
    "read-vm": read_vm,
    "guest-addresses": guest_addresses,
    "set-guest-address": set_guest_address,
    "compare-vm": compare_vm,
    "move-vm": move_vm,
    "await-move": await_move,
    "cancel-move": cancel_move,
    "vm-events": vm_events,
    "migration-settings": migration_settings,
    "host-load": host_load,
    "host-facts": host_facts,
    "host-lacks": host_lacks,
}
"""What each script does."""


def _refuse_taken(host: SimulatedHost, document: Document) -> None:
    for vm in host.vms.values():
        if vm.name.lower() == document["name"].lower():
            raise Refusal("name-taken", f"A VM named {vm.name} is here already.", notes=vm.notes)
    for vm in host.vms.values():
        if document["adapter"] != "vt-d" and vm.adapter(document["mac"]) is not None:
            raise Refusal("mac-taken", f"The VM {vm.name} has the MAC address {document['mac']}.")


def _refuse_hardware(host: SimulatedHost, document: Document) -> None:
    """What Hyper-V itself refuses: an adapter of generation 1 on generation 2, a switch that is none."""
    adapter, switch = document["adapter"], document["switch"]
    if adapter == "vt-d":
        if document["device"] not in host.devices:
            raise Refusal("nic-unsupported", f"The host has no network device at {document['device']}.")
        return
    if switch not in host.switches:
        raise Refusal("no-switch", f"The host has 0 virtual switches named {switch}.")
    if adapter == "sr-iov" and not host.switches[switch]:
        raise Refusal("nic-unsupported", f"The virtual switch {switch} was made without SR-IOV.")
    if adapter == "legacy" and document["generation"] == 2:
        raise Refusal("script-failed", "Legacy network adapters are not supported on Generation 2 virtual machines.")


def _take_away(centre: Datacentre, host: SimulatedHost, vm: SimulatedVm) -> None:
    centre.stop(vm)
    host.devices.update(vm.devices)
    del host.vms[vm.id]


def _require(host: SimulatedHost, vm_id: str) -> SimulatedVm:
    try:
        return host.vms[vm_id.lower()]
    except KeyError:
        raise Refusal("not-found", f"The host has no VM {vm_id}.") from None


def _heartbeat(host: SimulatedHost, vm: SimulatedVm) -> str:
    up = vm.state == RUNNING and vm.boots
    return "OkApplicationsUnknown" if up and not host.faults.no_exchange else "NoContact"


def _iov_usage(host: SimulatedHost, adapter: Adapter) -> int:
    """Used once the guest has come up, unless no virtual function is left."""
    return int(adapter.iov_weight > 0 and host.switches.get(adapter.switch, False) and not host.faults.no_functions)

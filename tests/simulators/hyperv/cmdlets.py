"""What the cmdlets of `Hyper-V.psm1` do on simulated hosts: for the real scripts in a real PowerShell, where there is one.

with CmdletServer(centre) as server:
    WinrmEndpoint(server.scripts_of("a"), ...)
"""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from tests.simulators.hyperv import moves
from tests.simulators.hyperv.operations import Caller, run
from tests.simulators.hyperv.state import OFF, RUNNING, Adapter, Datacentre, Refusal, SimulatedHost, SimulatedVm
from tests.simulators.winrm import Context, Run, ScriptFailure, pwsh
from workers.powershell.base import Json

MODULE = Path(__file__).with_name("Hyper-V.psm1")

REAL = frozenset(
    {
        "list-vms",
        "create-vm",
        "remove-vm",
        "switch-vm",
        "read-vm",
        "guest-addresses",
        "compare-vm",
        "move-vm",
        "await-move",
        "cancel-move",
        "vm-events",
    }
)
"""The scripts that `Hyper-V.psm1` has all cmdlets for. The others ask Windows for much that is no Hyper-V."""

_EXCHANGE = "Microsoft:X\\2A34B1C2-FD73-4043-8A5B-DD2159BC743F"

Arguments = Mapping[str, Any]


class Cmdlets:
    """The cmdlets of one host. What they return are lists of objects with the properties that scripts read."""

    def __init__(self, centre: Datacentre, host: SimulatedHost) -> None:
        self._centre = centre
        self._host = host
        self._known: dict[str, Callable[[Arguments], list[Json]]] = {
            "Get-VM": self._get_vm,
            "New-VM": self._new_vm,
            "Set-VM": lambda a: self._set(a, notes=a["notes"]),
            "Set-VMMemory": lambda a: self._set(a, memory=a["memory"]),
            "Set-VMProcessor": lambda a: self._set(a, vcpus=a["count"]),
            "Set-VMFirmware": self._set_firmware,
            "Start-VM": self._start_vm,
            "Stop-VM": self._stop_vm,
            "Suspend-VM": lambda a: self._pause(a, paused=True),
            "Resume-VM": lambda a: self._pause(a, paused=False),
            "Remove-VM": self._remove_vm,
            "Get-VMMemory": lambda a: [{"Startup": self._vm(a).memory, "DynamicMemoryEnabled": False}],
            "Get-VMProcessor": lambda a: [{"Count": self._vm(a).vcpus, "CompatibilityForMigrationEnabled": False}],
            "Get-VMIntegrationService": self._get_services,
            "Get-VMNetworkAdapter": lambda a: [self._adapter_object(self._vm(a), one) for one in self._vm(a).adapters],
            "Add-VMNetworkAdapter": self._add_adapter,
            "Remove-VMNetworkAdapter": self._remove_adapter,
            "Set-VMNetworkAdapter": self._set_adapter,
            "Get-VMNetworkAdapterVlan": self._get_vlan,
            "Set-VMNetworkAdapterVlan": self._set_vlan,
            "Get-VMSwitch": lambda _a: [{"Name": name, "IovEnabled": iov} for name, iov in self._host.switches.items()],
            "New-VHD": self._new_vhd,
            "Get-VHD": self._get_vhd,
            "Add-VMHardDiskDrive": self._add_disk,
            "Get-VMHardDiskDrive": lambda a: [{"Path": vm.disk[0]}] if (vm := self._vm(a)).disk is not None else [],
            "Get-VMDvdDrive": lambda a: [{"VMId": self._vm(a).id, "Path": self._vm(a).iso}],
            "Add-VMDvdDrive": self._add_iso,
            "Get-VMHost": lambda _a: [{"MaximumVirtualMachineMigrations": self._host.maximum}],
            "Compare-VM": self._compare_vm,
            "Move-VM": self._move_vm,
            "Msvm_MigrationJob": self._get_moves,
            "Msvm_MigrationJob.RequestStateChange": self._end_move,
            "Msvm_VirtualSystemMigrationService": lambda _a: [{"ActiveVirtualSystemMigrationCount": self._host.moving}],
            "Get-VMAssignableDevice": lambda a: [{"LocationPath": one} for one in self._vm(a).devices],
            "Add-VMAssignableDevice": lambda a: _nothing(self._vm(a).devices.append(a["location"])),
            "Remove-VMAssignableDevice": lambda a: _nothing(self._vm(a).devices.remove(a["location"])),
            "Dismount-VMHostAssignableDevice": lambda a: _nothing(self._host.devices.discard(a["location"])),
            "Mount-VMHostAssignableDevice": lambda a: _nothing(self._host.devices.add(a["location"])),
            "Get-PnpDevice": lambda _a: [{"InstanceId": one} for one in sorted(self._host.devices)],
            "Get-NetNeighbor": self._get_neighbours,
            "Get-WinEvent": self._get_events,
            "Test-Path": lambda a: [{"There": self._centre.exists(self._host, a["path"])}],
            "New-Item": lambda a: _nothing(self._centre.make(self._host, f"{a['path']}\\.made")),
            "Copy-Item": lambda a: _nothing(self._centre.make(self._host, a["path"])),
            "Remove-Item": lambda a: _nothing(self._centre.remove_folder(self._host, a["path"])),
        }

    @property
    def names(self) -> frozenset[str]:
        """What there is."""
        return frozenset(self._known)

    def call(self, cmdlet: str, arguments: Arguments) -> list[Json]:
        """Run a cmdlet. Raises `Refusal` for the error that it ends with."""
        if cmdlet == "Move-VM":
            return self._move_vm(arguments)
        with self._centre.lock:
            return self._known[cmdlet](arguments)

    def _vm(self, arguments: Arguments) -> SimulatedVm:
        try:
            return self._host.vms[arguments["vm"].lower()]
        except KeyError:
            raise Refusal("script-failed", "Hyper-V was unable to find a virtual machine with that id.") from None

    def _get_vm(self, arguments: Arguments) -> list[Json]:
        name, id = arguments["name"], arguments["id"]
        found = [vm for vm in self._host.vms.values() if (not name or vm.name == name) and (not id or vm.id == id)]
        return [self._vm_object(vm) for vm in found]

    def _new_vm(self, arguments: Arguments) -> list[Json]:
        name = arguments["name"]
        vm = SimulatedVm(
            name=name,
            generation=arguments["generation"],
            memory=arguments["memory"],
            path=str(PureWindowsPath(arguments["path"]) / name),
            adapters=[Adapter(mac="000000000000", switch="")],
        )
        self._host.vms[vm.id] = vm
        self._centre.make(self._host, str(PureWindowsPath(vm.path) / f"{vm.id}.vmcx"))
        return [self._vm_object(vm)]

    def _vm_object(self, vm: SimulatedVm) -> Json:
        return {
            "VMId": vm.id,
            "VMName": vm.name,
            "State": vm.state,
            "Notes": vm.notes,
            "Heartbeat": "OkApplicationsUnknown" if vm.state == RUNNING else "NoContact",
            "MemoryAssigned": vm.memory if vm.state != OFF else 0,
            "Path": vm.path,
            "IsClustered": False,
            "Generation": vm.generation,
            "Version": "9.0",
            "IntegrationServicesVersion": "",
        }

    def _set(self, arguments: Arguments, **values: object) -> list[Json]:
        for name, value in values.items():
            setattr(self._vm(arguments), name, value)
        return []

    def _set_firmware(self, arguments: Arguments) -> list[Json]:
        if self._vm(arguments).generation != 2:
            raise Refusal("script-failed", "This virtual machine is of generation 1 and has no UEFI firmware.")
        return []

    def _start_vm(self, arguments: Arguments) -> list[Json]:
        self._centre.start(self._host, self._vm(arguments))
        return []

    def _stop_vm(self, arguments: Arguments) -> list[Json]:
        self._centre.stop(self._vm(arguments))
        return []

    def _pause(self, arguments: Arguments, *, paused: bool) -> list[Json]:
        self._centre.set_paused(self._vm(arguments), paused=paused)
        return []

    def _remove_vm(self, arguments: Arguments) -> list[Json]:
        vm = self._vm(arguments)
        if vm.state != OFF:
            raise Refusal("script-failed", "The operation cannot be performed while the virtual machine is in use.")
        del self._host.vms[vm.id]
        return []

    def _get_services(self, arguments: Arguments) -> list[Json]:
        well = self._vm(arguments).state == RUNNING and not self._host.faults.no_exchange
        return [{"Id": _EXCHANGE, "Enabled": True, "PrimaryOperationalStatus": 2 if well else 12}]

    def _adapter_object(self, vm: SimulatedVm, adapter: Adapter) -> Json:
        faults = self._host.faults
        if adapter.mac != "000000000000" and vm.state == RUNNING and not faults.link_local:
            self._centre.boot(vm, adapter, None)
        used = adapter.iov_weight > 0 and not faults.no_functions
        told = ["169.254.7.9"] if faults.link_local else ([str(vm.address.ip)] if vm.address is not None else [])
        return {
            "Id": adapter.id,
            "VMName": vm.name,
            "Name": "labctl",
            "MacAddress": adapter.mac,
            "IsLegacy": adapter.legacy,
            "SwitchName": adapter.switch,
            "IovWeight": adapter.iov_weight,
            "IovUsage": int(used),
            "VmqWeight": adapter.vmq_weight,
            "VmqUsage": 0,
            "Status": ["Ok"],
            "IPAddresses": [] if faults.no_exchange else [*told, "fe80::1"],
        }

    def _owner(self, arguments: Arguments) -> tuple[SimulatedVm, Adapter]:
        return next(
            (vm, one) for vm in self._host.vms.values() for one in vm.adapters if one.id == arguments["adapter"]
        )

    def _add_adapter(self, arguments: Arguments) -> list[Json]:
        vm = self._vm(arguments)
        if arguments["legacy"] and vm.generation == 2:
            raise Refusal(
                "script-failed", "Legacy network adapters are not supported on Generation 2 virtual machines."
            )
        vm.adapters.append(Adapter(mac=arguments["mac"], switch=arguments["switch"], legacy=arguments["legacy"]))
        return [self._adapter_object(vm, vm.adapters[-1])]

    def _remove_adapter(self, arguments: Arguments) -> list[Json]:
        vm, adapter = self._owner(arguments)
        vm.adapters.remove(adapter)
        return []

    def _set_adapter(self, arguments: Arguments) -> list[Json]:
        _, adapter = self._owner(arguments)
        adapter.iov_weight = arguments["iov"]
        return []

    def _get_vlan(self, arguments: Arguments) -> list[Json]:
        vlan = self._owner(arguments)[1].vlan
        return [{"OperationMode": "Untagged" if vlan is None else "Access", "AccessVlanId": vlan or 0}]

    def _set_vlan(self, arguments: Arguments) -> list[Json]:
        self._owner(arguments)[1].vlan = arguments["vlan"]
        return []

    def _new_vhd(self, arguments: Arguments) -> list[Json]:
        self._centre.make(self._host, arguments["path"])
        self._host.parents[arguments["path"]] = arguments["parent"]
        return [{"Path": arguments["path"]}]

    def _get_vhd(self, arguments: Arguments) -> list[Json]:
        path = arguments["path"]
        disks = {vm.disk[0]: vm.disk[1] for vm in self._host.vms.values() if vm.disk is not None}
        return [{"ParentPath": disks.get(path, "")}]

    def _add_disk(self, arguments: Arguments) -> list[Json]:
        path = arguments["path"]
        self._vm(arguments).disk = (path, self._host.parents.pop(path, ""))
        return [{"Path": path}]

    def _add_iso(self, arguments: Arguments) -> list[Json]:
        self._vm(arguments).iso = arguments["path"]
        return [{"Path": arguments["path"]}]

    def _compare_vm(self, arguments: Arguments) -> list[Json]:
        there = self._centre.host(arguments["destination"])
        moves.log_in(self._host, there, delegated=False)
        found: list[Json] = [
            {"MessageId": one["id"], "Message": one["message"]}
            for one in moves.incompatibilities(self._centre, self._vm(arguments), there)
            if isinstance(one, dict)
        ]
        return [{"Incompatibilities": found}]

    def _move_vm(self, arguments: Arguments) -> list[Json]:
        with self._centre.lock:
            vm, there = self._vm(arguments), self._centre.host(arguments["destination"])
            self._centre.ended.discard(vm.id)
            storage, retains = arguments["storage"], arguments["retain"]
            move = moves.Move(self._centre, self._host, there, vm, storage, delegated=False, retains=retains)
            self._host.moves[vm.id] = move
        move.done.wait()
        with self._centre.lock:
            del self._host.moves[vm.id]
        if move.error is not None:
            raise move.error
        return []

    def _get_moves(self, _arguments: Arguments) -> list[Json]:
        return [
            {
                "Class": "Msvm_MigrationJob",
                "VirtualSystemName": id,
                "JobState": move.state,
                "PercentComplete": move.percent,
            }
            for id, move in self._host.moves.items()
        ]

    def _end_move(self, arguments: Arguments) -> list[Json]:
        self._centre.ended.add(arguments["vm"])
        return []

    def _get_neighbours(self, _arguments: Arguments) -> list[Json]:
        if self._host.faults.no_neighbours:
            return []
        return [
            {
                "IPAddress": str(vm.address.ip),
                "LinkLayerAddress": "-".join(one.mac[at : at + 2] for at in range(0, 12, 2)),
                "State": "Reachable",
            }
            for vm in self._host.vms.values()
            for one in vm.adapters
            if vm.address is not None
        ]

    def _get_events(self, arguments: Arguments) -> list[Json]:
        if not arguments["log"].endswith("VMMS-Admin"):
            return []
        now = time.monotonic()
        return [
            {
                "Id": one.id,
                "LogName": arguments["log"],
                "TimeCreated": (now - one.at) * 1000,
                "Properties": [{"Value": value} for value in one.properties],
            }
            for one in self._host.events
            if one.id in arguments["ids"]
        ]


class CmdletServer:
    """Answers the cmdlets of processes of PowerShell, one call a connection."""

    def __init__(self, centre: Datacentre) -> None:
        self._centre = centre
        cmdlets = {name: Cmdlets(centre, host) for name, host in centre.hosts.items()}

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = json.loads(self.rfile.readline())
                answer: dict[str, Json]
                try:
                    answer = {
                        "objects": cmdlets[asked["host"]].call(asked["cmdlet"], asked["arguments"]),
                        "error": None,
                    }
                except Refusal as refusal:
                    answer = {"objects": [], "error": refusal.message}
                self.wfile.write(json.dumps(answer).encode())

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> CmdletServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        """Where it answers, on 127.0.0.1."""
        return int(self._server.server_address[1])

    def scripts_of(self, host: str) -> Run:
        """What the endpoint of a host runs: the real scripts in `pwsh`, and in Python those that are not in `REAL`."""
        environment = {"LABCTL_HYPERV": f"127.0.0.1:{self.port}/{host}"}
        real = pwsh.run(prepare=f"Import-Module '{MODULE}'", environment=environment)

        def run_script(name: str, document: Mapping[str, Json], context: Context) -> Json:
            if name in REAL:
                return real(name, document, context)
            try:
                return run(self._centre, host, name, document, Caller())
            except Refusal as refusal:
                raise ScriptFailure(refusal.kind, refusal.message, detail=refusal.detail) from refusal

        return run_script


def _nothing(_done: None) -> list[Json]:
    return []

"""What a VM is asked to be, as specifications of the API, and what its configuration says of it. Pure, but for no secret.

Types: `VirtualMachineConfigSpec`, `VirtualEthernetCard`, `CustomizationSpec` of the vSphere Web Services API.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyVmomi import vim

from labctl.model.lab import Customisation, GuestSystem, ImageKind
from labctl.model.result import Fact
from workers.hypervisors.base import OwnershipMark, VmRequest

MARK = "labctl.mark"
"""The key of `extraConfig` that holds the ownership mark, as JSON."""

GUESTINFO = "guestinfo.labctl."
"""What a guest may ask VMware Tools for: `vmtoolsd --cmd 'info-get guestinfo.labctl.address'`."""

ANNOTATION = "Made by labctl"
"""How the annotation of every VM of ours begins, for people who look at the vCenter."""

DEVICES: Mapping[str, str] = {
    "vmxnet3": "vim.vm.device.VirtualVmxnet3",
    "vmxnet2": "vim.vm.device.VirtualVmxnet2",
    "e1000": "vim.vm.device.VirtualE1000",
    "e1000e": "vim.vm.device.VirtualE1000e",
    "pcnet32": "vim.vm.device.VirtualPCNet32",
    "sr-iov": "vim.vm.device.VirtualSriovEthernetCard",
    "vt-d": "vim.vm.device.VirtualPCIPassthrough",
}
"""NIC models, and the type of device that each is."""

_MODELS = {device: model for model, device in DEVICES.items()}
_NEW_DEVICE = -101
_IDE, _CDROM = -102, -103
WINDOWS_NAME_LENGTH = 15
LINUX_NAME_LENGTH = 63
GMT_TIME_ZONE = 85
"""Of the time zones that `CustomizationGuiUnattended` knows."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The mark of a VM with the VM that it was made for: a copy that somebody makes of a VM has its mark too."""

    owner: OwnershipMark
    name: str
    uuid: str


def config_spec(request: VmRequest) -> vim.vm.ConfigSpec:
    """All of a VM but its name and its adapter. Memory is rounded up to whole MiB; of those vSphere takes multiples of 4. All
    virtual processors are cores of one socket: a template's own number of cores need not fit, and Windows counts sockets."""
    shape = request.shape
    passed_through = bool(request.passthrough)
    return vim.vm.ConfigSpec(
        instanceUuid=request.uuid,
        numCPUs=shape.vcpus,
        numCoresPerSocket=shape.vcpus,
        memoryMB=-(-shape.memory // 2**20),
        annotation=annotation(request),
        extraConfig=[vim.option.OptionValue(key=key, value=value) for key, value in extra_config(request).items()],
        # A device of the host reads and writes the VM's memory, which therefore must not move.
        memoryReservationLockedToMax=True if passed_through else None,
    )


def iso_spec(request: VmRequest, *, datastore: str) -> vim.vm.ConfigSpec:
    """A VM without a disk that boots from a CD image. `datastore` is where its files go."""
    spec = config_spec(request)
    spec.name = request.name
    spec.guestId = request.image.guest_id
    spec.files = vim.vm.FileInfo(vmPathName=f"[{datastore}]")
    spec.deviceChange = [
        _added(vim.vm.device.VirtualIDEController(key=_IDE, busNumber=0)),
        _added(
            vim.vm.device.VirtualCdrom(
                key=_CDROM,
                controllerKey=_IDE,
                unitNumber=0,
                backing=vim.vm.device.VirtualCdrom.IsoBackingInfo(fileName=request.image.iso),
                connectable=_connected(guest_control=False),
            )
        ),
    ]
    return spec


def adapter_spec(request: VmRequest, backing: Any, devices: Iterable[Any]) -> vim.vm.ConfigSpec:  # noqa: ANN401
    """The change that leaves exactly one adapter, the asked one: those that came with a template go. All else of the
    request is set again, because a clone takes only some of it."""
    spec = config_spec(request)
    cards = [device for device in devices if isinstance(device, vim.vm.device.VirtualEthernetCard)]
    gone = [vim.vm.device.VirtualDeviceSpec(operation="remove", device=one) for one in cards]
    spec.deviceChange = [*gone, _added(adapter(request, backing))]
    return spec


def adapter(request: VmRequest, backing: Any) -> Any:  # noqa: ANN401
    """The device of the asked NIC model. `backing` is that of a network, or for `vt-d` that of a PCI device, or for
    `sr-iov` both, in this order."""
    model = request.shape.nic_model
    if model == "vt-d":
        return vim.vm.device.VirtualPCIPassthrough(key=_NEW_DEVICE, backing=backing)
    values: dict[str, Any] = {
        "key": _NEW_DEVICE,
        "addressType": "manual",
        "macAddress": request.mac,
        "wakeOnLanEnabled": False,
        "connectable": _connected(guest_control=True),
    }
    if model == "sr-iov":
        values["backing"], values["sriovBacking"] = backing
    else:
        values["backing"] = backing
    return _device_type(model)(**values)


def adapters(devices: Iterable[Any]) -> list[Any]:
    """The devices that are adapters, emulated ones and whole PCI devices."""
    kinds = (vim.vm.device.VirtualEthernetCard, vim.vm.device.VirtualPCIPassthrough)
    return [device for device in devices if isinstance(device, kinds)]


def model_of(device: Any) -> str:  # noqa: ANN401
    """The NIC model that a device is; its type where labctl has no word for it."""
    return _MODELS.get(type(device).__name__, type(device).__name__.rsplit(".", 1)[-1])


def api_name(model: str) -> str:
    """The name of a NIC model's device in the API: `VirtualE1000e`."""
    return DEVICES[model].rsplit(".", 1)[-1]


def adapter_facts(device: Any) -> dict[str, Fact]:  # noqa: ANN401
    """What can be told of an adapter. Queues and offloads are the guest's matter."""
    connectable = device.connectable
    facts: dict[str, Fact] = {
        "nic.model": model_of(device),
        "nic.device": type(device).__name__.rsplit(".", 1)[-1],
        "nic.mac": getattr(device, "macAddress", None),
        "nic.address_type": getattr(device, "addressType", None),
        "nic.connected": bool(connectable.connected) if connectable is not None else None,
        "nic.wake_on_lan": getattr(device, "wakeOnLanEnabled", None),
        "nic.upt": getattr(device, "uptCompatibilityEnabled", None),
        "nic.backend": None,
        "nic.queues": None,
    }
    allocation = getattr(device, "resourceAllocation", None)
    if allocation is not None:
        facts["nic.limit_mbit"] = allocation.limit
        facts["nic.reservation_mbit"] = allocation.reservation
        facts["nic.shares"] = allocation.share.shares if allocation.share is not None else None
    return facts


def annotation(request: VmRequest) -> str:
    """What people who look at the VM should know."""
    mark = request.mark
    return (
        f"{ANNOTATION} for lab {mark.lab}, campaign {mark.campaign}, run {mark.run}, attempt {mark.attempt} ({mark.role}). "
        "It is removed when the run has ended. labctl leaves it alone once it is renamed."
    )


def extra_config(request: VmRequest) -> dict[str, str]:
    """The mark, and what the guest may ask for. A template's own values of these keys are overwritten."""
    mark = {"version": 1, "name": request.name, "uuid": request.uuid, **asdict(request.mark)}
    values = {MARK: json.dumps(mark, sort_keys=True)}
    if request.image.customisation is Customisation.GUESTINFO:
        values |= {
            f"{GUESTINFO}name": request.name,
            f"{GUESTINFO}hostname": guest_name(request),
            f"{GUESTINFO}mac": request.mac,
            f"{GUESTINFO}address": str(request.address) if request.address is not None else "dhcp",
        }
    return values


def read_mark(extra: Sequence[Any] | None) -> Mark | None:
    """The mark in an `extraConfig`; None when there is none that labctl wrote."""
    texts = [option.value for option in extra or () if option.key == MARK]
    try:
        values = json.loads(texts[-1])
        return Mark(
            owner=OwnershipMark(
                lab=str(values["lab"]),
                campaign=int(values["campaign"]),
                run=int(values["run"]),
                attempt=int(values["attempt"]),
                role=str(values["role"]),
                store=str(values["store"]),
            ),
            name=str(values["name"]),
            uuid=str(values["uuid"]),
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def guest_name(request: VmRequest) -> str:
    """The host name that a guest gets: that of the VM, as far as its system takes it."""
    if request.image.system is GuestSystem.WINDOWS:
        return f"lc-{request.uuid.replace('-', '')}"[:WINDOWS_NAME_LENGTH]
    return request.name[:LINUX_NAME_LENGTH].rstrip("-")


def customisation(request: VmRequest, *, password: str) -> vim.vm.customization.Specification | None:
    """The guest customisation for images that ask for it; None for others.

    `password` is what the administrator of a Windows guest gets, which is the one that labctl logs in with.
    """
    image = request.image
    if image.customisation is not Customisation.GUEST_OS or image.kind is not ImageKind.TEMPLATE:
        return None
    kinds = vim.vm.customization
    name = kinds.FixedName(name=guest_name(request))
    if image.system is GuestSystem.WINDOWS:
        secret = kinds.Password(value=password, plainText=True) if password else None
        identity: Any = kinds.Sysprep(
            guiUnattended=kinds.GuiUnattended(
                timeZone=GMT_TIME_ZONE, autoLogon=False, autoLogonCount=1, password=secret
            ),
            userData=kinds.UserData(fullName="labctl", orgName="labctl", computerName=name, productId=""),
            identification=kinds.Identification(joinWorkgroup="WORKGROUP"),
        )
        options: Any = kinds.WinOptions(changeSID=True, deleteAccounts=False)
    else:
        identity = kinds.LinuxPrep(hostName=name, domain="labctl.invalid", hwClockUTC=True)
        options = kinds.LinuxOptions()
    return kinds.Specification(
        options=options,
        identity=identity,
        globalIPSettings=kinds.GlobalIPSettings(),
        nicSettingMap=[kinds.AdapterMapping(macAddress=request.mac, adapter=_addressing(request))],
    )


def _addressing(request: VmRequest) -> vim.vm.customization.IPSettings:
    if request.address is None:
        return vim.vm.customization.IPSettings(ip=vim.vm.customization.DhcpIpGenerator())
    return vim.vm.customization.IPSettings(
        ip=vim.vm.customization.FixedIp(ipAddress=str(request.address.ip)), subnetMask=str(request.address.netmask)
    )


def _device_type(model: str) -> Any:  # noqa: ANN401
    return getattr(vim.vm.device, api_name(model))


def _added(device: Any) -> vim.vm.device.VirtualDeviceSpec:  # noqa: ANN401
    return vim.vm.device.VirtualDeviceSpec(operation="add", device=device)


def _connected(*, guest_control: bool) -> vim.vm.device.VirtualDevice.ConnectInfo:
    return vim.vm.device.VirtualDevice.ConnectInfo(startConnected=True, connected=True, allowGuestControl=guest_control)

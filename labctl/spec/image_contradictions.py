"""What can't be meant together in the images of a lab file, and what their keys are when they aren't written."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.errors import Problem
from labctl.model.lab import ChannelKind, Customisation, GuestSystem, ImageKind, WinrmTransport, bootable_on
from labctl.model.nic import Hypervisor
from labctl.spec.lab_file import ImageField, LabFile
from labctl.spec.source import Document, KeyPath

_NEEDED = {
    ImageKind.KERNEL: ("kernel", "initrd"),
    ImageKind.DISK: ("disk",),
    ImageKind.TEMPLATE: ("template",),
    ImageKind.ISO: ("iso",),
}
"""The keys without which an image of a kind is none; no other kind has them."""

_CHANNELS = {
    ChannelKind.QEMU_AGENT: frozenset({Hypervisor.KVM}),
    ChannelKind.VMTOOLS: frozenset({Hypervisor.VSPHERE}),
    ChannelKind.POWERSHELL_DIRECT: frozenset({Hypervisor.HYPERV}),
    ChannelKind.WINRM: frozenset(Hypervisor),
    ChannelKind.SSH: frozenset(Hypervisor),
}
"""The hypervisors whose guests a channel reaches."""

_SYSTEMS = {
    ChannelKind.QEMU_AGENT: (GuestSystem.LINUX,),
    ChannelKind.VMTOOLS: (GuestSystem.LINUX, GuestSystem.WINDOWS),
    ChannelKind.POWERSHELL_DIRECT: (GuestSystem.WINDOWS,),
    ChannelKind.WINRM: (GuestSystem.WINDOWS,),
    ChannelKind.SSH: (GuestSystem.LINUX,),
}
"""What must run in the guest for a channel."""

_WITH_LOGIN = (ChannelKind.VMTOOLS, ChannelKind.POWERSHELL_DIRECT, ChannelKind.WINRM)


def bootable(image: ImageField) -> frozenset[Hypervisor]:
    """The hypervisors that can boot the image."""
    return bootable_on(image.kind, disk=image.disk or "", iso=image.iso or "")


def channel_of(image: ImageField) -> ChannelKind:
    """The channel that is named, or that of the hypervisor which boots the image."""
    if image.channel is not None:
        return image.channel
    (hypervisor,) = bootable(image)
    if hypervisor is Hypervisor.HYPERV:
        return ChannelKind.POWERSHELL_DIRECT if image.system is GuestSystem.WINDOWS else ChannelKind.SSH
    return ChannelKind.QEMU_AGENT if hypervisor is Hypervisor.KVM else ChannelKind.VMTOOLS


def customisation_of(image: ImageField, *, static: bool) -> Customisation:
    """The customisation that is named, or the one that makes addressing work (`static`, else DHCP)."""
    if image.customisation is not None:
        return image.customisation
    if not static or bootable(image) == {Hypervisor.KVM}:
        return Customisation.NONE
    live = image.kind is ImageKind.ISO and bootable(image) == {Hypervisor.VSPHERE}
    return Customisation.GUESTINFO if live else Customisation.GUEST_OS


def image_problems(spec: LabFile, document: Document) -> Iterator[Problem]:
    """Every mistake in the images that only shows when keys are seen together."""
    for name, image in spec.images.items():
        path: KeyPath = ("images", name)
        parts = list(_parts(image, path, document))
        yield from parts
        if parts:
            continue  # what the image is isn't clear
        yield from _unbootable(image, path, spec, document)
        yield from _foreign_keys(image, path, document)
        yield from _channel(image, path, document)
        yield from _customisation(image, path, spec, document)


def _parts(image: ImageField, path: KeyPath, document: Document) -> Iterator[Problem]:
    needed = _NEEDED[image.kind]
    for key in (key for keys in _NEEDED.values() for key in keys):
        given = getattr(image, key) is not None
        if key in needed and not given:
            yield document.problem(path, f"an image of kind {image.kind} needs `{key}`", at_key=True)
        if key not in needed and given:
            yield document.problem((*path, key), f"an image of kind {image.kind} has no `{key}`", at_key=True)
    if image.iso is not None and image.iso.startswith("[") and image.guest_id is None:
        message = "vSphere must be told what such a guest is: `guest_id`"
        allowed = "an identifier of VirtualMachineGuestOsIdentifier, such as debian12_64Guest"
        yield document.problem(path, message, at_key=True, allowed=allowed)


def _unbootable(image: ImageField, path: KeyPath, spec: LabFile, document: Document) -> Iterator[Problem]:
    there = {host.hypervisor for host in spec.hosts.values()}
    if there and not bootable(image) & there:
        (needed,) = bootable(image)
        form = {ImageKind.DISK: f" ({image.disk})", ImageKind.ISO: f" ({image.iso})"}.get(image.kind, "")
        message = f"no host of this lab can boot it: an image of this kind{form} takes {needed}"
        yield document.problem((*path, "kind"), message)


def _foreign_keys(image: ImageField, path: KeyPath, document: Document) -> Iterator[Problem]:
    """Keys that would have no effect."""
    (hypervisor,) = bootable(image)
    if image.generation is not None and hypervisor is not Hypervisor.HYPERV:
        yield document.problem((*path, "generation"), f"is of Hyper-V, and {hypervisor} boots this image", at_key=True)
    if image.guest_id is not None and (image.kind is not ImageKind.ISO or hypervisor is not Hypervisor.VSPHERE):
        message = "is only told to vSphere, of images of kind iso; a template knows what it is"
        yield document.problem((*path, "guest_id"), message, at_key=True)
    if image.clone is not None and (image.kind in (ImageKind.KERNEL, ImageKind.ISO) or hypervisor is Hypervisor.KVM):
        message = "VMs of this image have no disk that could be cloned"
        if hypervisor is Hypervisor.KVM and image.kind is ImageKind.DISK:
            message = "KVM guests always get an overlay of their own (linked)"
        yield document.problem((*path, "clone"), message, at_key=True)


def _channel(image: ImageField, path: KeyPath, document: Document) -> Iterator[Problem]:
    channel = channel_of(image)
    (hypervisor,) = bootable(image)
    fits = [kind for kind in ChannelKind if hypervisor in _CHANNELS[kind] and image.system in _SYSTEMS[kind]]
    if channel not in fits:
        why = (
            f"reaches no guest of {hypervisor}"
            if hypervisor not in _CHANNELS[channel]
            else f"is not for {image.system}"
        )
        at = (*path, "channel") if image.channel is not None else (*path, "system")
        yield document.problem(at, f"the channel {channel} {why}", allowed=", ".join(fits))
        return
    if channel in _WITH_LOGIN and image.login is None:
        yield document.problem(path, f"the channel {channel} needs `login` (user and password)", at_key=True)
    if channel not in _WITH_LOGIN and image.login is not None:
        yield document.problem((*path, "login"), f"the channel {channel} has no use for it", at_key=True)
    if channel is ChannelKind.SSH and image.ssh_key is None:
        yield document.problem(path, "the channel ssh needs `ssh_key`", at_key=True)
    if channel is ChannelKind.SSH and image.known_hosts is None and hypervisor is not Hypervisor.KVM:
        yield document.problem(path, "the channel ssh needs `known_hosts`, to know its guests by", at_key=True)
    yield from _winrm(image, channel, path, document)


def _winrm(image: ImageField, channel: ChannelKind, path: KeyPath, document: Document) -> Iterator[Problem]:
    if image.winrm is None:
        return
    if channel is not ChannelKind.WINRM:
        yield document.problem((*path, "winrm"), f"the channel {channel} has no use for it", at_key=True)
    elif image.winrm.transport is WinrmTransport.BASIC and not image.winrm.https:
        message = "would send the password over plain HTTP for everybody to read"
        yield document.problem((*path, "winrm", "transport"), message, allowed="https: on, or ntlm, kerberos, credssp")
    elif image.winrm.ca_file is not None and not image.winrm.https:
        message = "there are no certificates over plain HTTP"
        yield document.problem((*path, "winrm", "ca_file"), message, at_key=True)


def _customisation(image: ImageField, path: KeyPath, spec: LabFile, document: Document) -> Iterator[Problem]:
    network = spec.networks.get(spec.test_network or next(iter(spec.networks), ""))
    static = network is not None and network.addressing == "static"
    (hypervisor,) = bootable(image)
    customisation, at = customisation_of(image, static=static), (*path, "customisation")
    if hypervisor is Hypervisor.KVM:
        if customisation is not Customisation.NONE:
            message = "KVM guests learn their address from the kernel command line"
            yield document.problem(at, message, allowed="none")
    elif customisation is Customisation.GUESTINFO and hypervisor is not Hypervisor.VSPHERE:
        yield document.problem(
            at, "comes with VMware Tools, which guests of hyperv don't have", allowed="none, guest-os"
        )
    elif customisation is Customisation.GUEST_OS and hypervisor is Hypervisor.VSPHERE and image.kind is ImageKind.ISO:
        yield document.problem(at, "vSphere customises clones of templates only", allowed="none, guestinfo")
    elif customisation is Customisation.NONE and static:
        message = "the network that is measured has static addressing, and such guests would never learn their address"
        allowed = "guest-os or guestinfo, or a network with `addressing: dhcp`"
        yield document.problem(at, message, allowed=allowed)

"""The embedded lab: `up` makes what is missing, `down` leaves nothing, `status` says what there is.

Nothing of it is remembered in a process: every call looks at the kernel's namespaces, at the processes in them and at
the lab's directory, so that it doesn't matter at which line an earlier call was killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface
from pathlib import Path

from pydantic import ValidationError

from labctl.errors import LabError
from labctl.model.lab import Accelerator, Lab, Limits
from labctl.spec.documents import from_json, to_json
from labctl.spec.embedded import PROBE_IMAGE, probe_directory
from workers.locallab import accelerator, directory, namespaces
from workers.locallab.daemons import Daemon, answers, daemons, ensure, running, vm_names, warm_up
from workers.locallab.image import ProbeImage, build, default_cache
from workers.locallab.members import Member, members, write_files
from workers.locallab.system import require_linux_and_root, require_programs
from workers.locallab.topology import Topology, layout, namespace_prefix, topology

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class MemberStatus:
    """What is there of a host or plain machine. For a plain machine `libvirtd` and `vms` are None."""

    name: str
    namespace: bool
    sshd: bool
    libvirtd: bool | None
    vms: int | None
    """Running VMs; None when libvirtd doesn't answer."""

    @property
    def up(self) -> bool:
        """Whether all of it is there."""
        return self.namespace and self.sshd and self.libvirtd is not False


@dataclass(frozen=True, kw_only=True)
class LabStatus:
    """What is there of an embedded lab. `accelerator` is None before the lab came up for the first time."""

    lab: str
    network: bool
    """Whether the switch and the way to the management network are there."""
    accelerator: Accelerator | None
    accelerator_why: str
    members: tuple[MemberStatus, ...]

    @property
    def up(self) -> bool:
        """Whether the whole lab is up."""
        return self.network and self.accelerator is not None and all(member.up for member in self.members)


def up(lab: Lab, *, say: Say) -> None:
    """Bring the lab up, or make good what is missing of it. `say` gets a line for each thing that was done.

    Raises `LabError`: `not-root`, `not-linux`, `missing-program`, `address-overlap`, `lab-changed` (the file describes
    another lab than the one that is up and has VMs running), `lab-busy`, `not-ours`, `lab-setup`, `daemon-failed`.
    """
    require_linux_and_root("`labctl lab up`")
    plan = topology(lab)
    require_programs()
    root = Path(layout(lab).directory)
    with directory.locked(root):
        _make_room_for_changes(lab, root, say)
        _refuse_overlap(plan)
        _ensure_network(lab, plan, say)
        everybody = _members(lab, plan)
        changed = write_files(lab, everybody)
        _ensure_daemons(lab, everybody, changed, say)
        image = build(default_cache(), progress=say)
        _ensure_image(lab, image, say)
        _ensure_accelerator(lab, plan, image, say)
        directory.write(root / directory.MARKER, to_json(lab))


def down(lab: Lab, *, say: Say) -> None:
    """Take the lab down with everything in it, however much of it is there. Raises `LabError`."""
    require_linux_and_root("`labctl lab down`")
    plan = topology(lab)
    root = Path(layout(lab).directory)
    if not root.exists() and not namespaces.names(namespace_prefix(lab)) and not _lab_processes(lab):
        namespaces.remove_uplink(plan)
        directory.tidy()
        return
    with directory.locked(root):
        _remove_all(lab, plan)
        directory.remove(root)
    say(f"The lab {lab.name} is down.")


def status(lab: Lab) -> LabStatus:
    """What is there of the lab. Changes nothing and waits for nobody. Raises `LabError` (`not-root`, `not-linux`)."""
    require_linux_and_root("`labctl lab status`")
    plan = topology(lab)
    switch = namespaces.look(plan.switch.name)
    own = namespaces.look(None) or {}
    live = _lab_processes(lab)
    choice = accelerator.stored(lab)
    everybody = _members(lab, plan)
    with ThreadPoolExecutor(len(everybody)) as pool:
        found = tuple(pool.map(lambda member: _member_status(plan, member, switch, live), everybody))
    return LabStatus(
        lab=lab.name,
        network=namespaces.complete(plan.switch, switch, switch)
        and switch is not None
        and namespaces.uplink_complete(plan, own, switch),
        accelerator=choice.accelerator if choice else None,
        accelerator_why=choice.why if choice else "",
        members=found,
    )


def _member_status(
    plan: Topology, member: Member, switch: Mapping[str, namespaces.Seen] | None, live: Mapping[int, str]
) -> MemberStatus:
    namespace = plan.members[member.name]
    healthy = {daemon.program: running(daemon, live) and answers(daemon) for daemon in daemons(member)}
    vms = vm_names(member) if healthy.get("libvirtd") else None
    return MemberStatus(
        name=member.name,
        namespace=namespaces.complete(namespace, namespaces.look(namespace.name), switch),
        sshd=healthy["sshd"],
        libvirtd=healthy.get("libvirtd"),
        vms=None if vms is None else len(vms),
    )


def _members(lab: Lab, plan: Topology) -> tuple[Member, ...]:
    return members(lab, {name: namespace.name for name, namespace in plan.members.items()})


def _lab_processes(lab: Lab) -> Mapping[int, str]:
    return namespaces.processes(namespace_prefix(lab))


def _is_vm(pid: int) -> bool:
    return namespaces.command_name(pid).startswith("qemu-system")


def _make_room_for_changes(lab: Lab, root: Path, say: Say) -> None:
    """When another lab than this came up here under the same name, take that down, unless VMs run in it."""
    before = (root / directory.MARKER).read_text()
    if not before or _same_shape(before, lab):
        return
    switch = topology(lab).switch.name
    if any(owner != switch and _is_vm(pid) for pid, owner in _lab_processes(lab).items()):
        raise LabError(
            f"The lab {lab.name!r} that is up differs from its file, and VMs run in it.",
            kind="lab-changed",
            why="Making the change takes the lab down, and the VMs with it.",
            todo="Run `labctl lab down` when they are no longer needed, then `labctl lab up`.",
        )
    say(f"The file of the lab {lab.name} has changed; making the lab anew.")
    _remove_all(lab, topology(lab))
    for entry in root.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != directory.MARKER:
            entry.unlink()
    directory.write(root / directory.MARKER, "")


def _same_shape(before: str, lab: Lab) -> bool:
    """Whether the lab that came up (as JSON) is made like this one; limits and declared facts make no difference."""

    def shape(of: Lab) -> Lab:
        hosts = {name: replace(host, facts={}) for name, host in of.hosts.items()}
        return replace(of, site="", hosts=hosts, images={}, limits=Limits())

    try:
        return shape(from_json(Lab, before)) == shape(lab)
    except ValidationError:
        return False


def _refuse_overlap(plan: Topology) -> None:
    """Raise `LabError` when the management network is one that this machine already knows."""
    address = plan.uplink.address
    assert address is not None
    for name, seen in (namespaces.look(None) or {}).items():
        for other in seen.addresses:
            if name != plan.uplink.name and IPv4Interface(other).network.overlaps(address.network):
                raise LabError(
                    f"The management network {address.network} of the embedded lab is already in use here.",
                    kind="address-overlap",
                    why=f"The interface {name} has the address {other}.",
                    todo="Give the lab another block with `subnet:` in the `embedded:` section, or another name.",
                )


def _ensure_network(lab: Lab, plan: Topology, say: Say) -> None:
    switch = namespaces.look(plan.switch.name)
    if not namespaces.complete(plan.switch, switch, switch):
        _remove_all(lab, plan)
        namespaces.make_switch(plan)
        say(f"{plan.switch.name}: made the switch.")
        switch = namespaces.look(plan.switch.name)
    for name, namespace in plan.members.items():
        if namespaces.complete(namespace, namespaces.look(namespace.name), switch):
            continue
        _end(lab, namespace.name.__eq__)
        namespaces.remove(namespace.name)
        namespaces.make_member(plan, namespace)
        say(f"{name}: made the network namespace {namespace.name}.")
    switch = namespaces.look(plan.switch.name) or {}
    if not namespaces.uplink_complete(plan, namespaces.look(None) or {}, switch):
        namespaces.make_uplink(plan)
        say(f"{plan.uplink.name}: joined this machine to the management network as {plan.uplink.address}.")


def _remove_all(lab: Lab, plan: Topology) -> None:
    """End all processes of the lab and remove its namespaces and interfaces."""
    prefix = namespace_prefix(lab)
    _end(lab, lambda _: True)
    namespaces.remove_uplink(plan)
    for name in namespaces.names(prefix):
        namespaces.remove(name)


def _end(lab: Lab, concerned: Callable[[str], bool]) -> None:
    """End the processes of the lab whose namespace is concerned."""
    namespaces.end_processes(lambda: [pid for pid, owner in _lab_processes(lab).items() if concerned(owner)])


def _ensure_daemons(lab: Lab, everybody: Sequence[Member], changed: frozenset[str], say: Say) -> None:
    live = _lab_processes(lab)

    def see_to(daemon: Daemon) -> bool:
        started = ensure(daemon, live, anew=daemon.member.name in changed)
        if started:
            say(f"{daemon.member.name}: started {daemon.program}.")
        return started

    wanted = [daemon for member in everybody for daemon in daemons(member)]
    with ThreadPoolExecutor(len(wanted)) as pool:
        started = list(pool.map(see_to, wanted))
    if any(started):
        warm_up(next(member for member in everybody if member.is_host))


def _ensure_image(lab: Lab, image: ProbeImage, say: Say) -> None:
    """Give the lab a copy of the probe image, so that a newer one in the cache changes nothing under running VMs."""
    link = Path(probe_directory(layout(lab).directory))
    copy = link.with_name(f"{PROBE_IMAGE}-{image.content_id}")
    if link.is_symlink() and link.readlink() == Path(copy.name):
        return
    link.parent.mkdir(mode=0o755, exist_ok=True)
    fresh = link.with_name(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    shutil.copyfile(image.kernel, fresh / "kernel")
    shutil.copyfile(image.initrd, fresh / "initrd")
    shutil.rmtree(copy, ignore_errors=True)
    fresh.rename(copy)
    fresh_link = link.with_name(".link")
    fresh_link.unlink(missing_ok=True)
    fresh_link.symlink_to(copy.name)
    fresh_link.rename(link)
    say(f"The probe guest's image is {image.content_id}.")


def _ensure_accelerator(lab: Lab, plan: Topology, image: ProbeImage, say: Say) -> None:
    choice = accelerator.asked(lab)
    if choice is None and accelerator.stored(lab) is not None:
        return
    if choice is None:
        _end(lab, plan.switch.name.__eq__)
        say(f"Booting a probe guest under KVM, for {accelerator.PROBE_SECONDS:g} s at most.")
        scratch = Path(layout(lab).directory) / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        choice = accelerator.probe(image, scratch=scratch, within=("ip", "netns", "exec", plan.switch.name))
        shutil.rmtree(scratch)
    if choice != accelerator.stored(lab):
        accelerator.store(lab, choice)
        say(f"Accelerator: {choice.accelerator.value}. {choice.why}")

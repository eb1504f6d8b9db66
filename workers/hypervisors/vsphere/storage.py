"""Where the disks of VMs come from, and that nothing of them is left."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from pyVmomi import vim, vmodl

from labctl.errors import LabError
from labctl.model.lab import Cloning, Image
from workers.guard import Deadline
from workers.hypervisors.base import NAME_PREFIX
from workers.hypervisors.vsphere import tasks
from workers.hypervisors.vsphere.connection import Session
from workers.hypervisors.vsphere.faults import lab_error
from workers.hypervisors.vsphere.inventory import Item, Row, choose, listing, plain, properties, related
from workers.hypervisors.vsphere.places import HostPlace, VmPlace

_LOG = logging.getLogger(__name__)

SEARCH_SECONDS = 30.0
"""Deadline for looking for a file on a datastore."""

_TEMPLATE = ("name", "config.guestId", "config.version", "config.hardware.device", "snapshot", "runtime.powerState")


@dataclass(frozen=True, kw_only=True)
class Template:
    """A template, or a VM that is used as one."""

    ref: vim.VirtualMachine
    name: str
    guest_id: str
    version: str
    """Its hardware version: `vmx-19`."""
    snapshot: vim.vm.Snapshot | None
    """The current one, which linked clones are made from."""


def find_template(at: HostPlace, image: Image, *, known: MutableMapping[str, Any] | None = None) -> Template:
    """The template of an image, in the datacenter of the host that it is to be used on.

    With an inventory path two calls; with a name four, and one for each further page of the datacenter's VMs. `known` is
    where it is kept what a name has led to, so that the next time costs one call. Raises `LabError` (`create-failed`): there
    is none, there are several, or it lacks what linked clones need.
    """
    row = _known_row(at, image, known or {})
    if row is None:
        ref = _by_path(at, image.template) if "/" in image.template else None
        row = _template_row(at, image, ref if ref is not None else _by_name(at, image))
    if known is not None:
        known[_key(at, image)] = row.ref
    snapshot = row["snapshot"].currentSnapshot if row["snapshot"] is not None else None
    if snapshot is None and image.clone is Cloning.LINKED:
        raise LabError(
            f"Template {image.template} has no snapshot, so it can't be cloned as image {image.name} asks for.",
            kind="create-failed",
            why="A linked clone reads what was never written from a snapshot of its template.",
            todo=f"Take a snapshot of {image.template} (convert it to a VM for that), or set `clone: full` for "
            f"images.{image.name} in the lab file.",
            host=at.name,
        )
    return Template(
        ref=row.ref,
        name=plain(row["name"]),
        guest_id=str(row["config.guestId"] or ""),
        version=str(row["config.version"] or ""),
        snapshot=snapshot,
    )


def require_iso(at: HostPlace, image: Image) -> None:
    """See that the CD image of an image is on a datastore of the host. Raises `LabError` (`create-failed`)."""
    datastore, _ = split_path(image.iso)
    key = f"images.{image.name}.iso"
    items = [
        Item(ref=row.ref, name=plain(row["name"]), path=plain(row["name"]), row=row)
        for row in _datastores(at.session, at)
    ]
    found = choose(items, datastore, what="datastore", where=f"Host {at.name}", key=key)
    folder, _, file = (
        image.iso.rpartition("/") if "/" in image.iso else (f"[{datastore}]", "", image.iso.split("] ")[-1])
    )
    deadline = Deadline.after(SEARCH_SECONDS)
    if not _is_there(at.session, found.ref, folder, deadline, file=file):
        raise LabError(
            f"Datastore {datastore} of host {at.name} has no CD image {image.iso}.",
            kind="create-failed",
            why=f"Nothing called {file} is in {folder}.",
            todo=f"Upload it, or correct {key} in the lab file.",
            host=at.name,
        )


def clone_spec(place: VmPlace, template: Template, image: Image, config: vim.vm.ConfigSpec) -> vim.vm.CloneSpec:
    """How a VM comes from a template: host, pool, datastore are all named, so that none is the template's."""
    linked = image.clone is Cloning.LINKED
    location = vim.vm.RelocateSpec(
        host=place.at.host,
        pool=place.pool,
        datastore=place.datastore,
        diskMoveType="createNewChildDiskBacking" if linked else "moveAllDiskBackingsAndDisallowSharing",
    )
    return vim.vm.CloneSpec(
        location=location,
        config=config,
        snapshot=template.snapshot if linked else None,
        powerOn=False,
        template=False,
    )


def remove_folder(session: Session, at: HostPlace, files: str, *, name: str, deadline: Deadline) -> None:
    """See that the folder of a VM that was destroyed is gone, and remove what is left of it (`.lck`, logs).

    Only a folder that has the VM's name is removed. Where labctl may not look into the datastore, nothing is known and
    nothing done. Raises `LabError` of kind `vsphere` when files can't be removed.
    """
    datastore, folder = split_path(files)
    path = f"[{datastore}] {folder}"
    ref = next((row.ref for row in _datastores(session, at) if plain(row["name"]) == datastore), None)
    if ref is None or not _is_of(folder, name):
        return
    try:
        if not _is_there(session, ref, path, deadline):
            return
        manager = session.content.fileManager
        tasks.run(
            session,
            lambda: manager.DeleteDatastoreFile_Task(name=path, datacenter=at.datacenter),
            entity=at.datacenter,
            operation="FileManager.deleteFile",
            deadline=deadline,
        )
    except vim.fault.FileNotFound:
        return
    except vim.fault.NoPermission as fault:
        _LOG.debug("What is left of %s in %s is not known: %s", name, path, fault.privilegeId)
    except vmodl.MethodFault as fault:
        what = f"Files of the VM {name} are left in {path} after it was destroyed."
        raise lab_error(at.name, what, fault, kind="vsphere", todo=f"Remove the folder {path} by hand.") from fault


def split_path(path: str) -> tuple[str, str]:
    """Datastore and folder of `[datastore] folder/file`."""
    datastore, _, rest = path.removeprefix("[").partition("] ")
    return datastore, rest.rpartition("/")[0]


def _is_of(folder: str, name: str) -> bool:
    """Whether a folder is that of a VM of ours: named like it, or with a number where vSphere found the name taken."""
    rest = folder.removeprefix(name)
    numbered = rest.startswith("_") and rest[1:].isdigit()
    return name.startswith(NAME_PREFIX) and folder.startswith(name) and (not rest or numbered)


def _is_there(session: Session, datastore: vim.Datastore, path: str, deadline: Deadline, *, file: str = "") -> bool:
    """Whether a datastore has a folder (`[datastore] folder`), or with a file's name whether that is in it."""
    browser = datastore.browser
    spec = vim.host.DatastoreBrowser.SearchSpec(matchPattern=[file] if file else None)
    try:
        state = tasks.run(
            session,
            lambda: browser.SearchDatastore_Task(datastorePath=path, searchSpec=spec),
            entity=datastore,
            operation="HostDatastoreBrowser.searchDatastore",
            deadline=deadline,
        )
    except vim.fault.FileNotFound:
        return False
    result: Any = state.result
    return not file or any(one.path == file for one in result.file or ())


def _datastores(session: Session, at: HostPlace) -> list[Row]:
    return related(session, at.host, "datastore", vim.Datastore, ("name",))


def _by_path(at: HostPlace, path: str) -> Any:  # noqa: ANN401
    """The VM or template of a whole inventory path, if there is one."""
    found = at.session.content.searchIndex.FindByInventoryPath(inventoryPath=path.strip("/"))
    return found if isinstance(found, vim.VirtualMachine) else None


def _by_name(at: HostPlace, image: Image) -> Any:  # noqa: ANN401
    """The one VM or template in the datacenter that has this name, or a path that ends so."""
    session, wanted = at.session, image.template
    rows = listing(session, at.datacenter, {vim.VirtualMachine: ("name", "parent")})
    named = [row for row in rows if plain(row["name"] or "") == wanted.rsplit("/", 1)[-1]]
    paths = {row.ref: _path(session, row) for row in named} if len(named) > 1 or "/" in wanted else {}
    items = [
        Item(ref=row.ref, name=plain(row["name"] or ""), path=paths.get(row.ref, ""), row=row)
        for row in (named or rows)
    ]
    key = f"images.{image.name}.template"
    return choose(items, wanted, what="template", where=f"The datacenter of host {at.name}", key=key).ref


def _path(session: Session, row: Row) -> str:
    """The inventory path of an object, by a call for each folder above it."""
    parts, parent = [plain(row["name"])], row["parent"]
    while parent is not None and parent != session.content.rootFolder:
        rows = properties(session, (parent,), ("name", "parent"))
        if not rows:
            break
        parts.append(plain(rows[0]["name"]))
        parent = rows[0]["parent"]
    return "/" + "/".join(reversed(parts))


def _key(at: HostPlace, image: Image) -> str:
    return f"{at.session.vcenter.name} {at.datacenter_path} {image.template}"


def _known_row(at: HostPlace, image: Image, known: Mapping[str, Any]) -> Row | None:
    """What is known already, unless it was removed or has another name now."""
    key = _key(at, image)
    ref = at.session.object(vim.VirtualMachine, known[key]._GetMoId()) if key in known else None
    rows = properties(at.session, (ref,), _TEMPLATE) if ref is not None else []
    same = rows and plain(rows[0]["name"] or "") == image.template.rsplit("/", 1)[-1]
    return rows[0] if same else None


def _template_row(at: HostPlace, image: Image, ref: Any) -> Row:  # noqa: ANN401
    rows = properties(at.session, (ref,), _TEMPLATE)
    if not rows:
        raise LabError(
            f"Template {image.template} was removed while it was looked at.",
            kind="create-failed",
            todo=f"Correct images.{image.name}.template in the lab file.",
            host=at.name,
        )
    return rows[0]

"""What a vCenter holds, asked for by the property collector: a few calls, however much there is.

A listing costs three calls: one makes a container view, one fetches the properties of all that is in it (and one more for
each further page, if the server makes pages), one destroys the view. So 5,000 VMs cost three calls and their pages.
Objects that others remove meanwhile are left out: that is no error.

Names of vSphere have `%`, `/` and `\\` escaped (`%2f`); here they are plain.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyVmomi import vim, vmodl

from labctl.errors import LabError
from workers.hypervisors.vsphere.connection import Session

PAGE = 1000
"""Objects that are asked for at once. The server may give fewer."""

_PLACES: Mapping[type[Any], tuple[str, ...]] = {
    vim.Folder: ("name", "parent"),
    vim.Datacenter: ("name", "parent", "vmFolder"),
    vim.ComputeResource: ("name", "parent", "resourcePool"),
    vim.HostSystem: ("name", "parent", "datastore", "network"),
    vim.ResourcePool: ("name", "parent", "owner"),
    vim.Datastore: ("name", "parent"),
    vim.Network: ("name", "parent"),
}


@dataclass(frozen=True)
class Row:
    """One object with the properties that it has of those that were asked for."""

    ref: Any
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever the property is
        """The property, or None when the object has none."""
        return self.values.get(name)


def properties(session: Session, refs: Sequence[Any], names: Sequence[str]) -> list[Row]:
    """Properties of objects by one call, and one more for each that is gone: those are left out."""
    left = list(dict.fromkeys(refs))
    while left:
        objects = [vmodl.query.PropertyCollector.ObjectSpec(obj=ref) for ref in left]
        kinds = {type(ref): tuple(names) for ref in left}
        try:
            return _retrieve(session, objects, kinds)
        except vmodl.fault.ManagedObjectNotFound as gone:
            if gone.obj not in left:
                raise
            left.remove(gone.obj)
    return []


def property_of(session: Session, ref: Any, name: str) -> Any:  # noqa: ANN401
    """One property of one object, by one call. None when the object has none, or is gone."""
    rows = properties(session, (ref,), (name,))
    return rows[0][name] if rows else None


def listing(session: Session, root: Any, kinds: Mapping[type[Any], Sequence[str]]) -> list[Row]:  # noqa: ANN401
    """All objects of these kinds in or below `root`, with the properties named. Three calls and one for each page."""
    try:
        return _view(session, root, kinds)
    except vmodl.fault.ManagedObjectNotFound:
        # The view goes with the session that made it, and an object may go before the properties are read.
        return _view(session, root, kinds)


def related(session: Session, ref: Any, path: str, kind: type[Any], names: Sequence[str]) -> list[Row]:  # noqa: ANN401
    """The objects that a property of `ref` leads to (`host.vm`), with the properties named. One call and its pages."""
    lead = vmodl.query.PropertyCollector.TraversalSpec(type=type(ref), path=path, skip=False)
    spec = vmodl.query.PropertyCollector.ObjectSpec(obj=ref, skip=True, selectSet=[lead])
    return _retrieve(session, [spec], {kind: tuple(names)})


@dataclass(frozen=True, kw_only=True)
class Item:
    """An object of the inventory with its name and its inventory path (`/dc/host/cluster/esx1`)."""

    ref: Any
    name: str
    path: str
    row: Row


class Inventory:
    """Datacenters, folders, hosts, pools, datastores and networks with their paths, as read at one moment. No VMs."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {row.ref: row for row in rows}

    @classmethod
    def read(cls, session: Session) -> Inventory:
        """Read it: three calls."""
        return cls(listing(session, session.content.rootFolder, _PLACES))

    def items(self, kind: type[Any]) -> Iterator[Item]:
        """All objects of a kind."""
        for ref in self._rows:
            if isinstance(ref, kind):
                yield self.item(ref)

    def item(self, ref: Any) -> Item:  # noqa: ANN401
        """An object of the inventory."""
        row = self._rows[ref]
        return Item(ref=ref, name=plain(row["name"]), path=self.path(ref), row=row)

    def has(self, ref: Any) -> bool:  # noqa: ANN401
        """Whether labctl may see it."""
        return ref in self._rows

    def above(self, item: Item, kind: type[Any]) -> Item:
        """The nearest object of a kind that it is in."""
        ref = item.ref
        while not isinstance(ref, kind):
            ref = self._rows[ref]["parent"]
        return self.item(ref)

    def path(self, ref: Any) -> str:  # noqa: ANN401
        """Its inventory path."""
        parts: list[str] = []
        while ref in self._rows:
            row = self._rows[ref]
            parts.append(plain(row["name"]))
            ref = row["parent"]
        return "/" + "/".join(reversed(parts))

    def within(self, item: Item, above: Any) -> bool:  # noqa: ANN401
        """Whether an object is in or below another."""
        ref = item.ref
        while ref in self._rows:
            if ref == above:
                return True
            ref = self._rows[ref]["parent"]
        return bool(ref == above)


def choose(items: Sequence[Item], wanted: str, *, what: str, where: str, key: str, kind: str = "create-failed") -> Item:
    """The one that a name, an inventory path or an identity (`network-7`) means; with an empty one the only one there is.

    Raises `LabError` of the kind given when there is none (with the nearest names) or there are several (with their
    paths). `what` says what is looked for (`network`), `where` in what, `key` where the lab file says it.
    """
    found = [item for item in items if not wanted or _means(wanted, item)]
    if len(found) == 1:
        return found[0]
    if found:
        raise LabError(
            f"{where} has several {what}s that " + (f"are called {wanted}." if wanted else "could be meant."),
            kind=kind,
            why="They are " + ", ".join(sorted(f"{item.path} ({_identity(item)})" for item in found)[:12]) + ".",
            todo=f"Write the inventory path of the one that is meant, or its identity, for {key} in the lab file.",
        )
    names = sorted({item.name for item in items})
    near = difflib.get_close_matches(wanted.rsplit("/", 1)[-1], names, n=3, cutoff=0.4) or names[:3]
    raise LabError(
        f"{where} has no {what} {wanted}." if wanted else f"{where} has no {what}.",
        kind=kind,
        why="Nearest are " + ", ".join(near) + "." if near else f"It has no {what} at all that labctl may see.",
        todo=f"Correct {key} in the lab file, or let the user of labctl see it.",
    )


def plain(name: str) -> str:
    """A name without the escapes of vSphere."""
    return unquote(name)


def _means(wanted: str, item: Item) -> bool:
    path = "/" + wanted.strip("/")
    by_path = item.path == path or ("/" in wanted.strip("/") and item.path.endswith(path))
    return by_path or wanted in (item.name, _identity(item))


def _identity(item: Item) -> str:
    return str(getattr(item.ref, "_moId", item.ref))


def _view(session: Session, root: Any, kinds: Mapping[type[Any], Sequence[str]]) -> list[Row]:  # noqa: ANN401
    view = session.content.viewManager.CreateContainerView(container=root, type=list(kinds), recursive=True)
    try:
        lead = vmodl.query.PropertyCollector.TraversalSpec(type=vim.view.ContainerView, path="view", skip=False)
        spec = vmodl.query.PropertyCollector.ObjectSpec(obj=view, skip=True, selectSet=[lead])
        return _retrieve(session, [spec], kinds)
    finally:
        # Else it ends with the session.
        with contextlib.suppress(vmodl.MethodFault, LabError):
            view.DestroyView()


def _retrieve(
    session: Session,
    objects: Sequence[vmodl.query.PropertyCollector.ObjectSpec],
    kinds: Mapping[type[Any], Sequence[str]],
) -> list[Row]:
    collector = session.content.propertyCollector
    wanted = [
        vmodl.query.PropertyCollector.PropertySpec(type=kind, pathSet=list(names)) for kind, names in kinds.items()
    ]
    spec = vmodl.query.PropertyCollector.FilterSpec(objectSet=list(objects), propSet=wanted)
    options = vmodl.query.PropertyCollector.RetrieveOptions(maxObjects=PAGE)
    page = collector.RetrievePropertiesEx(specSet=[spec], options=options)
    rows: list[Row] = []
    while page is not None:
        rows += [Row(entry.obj, {value.name: value.val for value in entry.propSet}) for entry in page.objects]
        page = collector.ContinueRetrievePropertiesEx(token=page.token) if page.token else None
    return rows

"""Lab files: YAML to a checked `Lab`, with every mistake told at its place. Secrets are references, never values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Interface
from itertools import permutations
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WithJsonSchema

from labctl.errors import Problem, SpecError
from labctl.model.lab import (
    Accelerator,
    ChannelKind,
    Host,
    Image,
    ImageKind,
    Lab,
    Limits,
    Machine,
    Network,
    SecretRef,
    SshAccess,
)
from labctl.model.nic import Hypervisor
from labctl.model.scenario import OTHER_HOST, OWN_HOST
from labctl.spec.embedded import EmbeddedSpec, expand_embedded
from labctl.spec.fields import Address, Interface, Name, Strict, Subnet, Switch, Text, complaint
from labctl.spec.problems import problems_of
from labctl.spec.source import Document, KeyPath, parse_document, read_text, refusal
from labctl.spec.values import nearest

WHAT = "lab"
_SECRETS = "file:PATH, env:NAME or keyring:SERVICE/USER"


def _secret(value: object) -> SecretRef:
    """A reference to a secret. The value is never repeated in the message: it may be the secret itself."""
    scheme, colon, locator = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not locator or scheme not in ("file", "env", "keyring"):
        raise complaint("must say where the secret is; a secret is never written here", allowed=_SECRETS, secret=True)
    if scheme == "env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", locator):
        raise complaint("is no name of an environment variable", allowed=_SECRETS, secret=True)
    if scheme == "keyring" and not all(locator.partition("/")):
        raise complaint("must name service and user", allowed=_SECRETS, secret=True)
    return SecretRef(scheme=scheme, locator=locator)


def _uri(value: str) -> str:
    try:
        password = urlsplit(value).password
    except ValueError as error:
        raise complaint("is no URI", allowed="such as qemu+ssh://root@host/system", secret=True) from error
    if password is not None:
        raise complaint("holds a password; a secret is never written here", secret=True)
    if ":" not in value:
        raise complaint("is no URI", allowed="such as qemu+ssh://root@host/system")
    return value


def _pci(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", value):
        raise complaint("is no PCI address", allowed="domain:bus:slot.function, such as 0000:3b:00.0")
    return value


def _fact(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", value):
        raise complaint("is no name of a fact", allowed="letters, digits, dots, underscores and hyphens")
    return value


Secret = Annotated[SecretRef, BeforeValidator(_secret), WithJsonSchema({"type": "string", "description": _SECRETS})]
Uri = Annotated[Text, AfterValidator(_uri)]
Pci = Annotated[Text, AfterValidator(_pci)]
Port = Annotated[int, Field(ge=1, le=65535)]
Mtu = Annotated[int, Field(ge=576, le=65535)]
Facts = dict[Annotated[str, AfterValidator(_fact)], Text]


class SshField(Strict):
    """How to reach a machine by SSH."""

    address: Text
    user: Text
    key: Secret
    known_hosts: Text
    port: Port = 22


class HostField(Strict):
    """One hypervisor machine."""

    hypervisor: Annotated[Hypervisor, Field(strict=False)]
    uri: Uri
    machine: Name | None = Field(default=None, description="the physical machine; default: the host's own name")
    address: Interface | None = None
    migration_address: Address | None = None
    ssh: SshField | None = None
    accelerator: Annotated[Accelerator, Field(strict=False)] = Accelerator.AUTO
    devices: list[Pci] = Field(default=[])
    virtual_functions: list[Pci] = Field(default=[])
    facts: Facts = Field(default={})


class MachineField(Strict):
    """A plain machine that is no hypervisor."""

    address: Interface
    ssh: SshField
    machine: Name | None = None


class NetworkField(Strict):
    """A network that VMs are attached to."""

    bridge: Text
    mtu: Mtu = 1500
    addressing: Literal["static", "dhcp"] = "static"
    guest_range: Annotated[list[Address], Field(min_length=2, max_length=2)] | None = None
    prefix_length: int = Field(default=24, ge=8, le=30)


class ImageField(Strict):
    """What a VM boots."""

    kind: Annotated[ImageKind, Field(strict=False)]
    channel: Annotated[ChannelKind, Field(strict=False)] = ChannelKind.QEMU_AGENT
    kernel: Text | None = None
    initrd: Text | None = None
    command_line: str = ""
    disk: Text | None = None
    ssh_user: Text = "root"
    ssh_key: Secret | None = None
    drivers: list[Text] = Field(default=[])


class MigrationField(Strict):
    """Which hosts can migrate to which."""

    pairs: list[Annotated[list[Text], Field(min_length=2, max_length=2)]]
    one_way: Switch = False


class AllPairs(MigrationField):
    """Every host to every other host of the same hypervisor."""


def _migration(value: object) -> object:
    if value == "all":
        return AllPairs(pairs=[])
    if not isinstance(value, dict):
        raise complaint("must be `all` or a mapping with `pairs`", allowed="all, or pairs: [[HOST, HOST], ...]")
    return value


Migration = Annotated[
    MigrationField | None,
    BeforeValidator(_migration),
    WithJsonSchema({"anyOf": [{"const": "all"}, MigrationField.model_json_schema()]}),
]


class LimitsField(Strict):
    """What the lab allows at once."""

    vms_per_host: int = Field(default=Limits.vms_per_host, ge=1)
    migrations_at_once: int = Field(default=Limits.migrations_at_once, ge=1)


class EmbeddedField(Strict):
    """The embedded lab: hosts in network namespaces of one Linux machine."""

    hosts: Annotated[list[Text], Field(min_length=1)]
    machines: list[Text] = Field(default=[])
    limits: LimitsField = LimitsField()
    directory: Text | None = None
    accelerator: Annotated[Accelerator, Field(strict=False)] = Accelerator.AUTO
    host_facts: dict[str, Facts] = Field(default={})
    subnet: Subnet | None = None
    mtu: Mtu = 1500


class LabFile(Strict):
    """A lab: hosts, plain machines, networks, images, and which hosts can migrate to which; or an embedded lab."""

    lab: Name = Field(description="name of the lab")
    site: Name = Field(default="local", description="workers of this site drive the lab")
    embedded: EmbeddedField | None = Field(default=None, description="an embedded lab; then nothing else is needed")
    hosts: dict[Name, HostField] = Field(default={})
    machines: dict[Name, MachineField] = Field(default={})
    networks: dict[Name, NetworkField] = Field(default={})
    images: dict[Name, ImageField] = Field(default={})
    migration: Migration = Field(default=None, description="which hosts can migrate to which")
    limits: LimitsField = LimitsField()
    test_network: Text | None = Field(default=None, description="network that is measured; default: the only one")


def load_lab(path: Path) -> Lab:
    """The lab of a file. Relative paths in it start from its folder. Raises `SpecError` with all mistakes."""
    return lab_of(load_lab_document(path))


def load_lab_document(path: Path) -> Document:
    """The lab file as a tree with places. Raises `SpecError` when it isn't YAML."""
    return parse_document(read_text(path, what=WHAT), file=str(path), what=WHAT, base=path.parent.absolute())


def parse_lab(text: str, *, file: str = "lab", base: Path | None = None) -> Lab:
    """The lab of a text; relative paths start from `base`. Raises `SpecError` with all mistakes."""
    return lab_of(parse_document(text, file=file, what=WHAT, base=base or Path.cwd()))


def lab_of(document: Document) -> Lab:
    """The lab of a document. Raises `SpecError` with all mistakes."""
    try:
        spec = LabFile.model_validate(document.plain())
    except ValidationError as error:
        raise refusal(document.file, WHAT, problems_of(error, document, LabFile)) from error
    problems = list(_contradictions(spec, document))
    if problems:
        raise refusal(document.file, WHAT, problems)
    return _embedded(spec, spec.embedded, document) if spec.embedded is not None else _lab(spec, document)


def _embedded(spec: LabFile, embedded: EmbeddedField, document: Document) -> Lab:
    section = EmbeddedSpec(
        hosts=tuple(embedded.hosts),
        machines=tuple(embedded.machines),
        limits=_limits(embedded.limits),
        directory=PurePosixPath(embedded.directory) if embedded.directory is not None else None,
        accelerator=embedded.accelerator,
        host_facts=embedded.host_facts,
        subnet=embedded.subnet,
        mtu=embedded.mtu,
    )
    try:
        return expand_embedded(spec.lab, spec.site, section)
    except SpecError as error:
        words = " ".join(part for part in (error.what, error.why, error.todo) if part)
        problem = document.problem(("embedded",), words, at_key=True)
        raise refusal(document.file, WHAT, [problem]) from error


def _lab(spec: LabFile, document: Document) -> Lab:
    return Lab(
        name=spec.lab,
        site=spec.site,
        hosts={name: _host(name, host, document.base) for name, host in spec.hosts.items()},
        machines={
            name: Machine(
                name=name,
                address=machine.address,
                ssh=_ssh(machine.ssh, document.base),
                machine=machine.machine or name,
            )
            for name, machine in spec.machines.items()
        },
        networks={name: _network(name, network) for name, network in spec.networks.items()},
        images={name: _image(name, image, document.base) for name, image in spec.images.items()},
        migration_pairs=frozenset(_pairs(spec)),
        test_network=_test_network(spec),
        limits=_limits(spec.limits),
    )


def _host(name: str, host: HostField, base: Path) -> Host:
    return Host(
        name=name,
        hypervisor=host.hypervisor,
        uri=host.uri,
        machine=host.machine or name,
        address=host.address,
        migration_address=host.migration_address,
        ssh=_ssh(host.ssh, base) if host.ssh is not None else None,
        accelerator=host.accelerator,
        devices=tuple(host.devices),
        virtual_functions=tuple(host.virtual_functions),
        facts=host.facts,
    )


def _ssh(ssh: SshField, base: Path) -> SshAccess:
    return SshAccess(
        address=ssh.address,
        user=ssh.user,
        key=_placed(ssh.key, base),
        known_hosts=_path(ssh.known_hosts, base),
        port=ssh.port,
    )


def _network(name: str, network: NetworkField) -> Network:
    guests = network.guest_range
    return Network(
        name=name,
        bridge=network.bridge,
        mtu=network.mtu,
        addressing=network.addressing,
        guest_range=(guests[0], guests[1]) if guests else None,
        prefix_length=network.prefix_length,
    )


def _image(name: str, image: ImageField, base: Path) -> Image:
    return Image(
        name=name,
        kind=image.kind,
        channel=image.channel,
        kernel=image.kernel or "",
        initrd=image.initrd or "",
        command_line=image.command_line,
        disk=image.disk or "",
        ssh_user=image.ssh_user,
        ssh_key=_placed(image.ssh_key, base) if image.ssh_key is not None else None,
        drivers=frozenset(image.drivers),
    )


def _limits(limits: LimitsField) -> Limits:
    return Limits(vms_per_host=limits.vms_per_host, migrations_at_once=limits.migrations_at_once)


def _placed(secret: SecretRef, base: Path) -> SecretRef:
    if secret.scheme != "file":
        return secret
    return SecretRef(scheme="file", locator=_path(secret.locator, base))


def _path(path: str, base: Path) -> str:
    """A path of the lab file; `~` is left for the machine that uses it."""
    return path if path.startswith(("~", "/")) else str(base / path)


def _pairs(spec: LabFile) -> Iterator[tuple[str, str]]:
    if spec.migration is None:
        return
    if isinstance(spec.migration, AllPairs):
        for source, destination in permutations(spec.hosts, 2):
            if spec.hosts[source].hypervisor is spec.hosts[destination].hypervisor:
                yield source, destination
        return
    for first, second in spec.migration.pairs:
        yield first, second
        if not spec.migration.one_way:
            yield second, first


def _test_network(spec: LabFile) -> str:
    return spec.test_network if spec.test_network is not None else next(iter(spec.networks))


def _contradictions(spec: LabFile, document: Document) -> Iterator[Problem]:
    if spec.embedded is not None:
        yield from _beside_embedded(document)
        return
    yield from _missing_parts(spec, document)
    yield from _names(spec, document)
    yield from _test_network_problems(spec, document)
    yield from _network_problems(spec, document)
    yield from _image_problems(spec, document)
    yield from _pair_problems(spec, document)
    yield from _addresses_twice(spec, document)
    yield from _outside_network(spec, document)


def _beside_embedded(document: Document) -> Iterator[Problem]:
    for key in ("hosts", "machines", "networks", "images", "migration", "limits", "test_network"):
        if key in document.root.entries:
            message = "an embedded lab makes its own; what can be said of it stands under `embedded`"
            yield document.problem((key,), message, at_key=True)


def _missing_parts(spec: LabFile, document: Document) -> Iterator[Problem]:
    for key, found in (("hosts", spec.hosts), ("networks", spec.networks)):
        if not found:
            path: KeyPath = (key,) if key in document.root.entries else ()
            message = f"the lab has no {key}; name at least one, or describe an embedded lab under `embedded`"
            yield document.problem(path, message, at_key=True)


def _names(spec: LabFile, document: Document) -> Iterator[Problem]:
    for kind, names in (("hosts", spec.hosts), ("machines", spec.machines)):
        for name in names:
            if name in (OWN_HOST, OTHER_HOST):
                yield document.problem((kind, name), "this name has a meaning of its own (see `peer`)", at_key=True)
    for name in spec.machines:
        if name in spec.hosts:
            line = document.key_place(("hosts", name)).line
            yield document.problem(("machines", name), f"a host has this name too (line {line})", at_key=True)


def _test_network_problems(spec: LabFile, document: Document) -> Iterator[Problem]:
    names = ", ".join(spec.networks)
    if spec.test_network is None and len(spec.networks) > 1:
        yield document.problem((), "the key `test_network` is missing: there are several networks", allowed=names)
    if spec.test_network is not None and spec.networks and spec.test_network not in spec.networks:
        near = nearest(spec.test_network, spec.networks)
        yield document.problem(("test_network",), "is no network of this lab", allowed=names, nearest=near)


def _network_problems(spec: LabFile, document: Document) -> Iterator[Problem]:
    for name, network in spec.networks.items():
        path: KeyPath = ("networks", name)
        if network.addressing == "static" and network.guest_range is None:
            yield document.problem(path, "with static addressing VMs need a `guest_range`", at_key=True)
        if network.guest_range is None:
            continue
        first, last = network.guest_range
        if first > last:
            yield document.problem((*path, "guest_range"), "the first address is above the last")
        elif (
            IPv4Interface((first, network.prefix_length)).network
            != IPv4Interface((last, network.prefix_length)).network
        ):
            yield document.problem((*path, "guest_range"), f"is more than one /{network.prefix_length} network")


def _image_problems(spec: LabFile, document: Document) -> Iterator[Problem]:
    for name, image in spec.images.items():
        needed = ("kernel", "initrd") if image.kind is ImageKind.KERNEL else ("disk",)
        for key in ("kernel", "initrd", "disk"):
            given = getattr(image, key) is not None
            if key in needed and not given:
                message = f"an image of kind {image.kind} needs `{key}`"
                yield document.problem(("images", name), message, at_key=True)
            if key not in needed and given:
                message = f"an image of kind {image.kind} has no `{key}`"
                yield document.problem(("images", name, key), message, at_key=True)
        if image.channel is ChannelKind.SSH and image.ssh_key is None:
            yield document.problem(("images", name), "the channel ssh needs `ssh_key`", at_key=True)


def _pair_problems(spec: LabFile, document: Document) -> Iterator[Problem]:
    if spec.migration is None:
        return
    yield from _named_pairs(spec.migration, spec, document)
    for name in sorted({destination for _, destination in _pairs(spec) if destination in spec.hosts}):
        host = spec.hosts[name]
        if host.hypervisor is Hypervisor.KVM and host.migration_address is None:
            message = "VMs can't be migrated to this host without its `migration_address`"
            yield document.problem(("hosts", name), message, at_key=True)


def _named_pairs(migration: MigrationField, spec: LabFile, document: Document) -> Iterator[Problem]:
    for index, pair in enumerate(migration.pairs):
        path: KeyPath = ("migration", "pairs", index)
        unknown = False
        for side, name in enumerate(pair):
            if name not in spec.hosts:
                unknown = True
                allowed, near = ", ".join(spec.hosts), nearest(name, spec.hosts)
                yield document.problem((*path, side), "is no host of this lab", allowed=allowed, nearest=near)
        if unknown:
            continue
        if pair[0] == pair[1]:
            yield document.problem(path, "a host can't migrate to itself")
        elif spec.hosts[pair[0]].hypervisor is not spec.hosts[pair[1]].hypervisor:
            yield document.problem(path, "VMs can't be migrated between two kinds of hypervisors")


def _addresses(spec: LabFile) -> Iterable[tuple[IPv4Address, KeyPath]]:
    for name, host in spec.hosts.items():
        if host.address is not None:
            yield host.address.ip, ("hosts", name, "address")
        if host.migration_address is not None and (host.address is None or host.migration_address != host.address.ip):
            yield host.migration_address, ("hosts", name, "migration_address")
    for name, machine in spec.machines.items():
        yield machine.address.ip, ("machines", name, "address")


def _addresses_twice(spec: LabFile, document: Document) -> Iterator[Problem]:
    seen: dict[IPv4Address, KeyPath] = {}
    for address, path in _addresses(spec):
        if address in seen:
            line = document.place(seen[address]).line
            yield document.problem(path, f"the same address is used at line {line}")
        seen.setdefault(address, path)


def _outside_network(spec: LabFile, document: Document) -> Iterator[Problem]:
    """Test addresses that VMs of the measured network can't reach without a router."""
    network = spec.networks.get(spec.test_network or next(iter(spec.networks), ""))
    if network is None or not network.guest_range:
        return
    first, last = network.guest_range
    guests = IPv4Interface((first, network.prefix_length)).network
    named = [(host.address, ("hosts", name, "address")) for name, host in spec.hosts.items() if host.address]
    named += [(machine.address, ("machines", name, "address")) for name, machine in spec.machines.items()]
    for address, path in named:
        if address.ip not in guests:
            yield document.problem(
                path, "is outside of the network that is measured", allowed=f"an address of {guests}"
            )
        elif first <= address.ip <= last:
            yield document.problem(path, "lies in the `guest_range` that VMs take their addresses from")

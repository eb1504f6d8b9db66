"""Lab files: YAML to a checked `Lab`, with every mistake told at its place. Secrets are references, never values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from labctl.errors import SpecError
from labctl.model.lab import (
    Accelerator,
    Cloning,
    Host,
    Image,
    Lab,
    Limits,
    Login,
    Machine,
    MigrationAuth,
    Network,
    QuietLimits,
    SshAccess,
    VCenter,
    WinrmAccess,
)
from labctl.spec.embedded import EmbeddedSpec, expand_embedded
from labctl.spec.image_contradictions import channel_of, customisation_of
from labctl.spec.lab_contradictions import contradictions
from labctl.spec.lab_file import (
    EmbeddedField,
    GuestWinrmField,
    HostField,
    ImageField,
    LabFile,
    LimitsField,
    LoginField,
    NetworkField,
    QuietField,
    SimulatedField,
    SshField,
    VCenterField,
    WinrmField,
    pairs_of,
)
from labctl.spec.problems import problems_of
from labctl.spec.references import path_from, placed
from labctl.spec.simulated import SimulatedSpec, expand_simulated
from labctl.spec.source import Document, parse_document, read_text, refusal

WHAT = "lab"


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
    problems = list(contradictions(spec, document))
    if problems:
        raise refusal(document.file, WHAT, problems)
    lab = _whole_lab(spec, document)
    return replace(lab, quiet=_quiet(spec.quiet)) if spec.quiet is not None else lab


def _whole_lab(spec: LabFile, document: Document) -> Lab:
    section = "embedded" if spec.embedded is not None else "simulated"
    try:
        if spec.embedded is not None:
            return expand_embedded(spec.lab, spec.site, _embedded(spec.embedded))
        if spec.simulated is not None:
            return expand_simulated(spec.lab, spec.site, _simulated(spec.simulated, document.base))
    except SpecError as error:
        words = " ".join(part for part in (error.what, error.why, error.todo) if part)
        problem = document.problem((section,), words, at_key=True)
        raise refusal(document.file, WHAT, [problem]) from error
    return _lab(spec, document)


def _embedded(embedded: EmbeddedField) -> EmbeddedSpec:
    return EmbeddedSpec(
        hosts=tuple(embedded.hosts),
        machines=tuple(embedded.machines),
        limits=_limits(embedded.limits),
        directory=PurePosixPath(embedded.directory) if embedded.directory is not None else None,
        accelerator=embedded.accelerator,
        host_facts=embedded.host_facts,
        subnet=embedded.subnet,
        mtu=embedded.mtu,
    )


def _simulated(simulated: SimulatedField, base: Path) -> SimulatedSpec:
    directory = simulated.directory
    return SimulatedSpec(
        hosts=tuple(simulated.hosts),
        machines=tuple(simulated.machines),
        seed=simulated.seed,
        directory=PurePosixPath(base / Path(directory).expanduser()) if directory is not None else None,
        hypervisor=simulated.hypervisor,
        host_facts=simulated.host_facts,
        limits=_limits(simulated.limits),
    )


def _lab(spec: LabFile, document: Document) -> Lab:
    static = spec.networks[_test_network(spec)].addressing == "static"
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
        images={name: _image(name, image, document.base, static=static) for name, image in spec.images.items()},
        migration_pairs=frozenset(pairs_of(spec)),
        test_network=_test_network(spec),
        limits=_limits(spec.limits),
        vcenters={name: _vcenter(name, vcenter, document.base) for name, vcenter in spec.vcenters.items()},
    )


def _vcenter(name: str, vcenter: VCenterField, base: Path) -> VCenter:
    return VCenter(
        name=name,
        address=vcenter.address,
        login=_login(vcenter, base),
        ca_file=path_from(vcenter.ca_file, base) if vcenter.ca_file is not None else "",
        thumbprint=vcenter.thumbprint or "",
        datacenter=vcenter.datacenter or "",
        folder=vcenter.folder or "",
        clones_at_once=vcenter.clones_at_once,
        relocations_at_once=vcenter.relocations_at_once,
        pin=vcenter.pin,
    )


def _host(name: str, host: HostField, base: Path) -> Host:
    return Host(
        name=name,
        hypervisor=host.hypervisor,
        uri=host.uri or "",
        machine=host.machine or name,
        address=host.address,
        migration_address=host.migration_address,
        ssh=_ssh(host.ssh, base) if host.ssh is not None else None,
        accelerator=host.accelerator or Accelerator.AUTO,
        devices=tuple(host.devices),
        virtual_functions=tuple(host.virtual_functions),
        vcenter=host.vcenter or "",
        inventory=host.inventory or "",
        resource_pool=host.resource_pool or "",
        datastore=host.datastore or "",
        storage=host.storage or "",
        winrm=_winrm(host.winrm, base) if host.winrm is not None else None,
        migration_auth=host.migration_auth or MigrationAuth.KERBEROS,
        facts=host.facts,
    )


def _login(login: LoginField, base: Path) -> Login:
    return Login(user=login.user, password=placed(login.password, base))


def _winrm(winrm: WinrmField, base: Path) -> WinrmAccess:
    return WinrmAccess(
        url=winrm.url,
        login=_login(winrm, base),
        transport=winrm.transport,
        ca_file=path_from(winrm.ca_file, base) if winrm.ca_file is not None else "",
    )


def _ssh(ssh: SshField, base: Path) -> SshAccess:
    return SshAccess(
        address=ssh.address,
        user=ssh.user,
        key=placed(ssh.key, base),
        known_hosts=path_from(ssh.known_hosts, base),
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
        vlan=network.vlan,
        speed=network.speed,
    )


def _image(name: str, image: ImageField, base: Path, *, static: bool) -> Image:
    winrm = image.winrm or GuestWinrmField()
    return Image(
        name=name,
        kind=image.kind,
        channel=channel_of(image),
        kernel=image.kernel or "",
        initrd=image.initrd or "",
        command_line=image.command_line,
        disk=image.disk or "",
        ssh_user=image.ssh_user,
        ssh_key=placed(image.ssh_key, base) if image.ssh_key is not None else None,
        known_hosts=path_from(image.known_hosts, base) if image.known_hosts is not None else "",
        system=image.system,
        login=_login(image.login, base) if image.login is not None else None,
        winrm_transport=winrm.transport,
        winrm_ca_file=path_from(winrm.ca_file, base) if winrm.ca_file is not None else "",
        winrm_https=winrm.https,
        template=image.template or "",
        iso=image.iso or "",
        guest_id=image.guest_id or "",
        clone=image.clone or Cloning.LINKED,
        customisation=customisation_of(image, static=static),
        generation=image.generation or Image.generation,
        drivers=frozenset(image.drivers),
    )


def _limits(limits: LimitsField) -> Limits:
    return Limits(vms_per_host=limits.vms_per_host, migrations_at_once=limits.migrations_at_once)


def _quiet(quiet: QuietField) -> QuietLimits:
    return QuietLimits(cpu=quiet.cpu, load=quiet.load, network=quiet.network, other_vms=quiet.other_vms)


def _test_network(spec: LabFile) -> str:
    return spec.test_network if spec.test_network is not None else next(iter(spec.networks))

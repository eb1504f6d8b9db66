"""What a member of the embedded lab has on disk: keys, its view of /etc, and the settings of its daemons."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.model.lab import Lab, SshAccess
from workers.locallab.directory import write
from workers.locallab.image import default_cache
from workers.locallab.system import run
from workers.locallab.topology import hostname, layout

LIBVIRT_FOLDERS = ("etc", "run", "lib", "log")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A host or plain machine of the lab and where its files are."""

    lab: Path
    name: str
    hostname: str
    namespace: str
    ssh: SshAccess
    uri: str
    """Where its libvirtd is reached; empty for a plain machine."""

    @property
    def is_host(self) -> bool:
        """Whether it has a libvirtd."""
        return bool(self.uri)

    @property
    def directory(self) -> Path:
        """The member's own directory."""
        return self.lab / "members" / self.name

    @property
    def cache(self) -> Path:
        """What libvirtd keeps of QEMU's abilities. It is the same for all hosts and outlives the lab."""
        return default_cache() / "libvirt"

    @property
    def host_key(self) -> Path:
        """The private key by which its SSH server proves itself."""
        return self.directory / "ssh" / "host_key"


def members(lab: Lab, namespaces: Mapping[str, str]) -> tuple[Member, ...]:
    """All members of a lab; `namespaces` gives the namespace of each."""
    directory = Path(layout(lab).directory)
    accesses = {name: host.ssh for name, host in lab.hosts.items()}
    accesses |= {name: machine.ssh for name, machine in lab.machines.items()}
    return tuple(
        Member(
            lab=directory,
            name=name,
            hostname=hostname(lab, name),
            namespace=namespaces[name],
            ssh=access,
            uri=lab.hosts[name].uri if name in lab.hosts else "",
        )
        for name, access in accesses.items()
        if access is not None
    )


def write_files(lab: Lab, all_members: Sequence[Member]) -> frozenset[str]:
    """Write what is missing or differs; the members whose settings changed, so that their daemons start anew."""
    directory = Path(layout(lab).directory)
    user_key = directory / "ssh" / "key"
    _make_key(user_key)
    fresh_host_keys = {member.name for member in all_members if _make_key(member.host_key)}
    write(directory / "ssh" / "authorized_keys", _public(user_key) + "\n")
    write(directory / "ssh" / "known_hosts", "".join(f"{m.ssh.address} {_public(m.host_key)}\n" for m in all_members))
    return frozenset(fresh_host_keys | {member.name for member in all_members if _write_member(lab, member)})


def _make_key(path: Path) -> bool:
    """Make a key pair unless both halves are there; whether it was made."""
    public = path.with_suffix(".pub")
    if path.exists() and public.exists():
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    public.unlink(missing_ok=True)
    run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "labctl", "-f", str(path)],
        what=f"Making the SSH key {path}",
    )
    return True


def _public(key: Path) -> str:
    """Type and content of a public key, without its comment."""
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


def _write_member(lab: Lab, member: Member) -> bool:
    root = member.directory
    for folder in ("stage", "home"):
        (root / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    files = {
        root / "etc" / "hosts": _hosts(lab, member),
        root / "etc" / "passwd": passwd(Path("/etc/passwd").read_text(), root / "home"),
        root / "etc" / "shadow": "root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n",
        root / "ssh" / "sshd_config": _sshd_config(member),
    }
    if member.is_host:
        for folder in LIBVIRT_FOLDERS:
            (root / "libvirt" / folder).mkdir(mode=0o755, parents=True, exist_ok=True)
        member.cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        files[root / "libvirt" / "etc" / "libvirtd.conf"] = _libvirtd_conf(member)
        files[root / "libvirt" / "etc" / "qemu.conf"] = _qemu_conf(str(lab.hosts[member.name].migration_address))
    readable = {"hosts", "passwd"}
    written = [write(path, text, mode=0o644 if path.name in readable else 0o600) for path, text in files.items()]
    return any(written)


def _hosts(lab: Lab, member: Member) -> str:
    """Names of the members, so that no name is looked up outside the lab."""
    lines = ["127.0.0.1 localhost"]
    addresses = {name: host.address for name, host in lab.hosts.items()}
    addresses |= {name: machine.address for name, machine in lab.machines.items()}
    for name, address in addresses.items():
        if address is not None:
            own = f" {member.hostname}" if name == member.name else ""
            lines.append(f"{address.ip} {name}{own}")
    return "\n".join(lines) + "\n"


def passwd(real: str, home: Path) -> str:
    """The users of this machine, but with a home of the lab's for root and a shell that reads no start-up files."""
    return "".join(
        f"root:x:0:0:root:{home}:/bin/sh\n" if line.startswith("root:") else line
        for line in real.splitlines(keepends=True)
    )


def _sshd_config(member: Member) -> str:
    """See sshd_config(5). Without PAM a locked root can't log in, hence the shadow file of the member's own."""
    lab_ssh = member.lab / "ssh"
    return f"""\
ListenAddress {member.ssh.address}:{member.ssh.port}
HostKey {member.host_key}
AuthorizedKeysFile {lab_ssh / "authorized_keys"}
PidFile none
AllowUsers root
PermitRootLogin prohibit-password
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
X11Forwarding no
PrintMotd no
PrintLastLog no
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
"""


def _libvirtd_conf(member: Member) -> str:
    """See libvirtd.conf. Migrations are managed by the client over Unix sockets, so it listens on no network."""
    host_uuid = uuid.uuid5(uuid.NAMESPACE_DNS, member.namespace)
    return f"""\
host_uuid = "{host_uuid}"
listen_tls = 0
listen_tcp = 0
unix_sock_group = "root"
unix_sock_rw_perms = "0700"
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "3:stderr"
"""


def _qemu_conf(migration_address: str) -> str:
    """See qemu.conf. No confinement by cgroups, labels or mounts: the network namespace is what separates hosts."""
    return f"""\
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
security_default_confined = 0
cgroup_controllers = [ ]
namespaces = [ ]
seccomp_sandbox = 0
stdio_handler = "file"
migration_address = "{migration_address}"
migration_host = "{migration_address}"
"""

"""Builds the probe guest's image, once, and finds it again.

Images lie in `<cache>/images/probe/<content id>/`; `current` there is a link to the newest, and `kernel` and `initrd`
are links through it, so that lab files can name them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import LabError
from workers.locallab.image import cpio, kernel, packages

COMMAND_LINE = " ".join(
    (
        "quiet",
        "loglevel=1",
        # A guest that panics ends instead of hanging: QEMU must be told not to reboot.
        "panic=-1",
        "net.ifnames=0",
        # A busy machine must not make the kernel distrust its timers.
        "tsc=reliable",
        "no_timer_check",
        # A faster boot; the package's description has the figures.
        "cryptomgr.notests",
        "rodata=off",
        "initcall_blacklist=init_kprobe_trace,tracer_init_tracefs",
    )
)
"""The kernel command line to which the words of `init.c` may be added."""

NIC_MODULES = ("virtio_net", "e1000", "e1000e", "8139cp", "vmxnet3", "igb")
"""Drivers of the network adapters that QEMU can give a guest."""

AGENT_MODULES = ("virtio_pci", "virtio_console")
"""Drivers of the guest agent's channel."""

OTHER_MODULES = ("virtio_rng",)
"""A source of random numbers, if the guest is given one: else SSH waits some seconds for the first."""

_BUSES = ("pci:", "virtio:")
_SOURCES = ("build.py", "cpio.py", "init.c", "kernel.py", "packages.py")
_HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class ProbeImage:
    """A small Linux that runs from memory."""

    kernel: Path
    """An uncompressed ELF file with a PVH entry."""
    initrd: Path
    command_line: str
    content_id: str
    """The same for the same bytes of kernel, initrd and command line."""
    manifest: Mapping[str, str]
    """What it was made of: packages by name with their versions, files of this machine by path with their SHA-256."""


def default_cache() -> Path:
    """Where labctl keeps what can be made again: `$XDG_CACHE_HOME/labctl`, by default `~/.cache/labctl`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "labctl"


def current(cache: Path) -> ProbeImage | None:
    """The image that was built last, or None; a matter of milliseconds. It may be of older packages or sources."""
    try:
        folder = (_images(cache) / "current").resolve(strict=True)
        description = json.loads((folder / "image.json").read_text())
    except FileNotFoundError:
        return None
    return ProbeImage(
        kernel=folder / "kernel",
        initrd=folder / "initrd",
        command_line=description["command_line"],
        content_id=folder.name,
        manifest=description["manifest"],
    )


def build(cache: Path, *, progress: Callable[[str], None], refresh: bool = False) -> ProbeImage:
    """The image for this machine's programs and the distribution's kernel, built if there is none yet.

    An image that was built before from the same sources and programs is taken without asking the network; `refresh`
    asks for the newest kernel package first. Raises `LabError` (`image-build`).
    """
    with _lock(cache):
        inputs = _local_inputs()
        found = current(cache)
        if found and not refresh and inputs.items() <= found.manifest.items():
            return found
        progress("Looking for the newest kernel package.")
        inputs |= packages.kernel_packages()
        if found and inputs == found.manifest:
            return found
        with tempfile.TemporaryDirectory(dir=_images(cache), prefix=".new-") as folder:
            image = _assemble(inputs, Path(folder), progress)
        _remove_old(cache, keep={one.content_id for one in (found, image) if one})
    progress(f"The probe guest's image is ready: {image.content_id}.")
    return image


def _assemble(inputs: Mapping[str, str], scratch: Path, progress: Callable[[str], None]) -> ProbeImage:
    kernel_names = {name: version for name, version in inputs.items() if name.startswith("linux-")}
    progress(f"Downloading and unpacking {', '.join(sorted(kernel_names))}.")
    unpacked = scratch / "kernel-packages"
    unpacked.mkdir()
    packages.unpack_kernel(kernel_names, unpacked)
    progress("Building the probe guest's image.")
    vmlinux = kernel.vmlinux(_only(unpacked, "boot/vmlinuz-*").read_bytes())
    initrd = cpio.archive(_file_system(unpacked, _compile_init(scratch)))
    content_id = hashlib.sha256(b"\0".join((vmlinux, initrd, COMMAND_LINE.encode()))).hexdigest()[:16]

    made = scratch / "image"
    made.mkdir()
    (made / "kernel").write_bytes(vmlinux)
    (made / "initrd").write_bytes(initrd)
    description = {"command_line": COMMAND_LINE, "manifest": dict(sorted(inputs.items()))}
    (made / "image.json").write_text(json.dumps(description, indent=2) + "\n")
    return _install(made, scratch.parent, content_id)


def _install(made: Path, images: Path, content_id: str) -> ProbeImage:
    target = images / content_id
    if target.exists():
        (made / "image.json").replace(target / "image.json")
    else:
        made.rename(target)
    _point(images / "current", content_id)
    _point(images / "kernel", "current/kernel")
    _point(images / "initrd", "current/initrd")
    image = current(images.parent.parent)
    assert image is not None
    return image


def _file_system(unpacked: Path, init: bytes) -> Mapping[str, cpio.Entry]:
    """All files of the guest. Programs come after busybox's links, so that they take their place."""
    entries: dict[str, cpio.Entry] = {
        "init": cpio.program(init),
        "dev/console": cpio.character_device(5, 1),
        **{path: cpio.directory() for path in ("proc", "sys", "run", "tmp", "var", "etc/dropbear")},
        "root": cpio.directory(mode=0o700),
        **{path: cpio.link("bin") for path in ("sbin",)},
        **{f"usr/{path}": cpio.link("../bin") for path in ("bin", "sbin")},
        "lib64": cpio.link("lib"),
        "var/run": cpio.link("../run"),
        "var/tmp": cpio.link("../tmp"),
        **{path: cpio.file(text.encode()) for path, text in _SETTINGS.items()},
    }
    programs = packages.find_programs()
    for applet in packages.busybox_applets(programs["busybox"]):
        entries[f"bin/{applet}"] = cpio.link("busybox")
    for name, path in programs.items():
        entries[f"bin/{name}"] = cpio.program(path.read_bytes())
        for guest_path, library in packages.libraries_of(path).items():
            entries[_without_lib64(guest_path)] = cpio.program(library.read_bytes())
    return {**entries, **_drivers(unpacked)}


_SETTINGS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/shadow": "root:*:::::::\n",
    "etc/group": "root:x:0:\ntty:x:5:\n",
    "etc/shells": "/bin/sh\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/profile": "export PATH=/bin:/sbin:/usr/bin:/usr/sbin\n",
}


def _drivers(unpacked: Path) -> Mapping[str, cpio.Entry]:
    """The modules, and the table of `init.c`: stage, pattern, modules in load order."""
    tree = next(folder for folder in (unpacked / "lib/modules", unpacked / "usr/lib/modules") if folder.is_dir())
    built_in = frozenset(
        kernel.module_name(Path(line)) for line in _only(tree, "*/modules.builtin").read_text().splitlines()
    )
    wanted = (*AGENT_MODULES, *NIC_MODULES, *OTHER_MODULES)
    modules = kernel.modules_with_dependencies(tree, wanted, built_in=built_in)
    lines = [
        " ".join(("agent" if name in AGENT_MODULES else "other", alias, *kernel.load_order(name, modules)))
        for name in wanted
        if name in modules
        for alias in modules[name].aliases
        if alias.startswith(_BUSES)
    ]
    return {
        "lib/drivers": cpio.file("".join(f"{line}\n" for line in lines).encode()),
        **{f"lib/modules/{name}.ko": cpio.file(module.content) for name, module in modules.items()},
    }


def _compile_init(scratch: Path) -> bytes:
    output = scratch / "init"
    argv = ("gcc", "-Os", "-static", "-s", "-Wall", "-Wl,--build-id=none", "-o", str(output), "init.c")
    try:
        done = subprocess.run(argv, cwd=_HERE, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise _no_compiler("gcc is not installed.") from None
    if done.returncode != 0:
        raise _no_compiler(done.stderr.strip()[-400:])
    return output.read_bytes()


def _no_compiler(why: str) -> LabError:
    return LabError(
        "The first process of the probe guest could not be compiled.",
        kind="image-build",
        why=why,
        todo="Run `make setup`, or as root: apt-get install --no-install-recommends gcc libc6-dev linux-libc-dev",
    )


def _local_inputs() -> dict[str, str]:
    """What the image is made of on this machine; the same inputs give the same image."""
    programs = packages.find_programs()
    files = {
        path.resolve() for program in programs.values() for path in (program, *packages.libraries_of(program).values())
    }
    return {
        "sources": _sha256(*(_HERE / name for name in _SOURCES)),
        **packages.versions(sorted({*packages.PROGRAMS.values(), "gcc", "libc6-dev"})),
        **{str(path): _sha256(path) for path in sorted(files)},
    }


def _sha256(*paths: Path) -> str:
    total = hashlib.sha256()
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _remove_old(cache: Path, *, keep: Set[str]) -> None:
    """Remove all images but these, and what builders that were killed have left.

    The image before the newest is kept: a guest that was started from it may still have to be migrated.
    """
    for folder in _images(cache).iterdir():
        if folder.is_dir() and not folder.is_symlink() and folder.name not in keep:
            shutil.rmtree(folder, ignore_errors=True)


def _images(cache: Path) -> Path:
    return cache / "images" / "probe"


@contextmanager
def _lock(cache: Path) -> Iterator[None]:
    """Only one builder at a time, of all processes; the lock ends with its process."""
    _images(cache).mkdir(parents=True, exist_ok=True)
    with (_images(cache) / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _point(link: Path, target: str) -> None:
    fresh = link.with_name(f".{link.name}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise LabError(
            f"Expected one {pattern} in the kernel package, found {len(found)}.",
            kind="image-build",
            why="The distribution's kernel package does not look as expected.",
            todo="Use Debian 12 or later, or Ubuntu 22.04 or later.",
        )
    return found[0]


def _without_lib64(path: str) -> str:
    """Where to put a library: /lib64, /usr/lib and the like are all links to /lib in the guest."""
    return path.removeprefix("/").removeprefix("usr/").replace("lib64/", "lib/", 1)

"""Where the image's parts come from: the kernel out of its package, programs and their libraries from this machine."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from labctl.errors import LabError

PROGRAMS: Mapping[str, str] = {
    "busybox": "busybox-static",
    "date": "coreutils",
    "dropbear": "dropbear-bin",
    "dropbearkey": "dropbear-bin",
    "ethtool": "ethtool",
    "iperf": "iperf",
    "iperf3": "iperf3",
    "qemu-ga": "qemu-guest-agent",
}
"""Programs of the image and the packages that hold them. GNU date is there because busybox's knows no nanoseconds."""

KERNEL_PACKAGES = ("linux-image-amd64", "linux-image-generic")
"""The packages that depend on the newest kernel: of Debian and of Ubuntu."""

_KERNEL_PART = re.compile(r"linux-(image|modules|modules-extra)-\d")
_SEARCH_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_LIBRARY = re.compile(r"(?:(?P<name>\S+) => )?(?P<path>/\S+) \(0x")


def find_programs() -> Mapping[str, Path]:
    """The file of each program. Raises `LabError` (`image-build`) naming all packages that are missing."""
    found = {name: path for name in PROGRAMS if (path := _which(name))}
    missing = sorted({PROGRAMS[name] for name in PROGRAMS if name not in found})
    if missing:
        raise LabError(
            f"Programs of the probe guest are not installed: {', '.join(sorted(set(PROGRAMS) - set(found)))}.",
            kind="image-build",
            why="The image is built from this machine's packages.",
            todo=f"Run `make setup`, or as root: apt-get install --no-install-recommends {' '.join(missing)}",
        )
    return found


def libraries_of(program: Path) -> Mapping[str, Path]:
    """The shared libraries that a program is linked with, the loader among them, by the path to have in the guest."""
    done = _run(("ldd", str(program)), check=False)
    libraries: dict[str, Path] = {}
    for match in map(_LIBRARY.search, done.splitlines()):
        if match:
            path = Path(match["path"])
            # The loader looks a plain name up in its default directories; a path is taken as it is.
            guest_path = f"/lib/{match['name']}" if match["name"] and "/" not in match["name"] else str(path)
            libraries[guest_path] = path.resolve()
    return libraries


def busybox_applets(busybox: Path) -> tuple[str, ...]:
    """The names of busybox's commands, itself left out."""
    return tuple(name for name in _run((str(busybox), "--list")).split() if name != "busybox")


def versions(packages: Sequence[str]) -> Mapping[str, str]:
    """The installed versions of packages; those not installed from packages are left out."""
    listed = _run(("dpkg-query", "--show", "--showformat=${Package}\t${Version}\n", *packages), check=False)
    return dict(line.split("\t", 1) for line in listed.splitlines() if "\t" in line)


def kernel_packages() -> Mapping[str, str]:
    """The packages that hold the distribution's newest kernel and its modules, with their versions.

    Raises `LabError` (`image-build`) when apt knows none.
    """
    packages = _kernel_packages()
    if not packages and os.geteuid() == 0:
        _run(("apt-get", "update", "-qq"), check=False)
        packages = _kernel_packages()
    if not packages:
        raise LabError(
            f"apt knows no kernel package (looked for {' and '.join(KERNEL_PACKAGES)}).",
            kind="image-build",
            why="The probe guest runs the distribution's own kernel.",
            todo="Run `apt-get update` as root, then `make setup`; it needs Debian or Ubuntu on amd64.",
        )
    return packages


def unpack_kernel(packages: Mapping[str, str], folder: Path) -> None:
    """Download packages and unpack them below `folder`; nothing is installed.

    Raises `LabError` (`image-build`) when they can't be downloaded.
    """
    downloads = folder / "download"
    downloads.mkdir()
    wanted = [f"{name}={version}" for name, version in sorted(packages.items())]
    _run(("apt-get", "-o", "APT::Sandbox::User=root", "-qq", "download", *wanted), cwd=downloads)
    for package in sorted(downloads.glob("*.deb")):
        _run(("dpkg-deb", "--extract", str(package), str(folder)))


def _kernel_packages() -> dict[str, str]:
    waiting, seen, parts = list(KERNEL_PACKAGES), set[str](), dict[str, str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        fields = _apt_fields(name)
        if not fields:
            continue
        if name not in KERNEL_PACKAGES:
            parts[name] = fields["Version"]
        depends = (part.split("|")[0].split("(")[0].strip() for part in fields.get("Depends", "").split(","))
        waiting += [needed for needed in depends if _KERNEL_PART.match(needed)]
    return parts


def _apt_fields(package: str) -> Mapping[str, str]:
    shown = _run(("apt-cache", "show", "--no-all-versions", package), check=False)
    lines = (line.partition(": ") for line in shown.split("\n\n")[0].splitlines() if not line.startswith(" "))
    return {key: value for key, _, value in lines}


def _which(name: str) -> Path | None:
    candidates = (Path(folder) / name for folder in _SEARCH_PATH)
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def _run(argv: Sequence[str], *, check: bool = True, cwd: Path | None = None) -> str:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError(
            f"The program {argv[0]} is missing.",
            kind="image-build",
            why="The probe guest is built from a Debian or Ubuntu machine's packages.",
            todo="Run `make setup` on Debian or Ubuntu.",
        ) from None
    if check and done.returncode != 0:
        raise LabError(
            f"{' '.join(argv[:4])} ... failed with exit code {done.returncode}.",
            kind="image-build",
            why=(done.stderr or done.stdout).strip()[-400:],
            todo="Check the network and run `apt-get update` as root, then `make setup`.",
        )
    return done.stdout

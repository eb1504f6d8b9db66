"""Programs and libraries of this machine, and what apt says of kernels."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from labctl.errors import LabError
from workers.locallab.image import packages

DEBIAN = """Package: linux-image-amd64
Version: 6.1.192-3
Depends: linux-image-6.1.0-57-amd64 (= 6.1.192-3)
Description: Linux for 64-bit PCs
 Depends: not a field

Package: linux-image-amd64
Version: 6.1.1-1
Depends: linux-image-6.1.0-1-amd64
"""
UBUNTU = {
    "linux-image-generic": (
        "Version: 6.8.0.90.1\n"
        "Depends: linux-image-6.8.0-90-generic, linux-modules-extra-6.8.0-90-generic, linux-firmware, intel-microcode"
    ),
    "linux-image-6.8.0-90-generic": (
        "Version: 6.8.0-90.91\nDepends: kmod, linux-base (>= 4.5), linux-modules-6.8.0-90-generic"
    ),
    "linux-modules-6.8.0-90-generic": "Version: 6.8.0-90.91",
    "linux-modules-extra-6.8.0-90-generic": (
        "Version: 6.8.0-90.91\n"
        "Depends: linux-image-6.8.0-90-generic | linux-image-unsigned-6.8.0-90-generic, wireless-regdb"
    ),
}


def answer_as_apt(monkeypatch: pytest.MonkeyPatch, shown: Mapping[str, str]) -> None:
    def run(argv: Sequence[str], *, check: bool = True) -> str:
        return shown.get(argv[-1], "") if argv[0] == "apt-cache" else ""

    monkeypatch.setattr(packages, "_run", run)


def test_on_debian_the_kernel_is_what_the_newest_meta_package_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = "Package: linux-image-6.1.0-57-amd64\nVersion: 6.1.192-3\nDepends: kmod, linux-base (>= 4.3~)"
    answer_as_apt(monkeypatch, {"linux-image-amd64": DEBIAN, "linux-image-6.1.0-57-amd64": kernel})
    assert packages.kernel_packages() == {"linux-image-6.1.0-57-amd64": "6.1.192-3"}


def test_on_ubuntu_the_modules_are_packages_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_as_apt(monkeypatch, UBUNTU)
    assert packages.kernel_packages() == {
        "linux-image-6.8.0-90-generic": "6.8.0-90.91",
        "linux-modules-6.8.0-90-generic": "6.8.0-90.91",
        "linux-modules-extra-6.8.0-90-generic": "6.8.0-90.91",
    }


def test_apt_that_knows_no_kernel_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_as_apt(monkeypatch, {})
    with pytest.raises(LabError, match="linux-image-amd64 and linux-image-generic") as caught:
        packages.kernel_packages()
    assert caught.value.kind == "image-build"
    assert "apt-get update" in caught.value.todo


def test_a_machine_without_apt_is_an_error_that_names_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LabError, match="apt-cache is missing") as caught:
        packages.kernel_packages()
    assert caught.value.kind == "image-build"


def test_all_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = tmp_path / "busybox"
    there.write_text("")
    there.chmod(0o755)
    monkeypatch.setattr(packages, "_SEARCH_PATH", (str(tmp_path),))
    with pytest.raises(LabError) as caught:
        packages.find_programs()
    assert caught.value.kind == "image-build"
    assert "iperf3" in caught.value.what
    assert "busybox" not in caught.value.what
    assert caught.value.todo.endswith("coreutils dropbear-bin ethtool iperf iperf3 qemu-guest-agent")


def test_libraries_are_found_with_the_loader_and_put_where_the_guest_looks() -> None:
    libraries = packages.libraries_of(packages.find_programs()["iperf3"])
    assert "/lib/libc.so.6" in libraries
    assert any(Path(path).name.startswith("ld-linux") for path in libraries)
    assert all(file.is_file() and not file.is_symlink() for file in libraries.values())


def test_a_static_program_has_no_libraries() -> None:
    assert packages.libraries_of(packages.find_programs()["busybox"]) == {}


def test_busybox_brings_the_commands_that_are_used_in_guests() -> None:
    applets = packages.busybox_applets(packages.find_programs()["busybox"])
    needed = (
        "sh cat sleep kill setsid timeout mkdir rm ls grep printf stat wc head tail dd base64 sha256sum ip ping netstat"
    )
    assert {*needed.split(), "ps", "uname", "sysctl"} <= set(applets)
    assert "busybox" not in applets


def test_versions_are_those_of_installed_packages() -> None:
    versions = packages.versions(["iperf3", "no-such-package-anywhere"])
    assert list(versions) == ["iperf3"]
    assert versions["iperf3"][0].isdigit()

"""The image as a whole: built from real packages, found again, the same for the same packages."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from labctl.errors import LabError
from workers.locallab.image import ProbeImage, build, current, default_cache, packages

pytestmark = pytest.mark.xdist_group("image-build")


def no_progress(text: str) -> None:
    """Nobody is watching."""


@pytest.fixture(scope="module")
def fresh_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache into which two processes have built at the same time, in which an older image lay."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "images/probe/0123456789abcdef").mkdir(parents=True)
    argv = (sys.executable, "-m", "workers.locallab.image", "--cache", str(cache))
    builders = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [builder.communicate(timeout=240)[0] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert {line for text in said for line in text.splitlines() if line.startswith("content id")} == {
        f"content id    {(cache / 'images/probe/current').readlink()}"
    }
    return cache


def present(cache: Path) -> ProbeImage:
    image = current(cache)
    assert image is not None
    return image


def test_there_is_none_before_the_first_build(tmp_path: Path) -> None:
    assert current(tmp_path) is None


def test_the_cache_follows_the_users_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "labctl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "labctl"


@pytest.mark.lab
def test_two_builders_at_once_leave_one_image_and_nothing_else(fresh_cache: Path) -> None:
    image = present(fresh_cache)
    left = {path.name for path in (fresh_cache / "images/probe").iterdir()}
    assert left == {image.content_id, "current", "kernel", "initrd", "lock"}


@pytest.mark.lab
def test_lab_files_can_name_the_newest_image(fresh_cache: Path) -> None:
    image = present(fresh_cache)
    assert (fresh_cache / "images/probe/kernel").resolve() == image.kernel
    assert (fresh_cache / "images/probe/initrd").resolve() == image.initrd
    assert image.kernel.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.lab
def test_the_same_packages_give_the_same_bytes(fresh_cache: Path, tmp_path: Path) -> None:
    first, second = present(fresh_cache), build(tmp_path, progress=no_progress)
    assert second.kernel != first.kernel
    assert second.kernel.read_bytes() == first.kernel.read_bytes()
    assert second.initrd.read_bytes() == first.initrd.read_bytes()
    assert (second.content_id, second.command_line, second.manifest) == (
        first.content_id,
        first.command_line,
        first.manifest,
    )


@pytest.mark.lab
def test_an_image_that_is_there_needs_no_apt(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> NoReturn:
        pytest.fail("apt was asked")

    monkeypatch.setattr(packages, "kernel_packages", refuse)
    assert build(fresh_cache, progress=no_progress) == present(fresh_cache)


@pytest.mark.lab
def test_other_programs_make_the_image_stale(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class AptWasAskedError(Exception):
        pass

    def refuse() -> NoReturn:
        raise AptWasAskedError

    versions = packages.versions
    monkeypatch.setattr(packages, "kernel_packages", refuse)
    monkeypatch.setattr(packages, "versions", lambda names: {**versions(names), "iperf3": "99"})
    with pytest.raises(AptWasAskedError):
        build(fresh_cache, progress=no_progress)
    assert present(fresh_cache).kernel.exists()


@pytest.mark.lab
def test_the_manifest_names_kernel_and_tools_with_their_versions(fresh_cache: Path) -> None:
    image = present(fresh_cache)
    assert any(name.startswith("linux-image-") for name in image.manifest)
    assert {"iperf3", "iperf", "qemu-guest-agent", "dropbear-bin", "busybox-static"} <= set(image.manifest)
    assert json.loads((image.kernel.parent / "image.json").read_text())["manifest"] == image.manifest


@pytest.mark.lab
def test_a_failed_download_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "kernel_packages", lambda: {"linux-image-0.0-none": "0"})
    with pytest.raises(LabError) as caught:
        build(tmp_path, progress=no_progress)
    assert caught.value.kind == "image-build"
    assert "linux-image-0.0-none" in caught.value.why
    assert {path.name for path in (tmp_path / "images/probe").iterdir()} == {"lock"}

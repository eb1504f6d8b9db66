"""What is taken out of a kernel package: the kernel and its modules."""

import bz2
import gzip
import lzma
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from labctl.errors import LabError
from workers.locallab.image import kernel

PLAIN = b"\x7fELF" + bytes(range(256)) * 300
SIZE_BEHIND_STREAM = struct.pack("<I", len(PLAIN))
COMPRESSORS = {
    "gzip": gzip.compress,
    "xz": lambda data: lzma.compress(data, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32),
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),
    "bzip2": bz2.compress,
    "zstd": lambda data: subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout,
    "lz4": lambda data: subprocess.run(["lz4", "-lqc"], input=data, capture_output=True, check=True).stdout,
    "nothing": bytes,
}


def bzimage(payload: bytes, *, setup_sectors: int = 4, offset: int = 100) -> bytes:
    head = bytearray((setup_sectors + 1) * 512)
    head[0x1F1] = setup_sectors
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", head, 0x248, offset, len(payload))
    return bytes(head) + bytes(offset) + payload + b"code that follows"


@pytest.mark.parametrize("name", COMPRESSORS)
def test_the_kernel_is_found_in_a_bzimage_however_it_is_compressed(name: str) -> None:
    if name in ("zstd", "lz4") and not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    payload = COMPRESSORS[name](PLAIN) + (b"" if name in ("gzip", "nothing") else SIZE_BEHIND_STREAM)
    assert kernel.vmlinux(bzimage(payload)) == PLAIN


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(bytes(4096), id="no bzImage"),
        pytest.param(bzimage(gzip.compress(b"no ELF file")), id="no ELF file in it"),
        pytest.param(bzimage(gzip.compress(PLAIN[:-1]) + SIZE_BEHIND_STREAM), id="shorter than it says"),
    ],
)
def test_what_is_no_kernel_is_refused(image: bytes) -> None:
    with pytest.raises(LabError) as caught:
        kernel.vmlinux(image)
    assert caught.value.kind == "image-build"


@pytest.mark.parametrize("program", ["zstd", "lz4"])
def test_a_missing_decompressor_is_named(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    magic = {"zstd": b"\x28\xb5\x2f\xfd", "lz4": b"\x02\x21\x4c\x18"}[program]
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LabError, match=f"{program} is missing") as caught:
        kernel.decompress(magic + b"...")
    assert caught.value.kind == "image-build"
    assert "make setup" in caught.value.todo


def make_module(folder: Path, name: str, *information: str) -> Path:
    """A real object file with the section that describes a module."""
    text = "".join(f"{line}\\0" for line in information)
    source = f'const char info[] __attribute__((section(".modinfo"), used)) = "{text}"; int {name};\n'
    path = folder / f"{name.replace('_', '-')}.ko"
    subprocess.run(["gcc", "-x", "c", "-c", "-", "-o", str(path)], input=source.encode(), check=True)
    return path


def sign(path: Path, signature: bytes) -> None:
    information = bytes(8) + struct.pack(">I", len(signature))
    path.write_bytes(path.read_bytes() + signature + information + b"~Module signature appended~\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    make_module(tmp_path, "net_card", "depends=net-helper,bus_core,pci_core", "alias=pci:v00001234d*", "alias=net-card")
    make_module(tmp_path, "net_helper", "depends=bus_core")
    make_module(tmp_path, "bus_core", "license=GPL", "depends=")
    make_module(tmp_path, "unrelated", "depends=")
    return tmp_path


def test_a_module_says_what_it_drives_and_needs(tree: Path) -> None:
    module = kernel.read_module(tree / "net-card.ko")
    assert module.name == "net_card"
    assert module.depends == ("net_helper", "bus_core", "pci_core")
    assert module.aliases == ("pci:v00001234d*", "net-card")


def test_a_signature_is_taken_off_and_nothing_else(tree: Path) -> None:
    path = tree / "net-card.ko"
    unsigned = path.read_bytes()
    sign(path, b"s" * 397)
    assert path.read_bytes() != unsigned
    assert kernel.read_module(path).content == unsigned
    assert kernel.without_signature(unsigned) == unsigned


@pytest.mark.parametrize(("suffix", "name"), [(".xz", "xz"), (".gz", "gzip"), (".zst", "zstd")])
def test_modules_may_be_compressed(tree: Path, suffix: str, name: str) -> None:
    plain = tree / "net-helper.ko"
    content = plain.read_bytes()
    packed = tree / f"net-helper.ko{suffix}"
    packed.write_bytes(COMPRESSORS[name](content))
    plain.unlink()
    module = kernel.read_module(packed)
    assert (module.name, module.content, module.depends) == ("net_helper", content, ("bus_core",))


def test_dependencies_come_first_and_only_what_is_needed_comes_at_all(tree: Path) -> None:
    modules = kernel.modules_with_dependencies(tree, ("net_card",), built_in=frozenset({"pci_core"}))
    assert set(modules) == {"net_card", "net_helper", "bus_core"}
    assert kernel.load_order("net_card", modules) == ("bus_core", "net_helper", "net_card")


def test_a_module_that_is_nowhere_is_named(tree: Path) -> None:
    with pytest.raises(LabError, match="pci_core") as caught:
        kernel.modules_with_dependencies(tree, ("net_card",), built_in=frozenset())
    assert caught.value.kind == "image-build"

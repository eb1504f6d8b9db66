"""What is taken out of the distribution's kernel package: the kernel itself and its modules."""

from __future__ import annotations

import bz2
import lzma
import struct
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import LabError

# Offsets in the boot header of a bzImage: the kernel's Documentation/arch/x86/boot.rst, protocol 2.08 and later.
_SETUP_SECTORS = 0x1F1
_HEADER_MAGIC = 0x202
_PAYLOAD_OFFSET = 0x248
_PAYLOAD_LENGTH = 0x24C
_SECTOR = 512

_ELF_MAGIC = b"\x7fELF"
_SIGNATURE_MAGIC = b"~Module signature appended~\n"
_SIGNATURE_INFO = struct.Struct(">8xI")  # include/linux/module_signature.h: struct module_signature, 12 bytes


@dataclass(frozen=True, kw_only=True)
class Module:
    """A kernel module and what its own description (`.modinfo`) says."""

    name: str
    content: bytes
    """The ELF object, uncompressed and without its signature."""
    depends: tuple[str, ...]
    aliases: tuple[str, ...]
    """Patterns of the devices that it drives."""


def vmlinux(image: bytes) -> bytes:
    """The kernel as an uncompressed ELF file out of a bzImage, so that QEMU can start it through its PVH entry.

    Raises `LabError` (`image-build`) when the image is no bzImage or compressed in an unknown way.
    """
    if image[_HEADER_MAGIC : _HEADER_MAGIC + 4] != b"HdrS":
        raise _unusable("The kernel image is not a bzImage.")
    offset, length = struct.unpack_from("<II", image, _PAYLOAD_OFFSET)
    start = (image[_SETUP_SECTORS] + 1) * _SECTOR + offset
    payload = image[start : start + length]
    kernel = decompress(payload)
    if not kernel.startswith(_ELF_MAGIC):
        raise _unusable("The payload of the kernel image is not an ELF file.")
    # The kernel's build puts the size behind the compressed stream, least significant byte first.
    if kernel is not payload and struct.unpack("<I", payload[-4:])[0] != len(kernel):
        raise _unusable("The payload of the kernel image is damaged.")
    return kernel


def decompress(data: bytes) -> bytes:
    """The content of compressed data by its magic number; data that isn't compressed is returned as it is.

    Bytes after the end of the compressed stream are ignored.
    Raises `LabError` (`image-build`) naming a program that is missing for it.
    """
    if data.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(data)
    if data.startswith(b"\x5d\0\0"):
        return lzma.LZMADecompressor(format=lzma.FORMAT_ALONE).decompress(data)
    if data.startswith(b"\x1f\x8b\x08"):
        return zlib.decompressobj(wbits=31).decompress(data)
    if data.startswith(b"BZh"):
        return bz2.BZ2Decompressor().decompress(data)
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        return _filter(("zstd", "--decompress", "--stdout", "--quiet"), data)
    if data.startswith(b"\x02\x21\x4c\x18"):
        return _filter(("lz4", "--decompress", "--stdout", "--quiet"), data)
    return data


def modules_with_dependencies(tree: Path, names: tuple[str, ...], *, built_in: frozenset[str]) -> Mapping[str, Module]:
    """The named modules and all that they depend on, in an order in which they can be loaded.

    `tree` holds the modules' files anywhere below it. Raises `LabError` (`image-build`) for a module that is neither
    there nor built into the kernel.
    """
    files = {module_name(path): path for path in sorted(tree.rglob("*.ko*"))}
    found: dict[str, Module] = {}

    def add(name: str) -> None:
        if name in found or name in built_in:
            return
        if name not in files:
            raise _unusable(f"The kernel package has no module {name}.")
        module = read_module(files[name])
        for needed in module.depends:
            add(needed)
        found[name] = module

    for name in names:
        add(name)
    return found


def load_order(module: str, modules: Mapping[str, Module]) -> tuple[str, ...]:
    """The module's dependencies that are no part of the kernel, and last the module itself."""
    order: dict[str, None] = {}
    for needed in modules[module].depends:
        if needed in modules:
            order |= dict.fromkeys(load_order(needed, modules))
    return (*order, module)


def module_name(path: Path) -> str:
    """The name by which others depend on the module in that file."""
    return path.name.split(".ko")[0].replace("-", "_")


def read_module(path: Path) -> Module:
    """Read a module's file, compressed or not."""
    content = without_signature(decompress(path.read_bytes()))
    information = list(_module_information(content))
    depends = next((value for key, value in information if key == "depends"), "")
    return Module(
        name=module_name(path),
        content=content,
        depends=tuple(name.replace("-", "_") for name in depends.split(",") if name),
        aliases=tuple(value for key, value in information if key == "alias"),
    )


def without_signature(module: bytes) -> bytes:
    """A module without the signature at its end: checking it costs more time in a guest than loading the module."""
    if not module.endswith(_SIGNATURE_MAGIC):
        return module
    end = len(module) - len(_SIGNATURE_MAGIC) - _SIGNATURE_INFO.size
    (length,) = _SIGNATURE_INFO.unpack_from(module, end)
    return module[: end - length]


def _module_information(module: bytes) -> Iterator[tuple[str, str]]:
    for entry in _elf_section(module, ".modinfo").split(b"\0"):
        key, _, value = entry.decode("utf-8", "replace").partition("=")
        yield key, value


def _elf_section(elf: bytes, wanted: str) -> bytes:
    """The content of a section of a 64-bit little-endian ELF file; empty when there is none of that name."""
    headers_at = struct.unpack_from("<Q", elf, 0x28)[0]
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, headers_at + size * index) for index in range(count)]
    names_at = headers[names_index][4]
    for name, _, _, _, offset, length in headers:
        start = names_at + name
        if elf[start : elf.index(b"\0", start)].decode() == wanted:
            return elf[offset : offset + length]
    return b""


def _filter(argv: tuple[str, ...], data: bytes) -> bytes:
    try:
        return subprocess.run(argv, input=data, capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise LabError(
            f"The program {argv[0]} is missing.",
            kind="image-build",
            why="The distribution's kernel is compressed with it.",
            todo=f"Run `make setup`, or install the package {argv[0]}.",
        ) from None
    except subprocess.CalledProcessError as error:
        # Trailing bytes behind the stream make the program fail after it has written everything.
        if error.stdout:
            return bytes(error.stdout)
        raise _unusable(
            f"{argv[0]} could not decompress the kernel: {error.stderr.decode(errors='replace')}"
        ) from error


def _unusable(what: str) -> LabError:
    return LabError(
        what,
        kind="image-build",
        why="The distribution's kernel package does not look as expected.",
        todo="Use Debian 12 or later, or Ubuntu 22.04 or later.",
    )

"""The program `vcsim`: the one on PATH if it has our extensions, else built from `vcsim/*.go` by the distribution's Go.

Built ones lie in `<cache>/vcsim/<digest of sources and compiler>/vcsim`. Nothing is fetched: govmomi is the package
`golang-github-vmware-govmomi-dev`, used in GOPATH mode.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.locallab.image import default_cache

SOURCES = Path(__file__).with_name("vcsim")
GOPATH = "/usr/share/gocode"
GOVMOMI = Path(GOPATH) / "src/github.com/vmware/govmomi/simulator"
PROTOCOL = "labctl-vcsim 1"
"""What a vcsim with our extensions prints for `-labctl` (`main.go`)."""

BUILD_SECONDS = 600.0
PACKAGES = "golang-go golang-github-vmware-govmomi-dev"


def vcsim_program() -> Path:
    """The program, built if need be, which takes a minute the first time and seconds after a change of its source."""
    on_path = shutil.which("vcsim")
    if on_path and _speaks_our_protocol(Path(on_path)):
        return Path(on_path)
    folder = default_cache() / "vcsim"
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        return _built(folder)


def _speaks_our_protocol(program: Path) -> bool:
    try:
        said = subprocess.run([program, "-labctl"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.stdout.strip() == PROTOCOL


def _built(folder: Path) -> Path:
    go = shutil.which("go")
    if go is None or not GOVMOMI.is_dir():
        raise RuntimeError(
            f"vcsim can't be built: Go or govmomi is missing. Run `make setup`, or apt-get install {PACKAGES}"
        )
    sources = sorted(SOURCES.glob("*.go"))
    environment = {
        **os.environ,
        "GO111MODULE": "off",
        "GOPATH": GOPATH,
        "GOCACHE": str(folder / "objects"),
        "GOFLAGS": "-trimpath",
        "CGO_ENABLED": "0",
    }
    version = subprocess.run([go, "version"], capture_output=True, check=True, timeout=60).stdout
    digest = hashlib.sha256(version + b"".join(path.read_bytes() for path in (*sources, GOVMOMI / "model.go")))
    program = folder / digest.hexdigest()[:16] / "vcsim"
    if not program.exists():
        _remove_old(folder)
        program.parent.mkdir(exist_ok=True)
        fresh = program.with_suffix(".new")
        argv = [go, "build", "-o", str(fresh), "."]
        done = subprocess.run(argv, cwd=SOURCES, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS)
        if done.returncode != 0:
            raise RuntimeError(f"vcsim could not be built:\n{done.stderr.strip()}")
        fresh.rename(program)
    return program


def _remove_old(folder: Path) -> None:
    """Remove programs of older sources, but not the compiled packages, which are what takes a minute."""
    for program in folder.glob("*/vcsim"):
        shutil.rmtree(program.parent)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One builder at a time, of all processes."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    print(vcsim_program())

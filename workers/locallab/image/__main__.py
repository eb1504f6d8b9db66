"""`python -m workers.locallab.image`: build the probe guest's image, or find it, and say where it is."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from labctl.errors import LabctlError
from workers.locallab.image import build, default_cache


def main() -> int:
    """Build and print; the exit code is that of the error, if any."""
    parser = argparse.ArgumentParser(prog="python -m workers.locallab.image", description=__doc__)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="default: %(default)s")
    parser.add_argument("--refresh", action="store_true", help="look whether there is a newer kernel package")
    arguments = parser.parse_args()
    started = time.monotonic()
    try:
        image = build(arguments.cache, progress=lambda text: print(text, file=sys.stderr), refresh=arguments.refresh)
    except LabctlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"kernel        {image.kernel}")
    print(f"initrd        {image.initrd}")
    print(f"command line  {image.command_line}")
    print(f"content id    {image.content_id}")
    print(f"seconds       {time.monotonic() - started:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

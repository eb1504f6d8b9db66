"""A stand-in of VMware Tools in a guest: what vmtoolsd does for guest operations, asked over a Unix socket.

One question per connection: a line of JSON, then as many bytes as its `size` says; the answer in the same form. Like
vmtoolsd it makes directories with mode 0700 and none that is there, starts programs by a shell with one line of arguments
and no output, takes files of the kernel for empty, and forgets what a program ended with when it is restarted itself.
Usage: python -c TEXT_OF_THIS_FILE SOCKET
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_started: dict[int, subprocess.Popen[bytes]] = {}


def main() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=[connection], daemon=True).start()


def serve(connection: socket.socket) -> None:
    with connection, connection.makefile("rwb") as stream:
        question = json.loads(stream.readline())
        content = stream.read(question["size"])
        try:
            answer, reply = answer_to(question, content)
        except OSError as error:
            answer, reply = {"error": error.strerror}, b""
        stream.write(json.dumps(answer | {"size": len(reply)}).encode() + b"\n" + reply)


def answer_to(question: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    path = Path(question["path"])
    match question["operation"]:
        case "make_directory":
            path.mkdir(mode=0o700)
        case "remove_directory":
            if path.exists():
                shutil.rmtree(path)
        case "put_file":
            path.write_bytes(content)
        case "get_file":
            if not path.exists():
                return {"value": None}, b""
            return {"value": True}, path.read_bytes() if path.stat().st_size else b""
        case "start":
            return {"value": start(question["path"], question["arguments"], question["directory"])}, b""
        case "lives":
            return {"value": question["pid"] in _started and _started[question["pid"]].poll() is None}, b""
    return {"value": None}, b""


def start(program: str, arguments: str, directory: str) -> int:
    line = f'"{program}" {arguments}'
    null = subprocess.DEVNULL
    process = subprocess.Popen(["/bin/sh", "-c", f"exec {line}"], stdin=null, stdout=null, stderr=null, cwd=directory)
    threading.Thread(target=process.wait, daemon=True).start()
    _started[process.pid] = process
    return process.pid


if __name__ == "__main__":
    os.umask(0o022)
    main()

"""The pipe to the simulator: lines of JSON both ways (`vcsim/link.go` is the other end)."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
END_SECONDS = 10.0


class Link:
    """A running simulator. It ends with its standard input, so also when this process is killed."""

    def __init__(
        self,
        program: Path,
        settings: Mapping[str, Any],
        *,
        log: Path,
        serve: Mapping[str, Callable[[Any], Any]],
    ) -> None:
        self._serve = serve
        self._log = log
        self._numbers = itertools.count(1)
        self._sending = threading.Lock()
        self._asked: dict[int, Future[Any]] = {}
        self._helpers = ThreadPoolExecutor(max_workers=16, thread_name_prefix="vcsim-world")
        self._is_ready: Future[Any] = Future()
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
            )
        self._reader = threading.Thread(target=self._read, name="vcsim-link", daemon=True)
        self._reader.start()
        self._send(settings)
        try:
            self.ready: Mapping[str, Any] = self._is_ready.result(START_SECONDS)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, do: str, value: Any = None) -> Any:
        """Have the simulator do something and return its answer. `RuntimeError` with what it says against it."""
        number, answer = next(self._numbers), Future[Any]()
        self._asked[number] = answer
        self._send({"id": number, "do": do, "with": value})
        return answer.result(ANSWER_SECONDS)

    def close(self) -> None:
        """End the simulator. What it said is repeated on stderr when it had ended by itself, or does not end well."""
        process = self._process
        assert process.stdin is not None
        with self._sending:
            process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join()
        self._helpers.shutdown()
        if process.returncode != 0:
            sys.stderr.write(f"vcsim ended with {process.returncode}. It said:\n{self._said()}\n")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                message = json.loads(line)
                if message.get("do") == "ready":
                    self._is_ready.set_result(message["with"])
                elif "do" in message:
                    self._helpers.submit(self._carry_out, message)
                else:
                    self._take(message)
        ended = RuntimeError(f"vcsim has ended. It said:\n{self._said()}")
        for waiting in (self._is_ready, *self._asked.values()):
            if not waiting.done():
                waiting.set_exception(ended)

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def _take(self, message: Mapping[str, Any]) -> None:
        answer = self._asked.pop(message["answer"])
        if message.get("error"):
            answer.set_exception(RuntimeError(message["error"]))
        else:
            answer.set_result(message.get("result"))

    def _carry_out(self, message: Mapping[str, Any]) -> None:
        answer: dict[str, Any] = {"answer": message["id"]}
        try:
            answer["result"] = self._serve[message["do"]](message["with"])
        except Exception as error:
            answer["error"] = repr(error)
        self._send(answer)

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._sending:
            if self._process.stdin.closed:
                return
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

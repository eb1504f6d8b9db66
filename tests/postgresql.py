"""A PostgreSQL of the tests' own: a cluster in a temporary directory, reached only by a unix socket in it."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from labctl.store import open_store

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "autovacuum": "off",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "logging_collector": "off",
}
_TEMPLATE = "template_labctl"


class Cluster:
    """A running PostgreSQL."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._numbers = itertools.count(1)

    def url(self, database: str) -> str:
        """The URL of one of its databases."""
        return f"postgresql://labctl@/{database}?host={self.directory}"

    def empty_database(self) -> str:
        """The URL of a new database with nothing in it."""
        return self._make("template0")

    def database(self) -> str:
        """The URL of a new database with the newest tables."""
        return self._make(_TEMPLATE)

    def make_template(self) -> None:
        """Make the database that others with the newest tables are copied from."""
        self.execute(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0")
        open_store(Path(), url=self.url(_TEMPLATE)).close()

    def execute(self, statement: str) -> None:
        """Do something in none of these databases."""
        with psycopg.connect(host=str(self.directory), user="labctl", dbname="postgres", autocommit=True) as connection:
            connection.execute(statement)

    def _make(self, template: str) -> str:
        name = f"labctl_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A cluster for as long as the block runs; it ends with the test process, however that ends."""
    with tempfile.TemporaryDirectory(prefix="labctl-postgresql-") as name:
        directory = Path(name)
        if os.geteuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
        data = directory / "data"
        subprocess.run(
            [*_as_postgres(), _program("initdb"), "-D", data, "-U", "labctl", "-A", "trust", "-E", "UTF8",
             "--locale", "C", "--no-sync"],
            check=True, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        settings = [word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")]
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [*_as_postgres(), _program("postgres"), "-D", data, "-k", directory, *settings],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip
        try:
            cluster = Cluster(directory)
            _wait_for(process, directory)
            cluster.make_template()
            yield cluster
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _as_postgres() -> list[str]:
    """PostgreSQL doesn't run as root. The signal ends it when this process has ended."""
    user = ["--reuid", "postgres", "--regid", "postgres", "--init-groups"] if os.geteuid() == 0 else []
    return ["setpriv", *user, "--pdeathsig", "INT"]


def _program(name: str) -> str:
    """Debian keeps the programs of the server out of the search path, in a directory for each version."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    program = str(found[-1]) if found else shutil.which(name)
    assert program is not None, f"{name} is not installed: make setup, or apt-get install postgresql"
    return program


def _wait_for(process: subprocess.Popen[bytes], directory: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            psycopg.connect(host=str(directory), user="labctl", dbname="postgres", connect_timeout=5).close()
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (directory / "log").read_text(errors="replace")
                raise AssertionError(f"PostgreSQL did not come up: {log}") from error
            time.sleep(0.05)
        else:
            return

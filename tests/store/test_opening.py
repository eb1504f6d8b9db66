"""Opening a store: cheap when it is known, and refused, with what to do, when it can't be ours or can't be used."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect

from labctl.errors import LabError, SpecError
from labctl.store import Store, open_store, sqlite_url
from labctl.store.database import Database
from labctl.store.engines import make_engine
from labctl.store.place import network_file_system, parse_url
from labctl.store.schema import NEWEST, REVISIONS
from tests.postgresql import Cluster
from tests.store.processes import at_once, opened
from tests.store.steps import submit

pytestmark = pytest.mark.usefixtures("real_stores")

TMPFS = 0x01021994


@contextmanager
def past_the_store(url: str) -> Iterator[Engine]:
    """The database itself."""
    engine = make_engine(parse_url(url))
    yield engine
    engine.dispose()


def execute(url: str, *statements: str) -> None:
    with past_the_store(url) as engine, engine.connect() as connection, connection.begin():
        for statement in statements:
            connection.exec_driver_sql(statement)


def tables(url: str) -> set[str]:
    with past_the_store(url) as engine:
        return set(inspect(engine).get_table_names())


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where no store is yet."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.empty_database()


def test_the_revisions_of_the_code_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", "labctl/store/migrations")
    scripts = ScriptDirectory.from_config(config)
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == REVISIONS
    assert scripts.get_heads() == [NEWEST]


def test_the_store_is_one_and_the_same_when_opened_again(store: Store, url: str) -> None:
    campaign = submit(store)
    again = opened(url)
    assert again.identity == store.identity
    assert again.newest_campaign() == campaign
    again.close()


def test_a_store_with_the_newest_tables_is_opened_without_the_machinery_of_migrations(store: Store, url: str) -> None:
    code = (
        "import sys, pathlib, labctl.store\n"
        "store = labctl.store.open_store(pathlib.Path(), url=sys.argv[1])\n"
        "sys.exit('alembic.command' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, url], check=True)


def _identity(url: str) -> str:
    store = opened(url)
    store.close()
    return store.identity


@pytest.mark.services
def test_processes_that_are_the_first_all_at_once_find_one_store(empty: str) -> None:
    assert len(set(at_once(_identity, [(empty,)] * 8))) == 1


def test_a_store_of_a_newer_labctl_is_refused(store: Store, url: str) -> None:
    submit(store)
    store.close()
    execute(
        url,
        "UPDATE alembic_version SET version_num = '0099'",
        "UPDATE store_info SET value = '99.1' WHERE key = 'labctl'",
        "ALTER TABLE runs ADD COLUMN something_new INTEGER",
    )
    with pytest.raises(LabError) as refusal:
        opened(url)
    assert refusal.value.kind == "store-newer"
    for word in ("0099", "labctl 99.1", NEWEST, "--store"):
        assert word in str(refusal.value)


@pytest.mark.parametrize("revision", [None, "4f1a2b3c4d5e", NEWEST])
def test_a_database_of_somebody_elses_is_refused_and_left_alone(empty: str, revision: str | None) -> None:
    execute(empty, "CREATE TABLE customers (id INTEGER)")
    if revision:
        execute(empty, "CREATE TABLE alembic_version (version_num VARCHAR(32))")
        execute(empty, f"INSERT INTO alembic_version VALUES ('{revision}')")
    before = tables(empty)
    with pytest.raises(LabError, match=r"not a store of labctl(.|\n)*customers"):
        opened(empty)
    assert tables(empty) == before


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labctl.sqlite").write_text("Dear diary, " * 500)
    with pytest.raises(LabError, match=r"can't be opened(.|\n)*not a database"):
        open_store(tmp_path)


def test_a_file_in_place_of_the_state_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(LabError, match=r"state/labctl.sqlite can't be opened(.|\n)*--state") as refusal:
        open_store(tmp_path / "state")
    assert refusal.value.kind == "store"


def test_a_missing_state_directory_is_made(tmp_path: Path) -> None:
    open_store(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b" / "labctl.sqlite").is_file()


@contextmanager
def small_disk(directory: Path, options: str = "size=1m") -> Iterator[Path]:
    """A file system of the test's own."""
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "labctl-test", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.mark.services
def test_a_state_directory_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m,ro") as disk, pytest.raises(LabError, match="can't be opened") as said:
        open_store(disk)
    assert "writeable" in said.value.todo


@pytest.mark.services
def test_a_store_that_became_read_only_is_said(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        open_store(disk).close()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(LabError, match=r"can't be opened|could not be written"):
            submit(open_store(disk))


@pytest.mark.services
def test_s3_a_full_state_directory_is_said(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        with pytest.raises(LabError, match="can't be opened"):
            open_store(disk)
        (disk / "filler").unlink()
        open_store(disk).close()


@pytest.mark.services
def test_s2_a_network_file_system_is_known_by_its_kind(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        assert network_file_system(disk) == ""
        assert network_file_system(disk, known={TMPFS: "NFS"}) == "NFS"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "is none"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("mysql://somebody@there/labctl", "kind mysql"),
    ],
)
def test_a_url_that_names_no_store_is_the_users_mistake(url: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        opened(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:geheim@/labctl?host=/nowhere",
        "postgres://me@/labctl?host=/nowhere&password=geheim",
        "postgresql+psycopg://me:geheim@localhost:1/labctl",
    ],
)
def test_a_server_that_is_not_there_is_said_and_no_password_is(url: str) -> None:
    with pytest.raises(LabError, match="can't be opened") as said:
        opened(url)
    assert "geheim" not in str(said.value)
    assert "server runs" in said.value.todo


def test_a_driver_that_is_not_installed_is_said() -> None:
    code = (
        "import sys, pathlib, labctl.store\n"
        "sys.modules['psycopg'] = None\n"
        "labctl.store.open_store(pathlib.Path(), url='postgresql://me@/labctl')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "labctl[postgres]" in ended.stderr


def test_c6_a_store_that_was_opened_before_a_fork_is_not_used_after_it(store: Store) -> None:
    child = os.fork()
    if not child:
        try:
            store.campaigns()
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.campaigns() == ()


def test_a_state_directory_named_relatively_is_one_store_for_processes_in_other_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = sqlite_url(Path("state"))
    first = open_store(Path("state"))
    monkeypatch.chdir("/")
    second = opened(url)
    assert second.identity == first.identity
    first.close()
    second.close()


def test_a_state_directory_may_have_any_name(tmp_path: Path) -> None:
    state = tmp_path / "a b?c#d%20e"
    open_store(state).close()
    assert (state / "labctl.sqlite").is_file()


def test_m19_who_reads_and_then_writes_is_alone_from_the_first_word_on(tmp_path: Path) -> None:
    """M19: otherwise SQLite refuses the write at once, whatever the timeout, when somebody wrote after the reading."""
    store = open_store(tmp_path)
    campaign = submit(store)
    read, wrote = "SELECT priority FROM campaigns", "UPDATE campaigns SET priority = priority + 1"
    plain = [sqlite3.connect(tmp_path / "labctl.sqlite", timeout=30, isolation_level=None) for _ in range(2)]
    plain[0].execute("BEGIN")
    plain[0].execute(read).fetchall()
    plain[1].execute(wrote)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        plain[0].execute(wrote)
    plain[0].rollback()

    database = Database(make_engine(parse_url(sqlite_url(tmp_path))))
    other = threading.Thread(target=store.set_priority, args=[campaign, 10])
    with database.writing() as db:
        (before,) = db.exec_driver_sql(read).scalars()
        other.start()
        other.join(0.3)
        assert other.is_alive(), "the other one waits for its turn"
        db.exec_driver_sql(wrote)
        assert list(db.exec_driver_sql(read).scalars()) == [before + 1]
    other.join(30)
    assert store.head(campaign).priority == 10
    database.close()
    store.close()
    for connection in plain:
        connection.close()

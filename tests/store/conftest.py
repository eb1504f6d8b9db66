"""Stores of tests: each test of this room runs on SQLite, and in the services layer on PostgreSQL too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.store import Store, open_store, sqlite_url
from tests.postgresql import Cluster, running_cluster
from tests.quick_stores import real_stores


@pytest.fixture(name="real_stores")
def _real_stores() -> Iterator[None]:
    """The test means the migrations themselves, or what the disk has."""
    with real_stores():
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL for the whole test run."""
    with running_cluster() as running:
        yield running


@pytest.fixture
def cluster_url(cluster: Cluster) -> str:
    """Where a store of the test's own on PostgreSQL is."""
    return cluster.database()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store of the test's own is."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.database()


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    """A store of the test's own, open."""
    opened = open_store(tmp_path, url=url)
    yield opened
    opened.close()

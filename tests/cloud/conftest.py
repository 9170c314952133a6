"""Emulators of AWS for the whole session.

Tests whose programs or emulators are missing are skipped with the reason, unless `--require-cloud` is given.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cloud.postgresql import Postgresql
from tests.cloud.programs import Emulator, ministack, moto, why_missing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-cloud", action="store_true", help="Fail where what these tests start cannot be had.")


@pytest.fixture(autouse=True)
def _has_what_it_needs(request: pytest.FixtureRequest) -> None:
    """`@pytest.mark.needs("named")`: programs by name, or `emulators`."""
    for marker in request.node.iter_markers("needs"):
        for what in marker.args:
            needs(what, request.config)


def needs(what: str, config: pytest.Config) -> None:
    reason = why_missing(what)
    if reason and config.getoption("--require-cloud"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def _running(emulator: Emulator) -> Iterator[Emulator]:
    emulator.begin()
    yield emulator
    emulator.kill()


@pytest.fixture(scope="session")
def running_ministack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    needs("emulators", request.config)
    yield from _running(ministack(tmp_path_factory.mktemp("ministack")))


@pytest.fixture(scope="session")
def running_moto(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    needs("emulators", request.config)
    yield from _running(moto(tmp_path_factory.mktemp("moto")))


@pytest.fixture(scope="session")
def running_postgresql(request: pytest.FixtureRequest) -> Iterator[Postgresql]:
    needs("pg_createcluster", request.config)
    server = Postgresql.made()
    yield server
    server.end()

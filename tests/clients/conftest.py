"""Fixtures for the JavaScript clients: Node's packages, and programs.

Tests whose tools are missing are skipped with the reason, unless `--require-clients` is given.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

MODULES = Path(__file__).parent / "javascript/node_modules"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-clients", action="store_true", help="Fail where a client that these tests run is missing."
    )


@pytest.fixture
def modules(request: pytest.FixtureRequest) -> Path:
    """Folder of Node's packages."""
    _need(request, None if (MODULES / "axe-core").is_dir() else "Node's packages are not here: run `make test-clients`")
    return MODULES


@pytest.fixture
def chromium(request: pytest.FixtureRequest) -> str:
    return _program(request, "chromium")


@pytest.fixture
def chromedriver(request: pytest.FixtureRequest) -> str:
    return _program(request, "chromedriver")


@pytest.fixture
def node(request: pytest.FixtureRequest) -> str:
    return _program(request, "node")


def _program(request: pytest.FixtureRequest, name: str) -> str:
    found = shutil.which(name)
    _need(request, None if found else f"{name} is not on this machine")
    return found or ""


def _need(request: pytest.FixtureRequest, reason: str | None) -> None:
    if reason is None:
        return
    if request.config.getoption("--require-clients"):
        pytest.fail(reason)
    pytest.skip(reason)

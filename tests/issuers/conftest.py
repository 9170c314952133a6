"""Fixtures for a real issuer: Node, and the provider's package.

Tests whose tools are missing are skipped with the reason, unless `--require-issuers` is given.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

PROVIDER = Path(__file__).parent / "oidc_provider"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-issuers", action="store_true", help="Fail where an issuer that these tests run is missing."
    )


@pytest.fixture
def node(request: pytest.FixtureRequest) -> str:
    """Path of Node, which can run the provider."""
    found = shutil.which("node")
    missing = None if found else "node is not on this machine"
    if missing is None and not (PROVIDER / "node_modules/oidc-provider").is_dir():
        missing = "the provider is not here: run `make test-issuers`"
    if missing is not None and request.config.getoption("--require-issuers"):
        pytest.fail(missing)
    if missing is not None:
        pytest.skip(missing)
    return found or ""

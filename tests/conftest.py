"""What every test shares: how Hypothesis runs, and the length of the soak.

Fixtures of one area live beside that area's tests.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("nightside", settings(), deadline=None, print_blob=True)
settings.load_profile("nightside")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-requests",
        type=int,
        default=600,
        help="requests of the soak; 18000 are an hour of a region's five a second",
    )

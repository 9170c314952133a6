"""What every test shares: how Hypothesis runs. Fixtures of one area live beside that area's tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("nightside", settings(), deadline=None, print_blob=True)
settings.load_profile("nightside")

"""Builds the package. With NIGHTSIDE_COMPILE=1 mypyc compiles the core's logic; otherwise all is plain Python.

Nothing else depends on which of the two it is: see docs/decisions/0004-a-compiled-core.md.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup

COMPILED = (
    "admission",
    "attempts",
    "bits",
    "first_token",
    "gateway_core",
    "hash_ring",
    "peers",
    "placement",
    "prefix_chain",
    "prefix_index",
    "replicas",
    "stored_responses",
    "timers",
)
"""Modules of the core that compute. Those that only hold values are made no faster by it."""


def extensions() -> list[Extension]:
    if os.environ.get("NIGHTSIDE_COMPILE") != "1":  # noqa: TID251 - what a build is told, it is told here
        return []
    from mypyc.build import mypycify  # noqa: PLC0415 - nobody else needs a compiler

    paths = [f"gateway/core/{name}.py" for name in COMPILED]
    return mypycify(paths, opt_level="3", debug_level="0", group_name="nightside")


setup(ext_modules=extensions())

"""Gateways decide as recorded, in a world of each kind and three scenarios, and no invariant of these worlds breaks;
`make digests` plays all of them.
"""

from __future__ import annotations

import json

import pytest

from tests.digests.run import RECORDED, digest_of, worlds

FEW = [
    *("few_large/nightside", "tenant_limits/nightside", "priced/chat"),
    pytest.param("skewed_day/nightside", marks=pytest.mark.nightly),
    *(name for name in worlds() if name.partition("/")[2] == "1"),
    *(pytest.param(name, marks=pytest.mark.nightly) for name in worlds() if name.partition("/")[2] in ("2", "3")),
]


@pytest.mark.parametrize("name", FEW)
def test_a_world_is_decided_as_it_was_recorded(name: str) -> None:
    assert digest_of(name) == json.loads(RECORDED.read_text())[name], (
        f"decisions have changed: compare `python -m tests.digests.run --lines {name}` of both versions; "
        "`make digests ARGS=--write` records a change that is meant, with its reason in CHANGELOG.md"
    )


def test_every_world_is_recorded_and_no_other() -> None:
    assert sorted(json.loads(RECORDED.read_text())) == sorted(worlds())

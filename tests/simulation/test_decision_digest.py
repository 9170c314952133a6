"""Gateways decide as recorded, in a world of each kind and a scenario, and no invariant of these worlds breaks; `make
nightly` plays more of them, and `make digests` all.
"""

from __future__ import annotations

import json

import pytest

from tests.digests.run import RECORDED, digest_of, worlds
from tests.support.nightly import first_of

SCENARIOS = ("few_large/nightside", "tenant_limits/nightside", "priced/chat", "skewed_day/nightside")
LARGE = ("controller/1", "pair/1")
SMALL = [name for name in worlds() if name.partition("/")[2] == "1" and name not in LARGE]
DRAWN = [name for name in worlds() if name.partition("/")[2] in ("2", "3")]


@pytest.mark.parametrize("name", first_of([*SMALL, *SCENARIOS, *LARGE, *DRAWN], kept=len(SMALL) + 1))
def test_a_world_is_decided_as_it_was_recorded(name: str) -> None:
    assert digest_of(name) == json.loads(RECORDED.read_text())[name], (
        f"decisions have changed: compare `python -m tests.digests.run --lines {name}` of both versions; "
        "`make digests ARGS=--write` records a change that is meant, with its reason in CHANGELOG.md"
    )


def test_every_world_is_recorded_and_no_other() -> None:
    assert sorted(json.loads(RECORDED.read_text())) == sorted(worlds())

"""Malformed HTTP against a gateway's real socket.

The cases are data: `tests/hostile/http_requests.py`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.hostile.http_requests import HTTP_CASES, HttpCase
from tests.support.hostile import Besieged, besieged, sent

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Besieged]:
    async with besieged(tmp_path_factory.mktemp("hostile")) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", HTTP_CASES, ids=lambda case: case.name)
async def test_it_is_answered_as_it_deserves_and_nobody_else_pays(at: Besieged, case: HttpCase) -> None:
    at.told.clear()
    asked, failures = at.engine.arrived.count, at.failures("replica")
    at.engine.raw_heads.clear()
    received = await sent(at.gateway, case.raw, closes=case.closes, leaves=case.leaves)
    assert tuple(map(int, _STATUS.findall(received))) == case.answers, received[:2000]
    assert at.engine.arrived.count - asked == case.asked
    assert at.failures("replica") == failures, "a client's doing counts against an engine"
    assert case.contains in received
    heads = b"\r\n".join(at.engine.raw_heads)
    assert case.at_engine in heads
    assert not case.not_at_engine or case.not_at_engine not in heads.lower()
    await at.goes_on()


def test_each_is_told_apart() -> None:
    assert len(HTTP_CASES) >= 60
    assert len({case.name for case in HTTP_CASES}) == len(HTTP_CASES)

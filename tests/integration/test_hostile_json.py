"""A gateway must decide from a body by the values that its engine reads there.

The cases are data: `tests/hostile/json_bodies.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pydantic
import pytest
import pytest_asyncio

from gateway.core.kernel.events import RequestArrived
from gateway.core.vocabulary import RequestProfile
from gateway.request.bodies import RESERVED_FIELDS
from gateway.request.driver import GatewaySubscriptions
from tests.fakes.engine import GOOD_ANSWER, GOOD_STREAM, Exchange, answer, stream
from tests.hostile.json_bodies import JSON_CASES, RESPONSES, JsonCase
from tests.support.hostile import Besieged, besieged, sent


class Understood(pydantic.BaseModel):
    """Members that matter to routing, with the types that vLLM and SGLang give them."""

    model_config = pydantic.ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = False
    max_tokens: int | None = None
    previous_response_id: str | None = None
    vllm_xargs: dict[str, Any] | None = None


def understood(body: bytes) -> Understood:
    """Parse a body as FastAPI's handlers do. Raises ValueError."""
    return Understood.model_validate(json.loads(body))


async def read_as_engines_do(exchange: Exchange) -> None:
    try:
        understood(exchange.received.body)
    except (ValueError, RecursionError):
        await answer(422, b'{"error": {"message": "unreadable", "type": "x", "param": null, "code": 422}}')(exchange)
    else:
        await answer(200, GOOD_ANSWER)(exchange)


class Decisions:
    """Records the profile by which each request was decided."""

    def __init__(self) -> None:
        self.profiles: list[RequestProfile] = []
        self.subscriptions: GatewaySubscriptions = {
            RequestArrived: lambda _, event: self.profiles.append(event.profile)
        }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Besieged]:
    async with besieged(tmp_path_factory.mktemp("hostile")) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", JSON_CASES, ids=lambda case: case.name)
async def test_engine_and_gateway_read_the_same(at: Besieged, case: JsonCase) -> None:
    at.told.clear()
    at.engine.received.clear()
    at.engine.plays(read_as_engines_do)
    decisions, failures = Decisions(), at.failures("replica")
    watching, at.gateway.driver.observers = at.gateway.driver.observers, (decisions,)
    head = f"POST {case.path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(case.body)}\r\n\r\n"
    try:
        received = await sent(at.gateway, head.encode() + case.body)
        at.gateway.driver.tell_observers()
    finally:
        at.gateway.driver.observers = watching
    assert int(received[9:12]) == case.status, received[-500:]
    assert at.failures("replica") == failures, "a client's doing counts against an engine"
    assert [each.body for each in at.engine.received] == ([case.body] if case.status in (200, 422) else [])
    if case.status == 200:
        (decided,) = decisions.profiles
        check_agreement(decided, case)
    at.engine.plays(stream(*GOOD_STREAM))
    await at.goes_on()


def check_agreement(decided: RequestProfile, case: JsonCase) -> None:
    there = understood(case.body)
    assert decided.model == there.model
    assert decided.stream == bool(there.stream)
    limit = there.max_tokens
    assert decided.output_tokens_max == (limit if limit is not None and 0 <= limit <= 2**31 else None)
    follows = there.previous_response_id is not None and case.path == RESPONSES
    assert bool(decided.follows) == follows
    set_there = {**(there.model_extra or {}), **(there.vllm_xargs or {})}
    assert not [name for name in RESERVED_FIELDS if set_there.get(name) not in (None, False)]


def test_each_is_told_apart() -> None:
    assert len(JSON_CASES) >= 60
    assert len({case.name for case in JSON_CASES}) == len(JSON_CASES)

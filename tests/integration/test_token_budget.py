"""Gateways with pools by tokens learn from the counts of engines, and clients see nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gateway.config.sections import StateConfig
from gateway.core.features.lengths.feature import pools_by_length
from gateway.core.features.lengths.token_budget import NO_TENANT
from gateway.core.vocabulary import DEFAULT_POOL, Category, PoolSpec
from tests.fakes.engine import GOOD_STREAM, USAGE, answer
from tests.support.core import US
from tests.support.gateways import CHAT, ask, until
from tests.support.regions import Mesh, Region, busy_us_and_free_eu

POOLS = (PoolSpec(DEFAULT_POOL, context_tokens_max=8192, threshold_tokens=4096),)
UNASKED = b"".join(GOOD_STREAM).replace(USAGE, b"")
PROMPT = "It was the best of times, it was the worst of times. " * 20


def seen(region: Region) -> dict[Category, float]:
    """Weight of what a gateway has learnt, by category."""
    ratios = pools_by_length(region.gateway.core).token_budget.snapshot().ratios
    return {each.category: each.weight for each in ratios if each.tenant == NO_TENANT}


async def alone(mesh: Mesh, **changes: Any) -> Region:
    us = await mesh.region("us-1", US)
    us.config = replace(us.config, **changes)
    await mesh.start(us)
    return us


async def test_an_engine_is_asked_what_it_counted_and_the_client_gets_what_it_asked_for(mesh: Mesh) -> None:
    us = await alone(mesh, pools=POOLS)
    messages = [{"role": "user", "content": PROMPT}]
    async with ask(mesh.session, us.gateway.http_url, messages=messages) as response:
        assert await response.read() == UNASKED
    (received,) = us.engine.received
    assert b'"stream_options":{"include_usage":true}' in received.body
    assert list(seen(us)) == [Category.PROSE]
    options = {"include_usage": True}
    async with ask(mesh.session, us.gateway.http_url, messages=messages, stream_options=options) as response:
        assert await response.read() == b"".join(GOOD_STREAM)
    assert us.engine.received[1].body.count(b"stream_options") == 1
    us.engine.plays(answer())
    async with ask(mesh.session, us.gateway.http_url, messages=messages, stream=False) as response:
        assert b'"usage"' in await response.read()
    assert us.engine.received[2].body.count(b"stream_options") == 0
    assert pools_by_length(us.gateway.core).token_budget.observed >= 3


async def test_nobody_is_asked_where_no_pool_has_a_threshold(mesh: Mesh) -> None:
    us = await alone(mesh)
    async with ask(mesh.session, us.gateway.http_url) as response:
        assert await response.read() == b"".join(GOOD_STREAM)
    assert b"stream_options" not in us.engine.received[0].body
    assert pools_by_length(us.gateway.core).token_budget.observed == 0


async def test_of_a_forward_its_origin_learns_and_nobody_else(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh, pools=POOLS)
    async with ask(mesh.session, us.gateway.http_url, messages=[{"role": "user", "content": PROMPT}]) as response:
        assert await response.read() == UNASKED
    assert b'"stream_options":{"include_usage":true}' in eu.engine.received[0].body
    await until(lambda: pools_by_length(us.gateway.core).token_budget.observed > 0)
    assert list(seen(us)) == [Category.PROSE]
    assert pools_by_length(eu.gateway.core).token_budget.observed == 0


async def test_what_is_learnt_outlives_a_restart(mesh: Mesh, tmp_path: Path) -> None:
    us = await alone(mesh, pools=POOLS, state=StateConfig(tmp_path / "state"))
    async with ask(mesh.session, us.gateway.http_url, messages=[{"role": "user", "content": PROMPT}]) as response:
        await response.read()
    learnt = pools_by_length(us.gateway.core).token_budget.snapshot()
    assert learnt.ratios
    await us.stop()
    await us.start()
    assert pools_by_length(us.gateway.core).token_budget.snapshot() == learnt


async def test_a_client_may_say_of_which_kind_its_prompt_is(mesh: Mesh) -> None:
    us = await alone(mesh, pools=POOLS)
    url, body = (
        f"{us.gateway.http_url}/v1/chat/completions",
        {**CHAT, "messages": [{"role": "user", "content": PROMPT}]},
    )
    async with mesh.session.post(url, json=body, headers={"x-nightside-content": "Code"}) as response:
        await response.read()
    assert list(seen(us)) == [Category.CODE]
    async with mesh.session.post(url, json=body, headers={"x-nightside-content": "poetry"}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "invalid_content"

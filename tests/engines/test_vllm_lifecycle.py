"""Real vLLM that die, stop and start again while gateways send to them: no request is lost without an error."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gateway.core.kernel.description import gauges_of
from tests.engines.conftest import Engines
from tests.engines.real import Engine, reports_error
from tests.engines.regions import RealMesh, RealRegion, replicas
from tests.support.core import EU, MODEL, US
from tests.support.gateways import counted, until

pytestmark = pytest.mark.timeout(900)

GRACEFUL = ("--shutdown-timeout", "10")
"""Option with which vLLM finishes running requests on SIGTERM; without it vLLM cuts them off."""
LONG: dict[str, Any] = {"model": MODEL, "prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True}
LONG_CALLS: dict[str, dict[str, Any]] = {
    "/v1/completions": LONG,
    "/v1/chat/completions": {**LONG, "messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {"model": MODEL, "input": "x", "max_output_tokens": 1900, "stream": True},
    "/v1/messages": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 1900,
        "stream": True,
    },
}
BY_ITSELF = {
    "/v1/completions": (b'"finish_reason":"length"',),
    "/v1/chat/completions": (b'"finish_reason":"length"',),
    "/v1/responses": (b'"status":"incomplete"', b'"status":"completed"'),
    "/v1/messages": (b'"stop_reason":"max_tokens"', b'"stop_reason":"end_turn"'),
}
"""Marks of an answer that ended by itself."""
FIRST_TOKENS = {
    "/v1/completions": b'"text"',
    "/v1/chat/completions": b'"content"',
    "/v1/responses": b'"response.output_text.delta"',
    "/v1/messages": b'"content_block_delta"',
}


@asynccontextmanager
async def under_way(
    session: aiohttp.ClientSession, url: str, path: str = "/v1/completions"
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A long stream of which a token has arrived."""
    async with session.post(f"{url}{path}", json=LONG_CALLS[path]) as answer:
        assert answer.status == 200
        while FIRST_TOKENS[path] not in await answer.content.readline():
            pass
        yield answer


def last_event(said: bytes) -> dict[str, Any]:
    payloads = [line.removeprefix(b"data: ") for line in said.splitlines() if line.startswith(b"data: ")]
    document = json.loads([each for each in payloads if each != b"[DONE]"][-1])
    assert isinstance(document, dict)
    return document


@asynccontextmanager
async def two_regions(
    engines: Engines, mesh: RealMesh, **sections: object
) -> AsyncIterator[tuple[RealRegion, RealRegion]]:
    """Two regions with one engine each."""
    us = mesh.add("us-1", US, {"one": engines.one.url}, **sections)
    eu = mesh.add("eu-1", EU, {"two": engines.two.url}, **sections)
    async with mesh.running():
        await us.until_free(1)
        await eu.until_free(1)
        yield us, eu


PAUSE_S = 0.2
"""Seconds between two requests of a client, so that an engine can start beside the serving one."""


class Load:
    """Clients that send one small stream after the other until they are stopped, and count the outcomes."""

    def __init__(self, session: aiohttp.ClientSession, url: str, clients: int = 3) -> None:
        self.outcomes: Counter[str] = Counter()
        self._session = session
        self._url = url
        self._clients = clients
        self._stopped = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._clients):
                tasks.create_task(self._ask(number))
            yield self
            self._stopped = True

    async def grows(self, by: int) -> None:
        goal = self.outcomes["whole"] + by
        await until(lambda: self.outcomes["whole"] >= goal)

    async def _ask(self, number: int) -> None:
        turn = 0
        while not self._stopped:
            turn += 1
            body = {**LONG, "prompt": f"client {number}, turn {turn}", "max_tokens": 40}
            async with self._session.post(f"{self._url}/v1/completions", json=body) as answer:
                said = await answer.read()
            self.outcomes[_outcome(answer.status, said)] += 1
            await asyncio.sleep(PAUSE_S)


def _outcome(status: int, said: bytes) -> str:
    if status != 200 or reports_error(said):
        return f"{status}: {said[-300:]!r}"
    is_whole = last_event(said)["choices"][0]["finish_reason"] == "length" and said.endswith(b"[DONE]\n\n")
    return "whole" if is_whole else f"broken: {said[-300:]!r}"


async def test_a_killed_engine_ends_its_stream_with_an_error_and_the_other_region_serves(
    engines: Engines, mesh: RealMesh, session: aiohttp.ClientSession
) -> None:
    async with two_regions(engines, mesh, resume={"enabled": False}) as (us, eu):
        async with under_way(session, us.url) as answer:
            engines.one.kill()
            said = await answer.content.read()
        assert last_event(said)["error"]["code"] == "engine_failed_midstream"
        for _ in range(3):
            async with session.post(f"{us.url}/v1/completions", json={**LONG, "max_tokens": 8}) as after:
                assert after.status == 200
                assert after.headers["x-nightside-region"] == EU.region
                assert not reports_error(await after.read())
        for region in (us, eu):
            await region.until_idle()
            assert gauges_of(region.gateway.core, 0).attempts == 0
        engines.one.start(*GRACEFUL)
        await engines.one.until_ready()
        await us.until_free(1)
        async with session.post(f"{us.url}/v1/completions", json={**LONG, "max_tokens": 8}) as back:
            await back.read()
            assert back.headers["x-nightside-region"] == US.region


async def test_what_an_engine_cuts_off_at_its_end_is_not_passed_off_as_complete(
    engines: Engines, mesh: RealMesh, session: aiohttp.ClientSession
) -> None:
    """Streams of vLLM without `--shutdown-timeout` end with `finish_reason: abort` and `[DONE]`, and a message
    without a stop reason.

    vLLM 0.32 may call a response completed, which no client can detect. If its engine core ends first, vLLM sends
    nothing more and keeps the streams open; they end at the request's deadline.
    """
    async with two_regions(engines, mesh, limits={"request_deadline": "30s"}, resume={"enabled": False}) as (_, eu):
        async with AsyncExitStack() as stack:
            for path in LONG_CALLS:  # the first call of each API takes seconds
                async with under_way(session, eu.url, path):
                    pass
            async with asyncio.TaskGroup() as tasks:
                opening = {
                    path: tasks.create_task(stack.enter_async_context(under_way(session, eu.url, path)))
                    for path in LONG_CALLS
                }
            answers = {path: task.result() for path, task in opening.items()}
            engines.two.terminate()
            async with asyncio.TaskGroup() as tasks:
                reading = {path: tasks.create_task(answer.content.read()) for path, answer in answers.items()}
            ended = {path: task.result() for path, task in reading.items()}
        cut = [path for path, each in ended.items() if _says_that_it_failed(last_event(each))]
        whole = {path: each for path, each in ended.items() if path not in cut}
        assert len(cut) >= 2, whole
        for path, each in whole.items():
            assert any(told in each for told in BY_ITSELF[path]), (path, each[-600:])
        assert not any(b'"abort"' in each for each in ended.values())
        await eu.until_idle()
        assert counted(eu.gateway, "requests_total", model=MODEL, outcome="completed") <= len(whole)
        await engines.two.until_gone()
        engines.two.start(*GRACEFUL)
        await engines.two.until_ready()
        await eu.until_free(1)


def _says_that_it_failed(event: dict[str, Any]) -> bool:
    return bool(event.get("error")) or event.get("type") == "error"


async def _restart(engine: Engine) -> None:
    engine.terminate()
    await engine.until_gone()
    engine.start(*GRACEFUL)
    await engine.until_ready()


async def test_a_rolling_restart_under_load_fails_no_request(
    engines: Engines, mesh: RealMesh, session: aiohttp.ClientSession
) -> None:
    """The first engine is restarted as in docs/reference/engines.md: removed from the region file, SIGHUP, and
    stopped once it is empty. The second is stopped without notice, and the gateway has to detect it.
    """
    us = mesh.add("us-1", US, {"one": engines.one.url, "two": engines.two.url})
    async with mesh.running():
        await us.until_free(2)
        async with Load(session, us.url).running() as load:
            await load.grows(by=10)
            await us.change(replicas=replicas({"two": engines.two.url}))
            await engines.one.until_holding(0)
            await _restart(engines.one)
            await us.change(replicas=replicas({"one": engines.one.url, "two": engines.two.url}))
            await us.until_free(2)
            assert counted(us.gateway, "retries_total", after="busy") == 0
            assert counted(us.gateway, "retries_total", after="failed") == 0
            await load.grows(by=10)
            await _restart(engines.two)
            await us.until_free(2)
            await load.grows(by=10)
        print(f"whole answers during the rolling restart: {load.outcomes['whole']}")  # noqa: T201
        assert set(load.outcomes) == {"whole"}, load.outcomes
        await us.until_idle()

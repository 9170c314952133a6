"""The client runner against small real servers: what it counts, what it calls a failure, what a stop leaves behind."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gateway.clock import Clock
from gateway.core.vocabulary import ModelName, RegionName
from loadgen.live_runner import ClientGroup, LiveRunner, LoadPlan
from loadgen.report import RequestEnd, RequestRecord
from loadgen.workload import MultiTurnWorkload, Spread, WorkloadConfig

US = RegionName("us-east-1")
EU = RegionName("eu-west-1")
MODEL = ModelName("any-model")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def fixed(value: float) -> Spread:
    return Spread(value, 0.0, value, value)


WORKLOAD = WorkloadConfig(turns=fixed(3), output_tokens=fixed(4), think_s=fixed(0.01))


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def token(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


USAGE = event(
    {
        "choices": [],
        "usage": {"prompt_tokens": 90, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}},
    }
)
ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
DONE = b"data: [DONE]\n\n"


async def send(request: web.Request, *pieces: bytes, region: str = US, status: int = 200) -> web.StreamResponse:
    headers = {"Content-Type": "text/event-stream", "X-Nightside-Region": region}
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    await response.write_eof()
    return response


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def plan_for(url: str, *, load_s: float = 0.1, drain_s: float = 5.0, clients: int = 1, **rest: Any) -> LoadPlan:
    groups = (ClientGroup(US, url, clients),)
    return LoadPlan(groups, MODEL, load_s, drain_s, ramp_s=0.0, pause_after_failure_s=0.01, **rest)


def runner_for(plan: LoadPlan, on_record: Callable[[RequestRecord], None] | None = None) -> LiveRunner:
    return LiveRunner(plan, MultiTurnWorkload(WORKLOAD, seed=1), clock=Clock(), on_record=on_record)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - tallies are read, they announce nothing
            await asyncio.sleep(0.001)


async def run_against(handler: Handler, **rest: Any) -> list[RequestRecord]:
    async with serving(handler) as url:
        runner = runner_for(plan_for(url, **rest))
        await runner.run()
    assert runner.records
    return runner.records


async def test_a_whole_answer_is_counted_and_timed_from_its_first_content() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await send(request, ROLE, token("Good "), token("day"), USAGE, DONE, region=EU)

    for record in await run_against(answer):
        assert record.end is RequestEnd.COMPLETED
        assert record.first_token_ns is not None
        assert record.sent_ns < record.first_token_ns < record.ended_ns
        assert (record.client_region, record.served_by) == (US, EU)
        assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (90, 5, 64)


async def test_without_usage_the_tokens_that_came_are_counted() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await send(request, token("a"), token("b"), token("c"), DONE)

    assert {record.output_tokens for record in await run_against(answer)} == {3}


async def test_each_turn_carries_the_replies_before_it_and_one_connection_serves_them_all() -> None:
    bodies: list[dict[str, Any]] = []
    ports: set[object] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        ports.add(request.transport.get_extra_info("peername") if request.transport else None)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(token("Good ") + token("day") + DONE)
        await asyncio.sleep(0.01)  # the end of the body comes by itself, as it does from a gateway
        return response

    await run_against(answer, load_s=0.3)
    roles = [[message["role"] for message in body["messages"]] for body in bodies[:4]]
    opening, further = ["system", "user"], ["assistant", "user"]
    assert roles == [opening, opening + further, opening + further + further, opening]
    assert bodies[2]["messages"][:-2] == [*bodies[1]["messages"]]
    assert bodies[1]["messages"][2]["content"] == "Good day"
    assert (bodies[0]["model"], bodies[0]["max_tokens"], bodies[0]["stream"]) == (MODEL, 4, True)
    assert len(ports) == 1


@pytest.mark.parametrize(
    "pieces, complaint",
    [
        ((token("a"),), "without [DONE]"),
        ((), "without [DONE]"),
        ((ROLE, USAGE, DONE), "held no token"),
        ((token("a"), event({"error": {"message": "the engine died"}})), "the engine died"),
        ((b"data: {not json\n\n", DONE), "no chunk"),
    ],
)
async def test_an_answer_that_is_not_whole_is_a_failure(pieces: tuple[bytes, ...], complaint: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await send(request, *pieces)

    for record in await run_against(answer):
        assert record.end is RequestEnd.FAILED
        assert complaint in record.detail


async def test_a_refusal_is_a_failure_with_its_status_and_reason() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return await send(request, b'{"error": {"message":\n "the queue   is full"}}', status=503)

    for record in await run_against(refuse):
        assert record.end is RequestEnd.FAILED
        assert record.detail.startswith("HTTP 503")
        assert "the queue is full" in record.detail


async def test_nobody_listening_is_a_failure() -> None:
    async with serving(send) as url:
        pass
    runner = runner_for(plan_for(url))
    await runner.run()
    assert {record.end for record in runner.records} == {RequestEnd.FAILED}


async def test_a_key_is_sent_with_every_request() -> None:
    seen: set[str | None] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.add(request.headers.get("Authorization"))
        return await send(request, token("a"), DONE)

    await run_against(answer, api_key="sesame")
    assert seen == {"Bearer sesame"}


async def test_cancelling_keeps_what_was_measured_and_records_the_rest_as_unfinished() -> None:
    served = itertools.count()

    async def answer_once_then_hang(request: web.Request) -> web.StreamResponse:
        if next(served) == 0:
            return await send(request, token("a"), DONE)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(token("b"))
        await asyncio.Event().wait()
        return response

    async with serving(answer_once_then_hang) as url:
        runner = runner_for(plan_for(url, load_s=30.0))
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(runner.run())
            await until(lambda: runner.tallies[US].streaming == 1)
            assert (runner.tallies[US].waiting, runner.tallies[US].completed) == (0, 1)
            run.cancel()
    assert [record.end for record in runner.records] == [RequestEnd.COMPLETED, RequestEnd.UNFINISHED]
    assert runner.records[1].first_token_ns is not None
    assert runner.tallies[US].streaming == runner.tallies[US].waiting == 0


async def test_what_does_not_drain_in_time_is_unfinished() -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return await send(request)

    records = await run_against(hang, drain_s=0.05, clients=3)
    assert [record.end for record in records] == [RequestEnd.UNFINISHED] * 3
    assert {record.first_token_ns for record in records} == {None}


async def test_tallies_and_callbacks_follow_every_request() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await send(request, token("a"), token("b"), DONE, region=EU)

    heard: list[RequestRecord] = []
    async with serving(answer) as url:
        runner = runner_for(plan_for(url, clients=2), heard.append)
        await runner.run()
    tally = runner.tallies[US]
    assert heard == runner.records
    assert tally.completed == tally.answered == tally.forwarded == len(heard)
    assert tally.tokens == 2 * len(heard)
    assert tally.waiting == tally.streaming == tally.failed == 0


async def test_tokens_that_come_after_the_load_are_told_apart() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(token("in") + token("time"))
        await until(lambda: runner.load_s >= 0.1)
        await response.write(token("late") + DONE)
        return response

    async with serving(answer) as url:
        runner = runner_for(plan_for(url, load_s=0.1))
        await runner.run()
    assert [(record.tokens_in_time, record.output_tokens) for record in runner.records] == [(2, 3)]

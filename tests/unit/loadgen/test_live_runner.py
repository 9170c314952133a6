"""The client runner against small real servers: its counts, its definition of a failure, and a clean stop."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gateway.core.vocabulary import ModelName, RegionName
from loadgen.live_client import EndpointDialect
from loadgen.live_runner import ClosedLoop, LiveClientGroup, LiveRunner, LoadPlan, OpenLoop
from loadgen.report import RequestReport
from loadgen.vocabulary import ApiKind, RequestEnd
from loadgen.workload import LengthSpread, MultiTurnWorkload, Program, WorkloadConfig, WorkloadStep
from mesh.clock import Clock
from mesh.values import SECOND_NS
from tests.support.clock import StillClock
from tests.support.listening import serving_http

US = RegionName("us-east-1")
EU = RegionName("eu-west-1")
MODEL = ModelName("any-model")
CHAT = EndpointDialect(MODEL)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def fixed(value: float) -> LengthSpread:
    return LengthSpread(value, 0.0, value, value)


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
    app.router.add_post("/v1/completions", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    async with serving_http(runner) as port:
        yield f"http://127.0.0.1:{port}"


def plan_for(
    url: str,
    *,
    load_s: float = 0.1,
    drain_s: float = 5.0,
    clients: int = 1,
    api_key: str | None = None,
    load: ClosedLoop | OpenLoop | None = None,
    dialect: EndpointDialect = CHAT,
    **rest: Any,
) -> LoadPlan:
    users = load or ClosedLoop(MultiTurnWorkload(WORKLOAD, seed=1), clients)
    groups = (LiveClientGroup(US, (url,), users, lambda _: api_key),)
    return LoadPlan(groups, dialect, load_s, drain_s, ramp_s=0.0, pause_after_failure_s=0.01, **rest)


def runner_for(plan: LoadPlan, on_record: Callable[[RequestReport], None] | None = None) -> LiveRunner:
    return LiveRunner(plan, clock=Clock(), on_record=on_record)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - tallies are read, they announce nothing
            await asyncio.sleep(0.001)


async def run_against(handler: Handler, *, clock: Clock | None = None, **rest: Any) -> list[RequestReport]:
    async with serving(handler) as url:
        runner = LiveRunner(plan_for(url, **rest), clock=clock or Clock())
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
        assert (record.client_region, record.served_by, record.sent_to) == (US, EU, "127.0.0.1")
        assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (90, 5, 64)


async def test_without_usage_the_tokens_that_came_are_counted() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await send(request, token("a"), token("b"), token("c"), DONE)

    assert {record.output_tokens for record in await run_against(answer)} == {3}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_thinking_is_tokens_too(name: str) -> None:
    thought = event({"choices": [{"index": 0, "delta": {name: "hm"}}]})

    async def answer(request: web.Request) -> web.StreamResponse:
        return await send(request, ROLE, thought, thought, DONE)

    for record in await run_against(answer):
        assert record.end is RequestEnd.COMPLETED
        assert record.first_token_ns is not None
        assert record.output_tokens == 2


async def test_each_turn_carries_the_replies_before_it_and_one_connection_serves_them_all() -> None:
    clock = StillClock()
    bodies: list[dict[str, Any]] = []
    ports: set[object] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        if len(bodies) == 4:
            clock.now += 10 * SECOND_NS  # the load is over
        ports.add(request.transport.get_extra_info("peername") if request.transport else None)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(token("Good ") + token("day") + DONE)
        await asyncio.sleep(0.01)  # the body's end arrives by itself, as from a gateway
        return response

    await run_against(answer, load_s=10, clock=clock)
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

    heard: list[RequestReport] = []
    async with serving(answer) as url:
        runner = runner_for(plan_for(url, clients=2), heard.append)
        await runner.run()
    tally = runner.tallies[US]
    assert heard == runner.records
    assert tally.completed == tally.answered == tally.forwarded == len(heard)
    assert tally.tokens == 2 * len(heard)
    assert tally.waiting == tally.streaming == tally.failed == 0


async def test_tokens_that_come_after_the_load_are_told_apart() -> None:
    clock = StillClock()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(token("in") + token("time"))
        await until(lambda: runner.tallies[US].tokens == 2)
        clock.now += SECOND_NS  # the load is over
        await response.write(token("late") + DONE)
        return response

    async with serving(answer) as url:
        runner = LiveRunner(plan_for(url, load_s=1), clock=clock)
        await runner.run()
    assert [(record.tokens_in_time, record.output_tokens) for record in runner.records] == [(2, 3)]


# Open loop, programs with branches, limits


def burst(requests: int, **of_step: Any) -> Program:
    """Program of this many requests at once."""
    steps = tuple(WorkloadStep(f"question {number}", 4, **of_step) for number in range(requests))
    return Program("burst", "user", "session", "opening", steps)


async def prompt_answer(request: web.Request) -> web.StreamResponse:
    return await send(request, token("a"), DONE)


class StallingClock(Clock):
    """Clock that jumps ahead once, as for a process that was not scheduled."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.ahead_ns


async def test_in_open_loop_a_request_counts_from_when_it_was_due_and_not_from_when_it_left() -> None:
    clock, seen = StallingClock(), itertools.count()

    async def stall_at_the_first(request: web.Request) -> web.StreamResponse:
        if next(seen) == 0:
            clock.ahead_ns = 500_000_000
        return await prompt_answer(request)

    schedule = [(0.0, burst(1)), (0.1, burst(1)), (0.2, burst(1)), (0.55, burst(1))]
    async with serving(stall_at_the_first) as url:
        runner = LiveRunner(plan_for(url, load=OpenLoop(schedule), load_s=0.6), clock=clock)
        await runner.run()
    assert sorted(record.sent_ns for record in runner.records) == [0, 100_000_000, 200_000_000, 550_000_000]
    late = [record for record in runner.records if record.sent_ns in (100_000_000, 200_000_000)]
    for record in late:
        assert record.first_token_ns is not None
        assert record.first_token_ns - record.sent_ns >= 300_000_000 - 1
        assert record.lag_ns >= 250_000_000


async def test_slow_answers_hold_up_no_arrival() -> None:
    release = asyncio.Event()
    asked = itertools.count(1)

    async def wait_for_all(request: web.Request) -> web.StreamResponse:
        if next(asked) == 4:
            release.set()
        await release.wait()
        return await prompt_answer(request)

    schedule = [(number / 100, burst(1)) for number in range(4)]
    records = await run_against(wait_for_all, load=OpenLoop(schedule), load_s=0.2)
    assert [record.end for record in records] == [RequestEnd.COMPLETED] * 4


async def test_over_the_bound_requests_fail_with_a_reason_and_are_not_sent() -> None:
    asked = itertools.count()
    release = asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        next(asked)
        await release.wait()
        return await prompt_answer(request)

    async with serving(hold) as url:
        runner = runner_for(plan_for(url, load=OpenLoop([(0.0, burst(5))]), in_flight_max=2))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(runner.run())
            await until(lambda: len(runner.records) == 3)
            release.set()
    assert next(asked) == 2
    details = sorted(record.detail for record in runner.records)
    assert details == ["", "", *["not sent: 2 requests were in flight"] * 3]


async def test_what_was_due_when_the_run_was_stopped_is_recorded_even_if_it_never_left() -> None:
    clock = StallingClock()
    async with serving(prompt_answer) as url:
        runner = LiveRunner(plan_for(url, load=OpenLoop([(5.0, burst(2))]), load_s=10.0), clock=clock)
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(runner.run())
            await until(lambda: bool(runner.samples[US]))
            clock.ahead_ns = 6_000_000_000
            runner._unstarted[99] = US, 5_000_000_000, 2
            run.cancel()
    assert [record.end for record in runner.records] == [RequestEnd.UNFINISHED] * 2
    assert {record.sent_ns for record in runner.records} == {5_000_000_000}


async def test_branches_wait_for_the_answer_they_go_on_from() -> None:
    bodies: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append((await request.json())["messages"])
        return await send(request, token(f"answer {len(bodies)}"), DONE)

    steps = (
        WorkloadStep("root", 4),
        WorkloadStep("left", 4, after=0),
        WorkloadStep("right", 4, after=0),
        WorkloadStep("leaf", 4, after=1),
    )
    tree = Program("tree", "user", "session", "opening", steps)
    records = await run_against(answer, load=OpenLoop([(0.0, tree)]), load_s=1.0)
    assert len(records) == 4
    assert [message["content"] for message in bodies[0]] == ["opening", "root"]
    contents = [[message["content"] for message in body] for body in bodies]
    assert ["opening", "root", "answer 1", "left"] in contents
    assert ["opening", "root", "answer 1", "right"] in contents
    assert any(len(each) == 6 and each[-1] == "leaf" for each in contents)


async def test_an_answer_counts_no_less_than_it_should_have_taken() -> None:
    steps = (WorkloadStep("first", 4, answer_s_min=0.2), WorkloadStep("second", 4, after=0))
    chain = Program("chain", "user", "session", "", steps)
    records = await run_against(prompt_answer, load=OpenLoop([(0.0, chain)]), load_s=1.0)
    assert records[1].sent_ns == 200_000_000


async def test_an_impatient_client_leaves() -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return await send(request)

    async with serving(hang) as url:
        group = LiveClientGroup(US, (url,), OpenLoop([(0.0, burst(1))]), patience_s=0.05, impatient_share=1.0)
        runner = runner_for(LoadPlan((group,), CHAT, 0.1, 5.0))
        await runner.run()
    assert [(record.end, record.detail) for record in runner.records] == [(RequestEnd.FAILED, "the client left")]


async def test_urls_take_turns_and_completions_are_asked_with_a_prompt() -> None:
    asked: dict[str, list[Any]] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.setdefault(str(request.url), []).append(await request.json())
        return await send(request, event({"choices": [{"index": 0, "text": "a"}]}), DONE)

    dialect = EndpointDialect(MODEL, ApiKind.COMPLETIONS, include_usage=False, ignore_eos=True)
    async with serving(answer) as one, serving(answer) as other:
        group = LiveClientGroup(US, (one, other), OpenLoop([(0.0, burst(4))]))
        runner = runner_for(LoadPlan((group,), dialect, 0.1, 5.0))
        await runner.run()
    assert [record.end for record in runner.records] == [RequestEnd.COMPLETED] * 4
    assert {url: len(bodies) for url, bodies in asked.items()} == {
        f"{one}/v1/completions": 2,
        f"{other}/v1/completions": 2,
    }
    body = asked[f"{one}/v1/completions"][0]
    assert body["prompt"].startswith("opening\nquestion")
    assert ("stream_options" in body, body["ignore_eos"]) == (False, True)

"""Serves the requests for tokens of one emulated engine: checks, submits, relays tokens, and misbehaves if told to.

Every request that the model took is aborted when its handler is left early, however that happens.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct
from contextlib import suppress
from datetime import datetime
from typing import Never
from uuid import uuid4

import xxhash
from aiohttp import web

from gateway.clock import Clock
from loadgen.engine.api_answers import DONE, Answer, busy, error_event, internal, shutting_down
from loadgen.engine.api_requests import (
    ApiError,
    Endpoint,
    GenerationRequest,
    check_length,
    parse_generation,
)
from loadgen.engine.driver import EngineDriver, TokenFeed
from loadgen.engine.faults import GENERATION_FAULTS, Fault, FaultMode, FaultSwitch
from loadgen.engine.model import EngineRequest, FinishReason, Rejection
from loadgen.engine.server_config import EngineServerConfig
from loadgen.engine.tokens import block_ids, continuation, token_count

_ANSWER_PREFIX = {Endpoint.CHAT: "chatcmpl", Endpoint.COMPLETION: "cmpl"}
_JSON = {"Content-Type": "application/json"}
_EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


async def reset_connection(http: web.Request) -> Never:
    """Close the connection with a TCP reset instead of an answer. The handler is cancelled by what it did."""
    transport = http.transport
    if transport is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
    await asyncio.Event().wait()
    raise AssertionError("a handler outlived its connection")


class Generation:
    """The two endpoints that generate."""

    def __init__(self, config: EngineServerConfig, driver: EngineDriver, faults: FaultSwitch, clock: Clock) -> None:
        self._config = config
        self._driver = driver
        self._faults = faults
        self._clock = clock
        self._serial = 0
        self._closing = asyncio.Event()
        self.in_flight = 0
        """HTTP requests being served, which is what vLLM's `/load` counts."""

    def close(self) -> None:
        """End all answers where they stand, and take no more."""
        self._closing.set()
        self._driver.abort_all()

    async def closed_within(self, seconds: float) -> None:
        """Wait for so long, or until the engine stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def chat(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, Endpoint.CHAT)

    async def completion(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, Endpoint.COMPLETION)

    async def _serve(self, http: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        self.in_flight += 1
        try:
            request = parse_generation(endpoint, http.content_type, await http.read(), self._config.served)
            check_length(request, token_count(request.prompt), self._config.engine.context_tokens_max)
            if self._closing.is_set():
                raise shutting_down()
            return await self._generate_or_misbehave(http, request)
        finally:
            self.in_flight -= 1

    async def _generate_or_misbehave(self, http: web.Request, request: GenerationRequest) -> web.StreamResponse:
        fault = self._faults.strike(*GENERATION_FAULTS)
        match None if fault is None else fault.mode:
            case None | FaultMode.DIE_MIDSTREAM | FaultMode.ABORT_MIDSTREAM:
                return await self._generate(http, request, fault)
            case FaultMode.HANG_BEFORE_HEADERS:
                await self._closing.wait()
                raise shutting_down()
            case FaultMode.HANG_AFTER_HEADERS:
                response = await _open(http, request)
                await self._closing.wait()
                return response
            case FaultMode.ERROR_500:
                raise internal()
            case FaultMode.ERROR_503:
                raise busy()
            case FaultMode.ERROR_EVENT_FIRST:
                return await _refuse(http, request, internal())
            case FaultMode.EMPTY_STREAM:
                return await _send(http, request, DONE if request.stream else b"")
            case mode:
                raise AssertionError(f"{mode} strikes elsewhere")

    async def _generate(self, http: web.Request, request: GenerationRequest, fault: Fault | None) -> web.StreamResponse:
        answer, engine_request = self._plan(http, request)
        feed = self._driver.submit(engine_request)
        if isinstance(feed, Rejection):
            assert feed is Rejection.QUEUE_FULL, "lengths were checked"
            return await _refuse(http, request, busy())
        try:
            if request.stream:
                return await _relay(http, answer, feed, fault)
            return await _collect(http, answer, feed, fault)
        finally:
            self._driver.abort(engine_request.request_id)

    def _plan(self, http: web.Request, request: GenerationRequest) -> tuple[Answer, EngineRequest]:
        """Decide the whole answer; the model then says when its tokens exist."""
        prompt_tokens = token_count(request.prompt)
        output_tokens, reason = self._output_length(request, prompt_tokens)
        output = continuation(request.model, request.prompt, output_tokens)
        answer_id = f"{_ANSWER_PREFIX[request.endpoint]}-{http.headers.get('X-Request-Id') or uuid4().hex[:16]}"
        created = int(datetime.fromisoformat(self._clock.wall_time()).timestamp())
        names = block_ids(
            request.prompt + output,
            model=request.model,
            cache_salt=request.cache_salt,
            block_tokens=self._config.engine.block_tokens,
        )
        self._serial += 1
        engine_request = EngineRequest(f"{answer_id}/{self._serial}", prompt_tokens, output_tokens, names, reason)
        return Answer(request, answer_id, created, prompt_tokens, output), engine_request

    def _output_length(self, request: GenerationRequest, prompt_tokens: int) -> tuple[int, FinishReason]:
        limit = self._config.engine.context_tokens_max - prompt_tokens
        if request.output_tokens_max is not None:
            limit = min(limit, request.output_tokens_max)
        if request.ignore_eos or self._config.ignore_eos:
            return limit, FinishReason.LENGTH
        chance = random.Random(xxhash.xxh3_64_intdigest(request.prompt, seed=self._config.seed))
        drawn = chance.lognormvariate(math.log(self._config.output_tokens_median), self._config.output_tokens_sigma)
        tokens = max(1, request.output_tokens_min, round(drawn))
        return (tokens, FinishReason.STOP) if tokens <= limit else (limit, FinishReason.LENGTH)


async def _open(http: web.Request, request: GenerationRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers=_EVENTS if request.stream else _JSON)
    await response.prepare(http)
    return response


async def _send(http: web.Request, request: GenerationRequest, body: bytes) -> web.StreamResponse:
    response = await _open(http, request)
    await response.write(body)
    return response


async def _refuse(http: web.Request, request: GenerationRequest, error: ApiError) -> web.StreamResponse:
    """A stream's status has gone out when the engine finds out; anything else gets a proper error."""
    if not request.stream:
        raise error
    return await _send(http, request, error_event(error) + DONE)


async def _relay(http: web.Request, answer: Answer, feed: TokenFeed, fault: Fault | None) -> web.StreamResponse:
    """Headers at once, then tokens as they come; those that fall due together go out together."""
    response = await _open(http, answer.request)
    sent = 0
    reason = None
    while reason is None:
        tokens, reason = await _progress(feed, sent, fault)
        answer.cached_tokens = feed.cached_tokens
        if _dies(fault, reason):
            await response.write(answer.piece(sent, tokens, None))
            await reset_connection(http)
        await response.write(answer.piece(sent, tokens, reason))
        sent = tokens
    return response


async def _collect(http: web.Request, answer: Answer, feed: TokenFeed, fault: Fault | None) -> web.StreamResponse:
    tokens = 0
    reason = None
    while reason is None:
        tokens, reason = await _progress(feed, tokens, fault)
    if _dies(fault, reason):
        await reset_connection(http)
    answer.cached_tokens = feed.cached_tokens
    return web.Response(body=answer.whole(tokens, reason), headers=_JSON)


async def _progress(feed: TokenFeed, seen: int, fault: Fault | None) -> tuple[int, FinishReason | None]:
    """How many tokens there are, and the reason if they are all; a fault ends them early."""
    await feed.more_than(seen)
    if fault is not None and feed.tokens >= fault.after_tokens:
        return fault.after_tokens, FinishReason.ABORT
    return feed.tokens, feed.reason


def _dies(fault: Fault | None, reason: FinishReason | None) -> bool:
    return fault is not None and fault.mode is FaultMode.DIE_MIDSTREAM and reason is FinishReason.ABORT

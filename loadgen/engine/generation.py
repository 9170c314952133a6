"""Handlers of the requests that use the model: they check, submit, relay tokens, and inject faults on demand.

Every request that the model accepted is aborted when its handler is left early, for whatever reason.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Never
from uuid import uuid4

import xxhash
from aiohttp import web

from loadgen.engine.api_answers import DONE, ApiAnswer, busy, encode, error_event, internal, shutting_down
from loadgen.engine.api_requests import GenerationRequest, check_least, check_length, parse_generation
from loadgen.engine.choices import EngineChoice, choices_of, collect_all, stream_all, voice_of
from loadgen.engine.consumer import Consumer, WantedCache
from loadgen.engine.driver import EngineDriver, TokenFeed
from loadgen.engine.expert_counts import COUNTS_KEY, told_counts
from loadgen.engine.faults import GENERATION_FAULTS, EngineFault, FaultMode, FaultSwitch
from loadgen.engine.fields import ApiError, bad_value, json_body
from loadgen.engine.handoff import EngineDied, Fetch, HandOver, handed_over, handoff_of, prompt_digest
from loadgen.engine.messages import MessagesAnswer, count_tokens, parse_messages
from loadgen.engine.pooling import PoolingRequest, parse_embeddings, parse_rerank, parse_score
from loadgen.engine.producer import CacheOffer, Producer
from loadgen.engine.responses import ResponsesAnswer, ResponsesRequest, ResponseStore, parse_responses
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.server_config import EngineServerConfig
from loadgen.engine.tokens import TOKEN_BYTES, block_names, continuation, continued_tokens, token_count
from loadgen.engine.tools import call_arguments, json_text
from loadgen.engine.vocabulary import Endpoint, FinishReason, Rejection
from mesh.clock import Clock

_AnyAnswer = ApiAnswer | ResponsesAnswer | MessagesAnswer
_Parse = Callable[[str, bytes], GenerationRequest]
_OnEnd = Callable[[int, FinishReason], None]
_ANSWER_PREFIX = {
    Endpoint.CHAT: "chatcmpl",
    Endpoint.COMPLETION: "cmpl",
    Endpoint.MESSAGES: "chatcmpl",
    Endpoint.EMBEDDINGS: "embd",
    Endpoint.RERANK: "rerank",
    Endpoint.SCORE: "score",
}
_JSON = {"Content-Type": "application/json"}
_EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_RANK_HEADER = "X-data-parallel-rank"


@dataclass(slots=True)
class _Asked:
    """Execution parameters of a request, beside its content."""

    handoff: HandOver | Fetch | None
    rank: int | None = None
    is_wanted: bool = False
    """True once the consumer has registered the fetch, so that the KV cache is freed when the request ends."""


async def reset_connection(http: web.Request) -> Never:
    """Close the connection with a TCP reset instead of an answer. The abort cancels the calling handler."""
    transport = http.transport
    if transport is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
    await asyncio.Event().wait()
    raise AssertionError("a handler outlived its connection")


@dataclass(frozen=True, slots=True)
class _Run:
    """Request that the engine has accepted."""

    http: web.Request
    answer: _AnyAnswer
    engine_request: EngineRequest
    rank: int


class Generation:
    """HTTP handlers of the endpoints that use the model."""

    def __init__(
        self,
        config: EngineServerConfig,
        driver: EngineDriver,
        faults: FaultSwitch,
        clock: Clock,
        *,
        producer: Producer | None = None,
        consumer: Consumer | None = None,
        die: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._driver = driver
        self._faults = faults
        self._clock = clock
        self._producer = producer
        self._consumer = consumer
        self._die = die
        self._serial = 0
        self._closing = asyncio.Event()
        self._responses = ResponseStore()
        self.in_flight = 0
        """HTTP requests in progress, as vLLM's `/load` counts them."""

    def close(self) -> None:
        """End all answers where they stand, and accept no more requests."""
        self._closing.set()
        self._driver.abort_all()

    async def closed_within(self, seconds: float) -> None:
        """Wait for `seconds`, or until the engine stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def chat(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, partial(parse_generation, Endpoint.CHAT, served=self._config.served))

    async def completion(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, partial(parse_generation, Endpoint.COMPLETION, served=self._config.served))

    async def messages(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, partial(parse_messages, served=self._config.served))

    async def count_tokens(self, http: web.Request) -> web.StreamResponse:
        return _json(count_tokens(http.content_type, await http.read(), self._config.served))

    async def responses(self, http: web.Request) -> web.StreamResponse:
        parse = partial(parse_responses, served=self._config.served, store=self._responses)
        return await self._serve(http, parse)

    async def show_response(self, http: web.Request) -> web.StreamResponse:
        return _json(self._responses.get(http.match_info["id"]).body)

    async def cancel_response(self, http: web.Request) -> web.StreamResponse:
        raise self._responses.why_not_cancelled(http.match_info["id"])

    async def delete_response(self, http: web.Request) -> web.StreamResponse:
        return _json(self._responses.delete(http.match_info["id"]))

    async def embeddings(self, http: web.Request) -> web.StreamResponse:
        return await self._pool(http, parse_embeddings, Endpoint.EMBEDDINGS)

    async def rerank(self, http: web.Request) -> web.StreamResponse:
        return await self._pool(http, parse_rerank, Endpoint.RERANK)

    async def score(self, http: web.Request) -> web.StreamResponse:
        return await self._pool(http, parse_score, Endpoint.SCORE)

    async def _pool(
        self, http: web.Request, parse: Callable[[str, bytes, tuple[str, ...]], PoolingRequest], endpoint: Endpoint
    ) -> web.StreamResponse:
        """Process the texts one after the other, each as a request for a single token."""
        self.in_flight += 1
        try:
            request = parse(http.content_type, await http.read(), self._config.served)
            identity, created = self._identity(http, endpoint)
            for text in request.texts:
                await self._read_through(request.model, text, identity)
            return _json({"id": identity, "created": created} | request.answer)
        finally:
            self.in_flight -= 1

    async def _read_through(self, model: str, text: bytes, identity: str) -> None:
        tokens, context = token_count(text), self._config.engine.context_tokens_max
        if tokens >= context:
            raise bad_value("input", tokens, f"This model's maximum context length is {context} tokens.")
        self._serial += 1
        names = block_names(text, model=model, cache_salt="", block_tokens=self._config.engine.block_tokens)
        engine_request = EngineRequest(f"{identity}/{self._serial}", tokens, 1, names, FinishReason.STOP)
        feed = self._driver.submit(engine_request)
        if isinstance(feed, Rejection):
            raise busy()
        try:
            while feed.reason is None:
                await feed.more_than(feed.tokens)
        finally:
            self._driver.abort(engine_request.request_id)
        if feed.reason is FinishReason.ABORT:
            raise shutting_down()

    async def _serve(self, http: web.Request, parse: _Parse) -> web.StreamResponse:
        self.in_flight += 1
        asked = None
        try:
            body = await http.read()
            asked = _Asked(self._handoff_of(http.content_type, body))
            request = parse(http.content_type, body)
            check_least(request)
            for prompt in (request.prompt, *request.further_prompts):
                check_length(request, token_count(prompt), self._config.engine.context_tokens_max)
            asked.rank = self._rank_of(http)
            if self._closing.is_set():
                raise shutting_down()
            return await self._generate_or_misbehave(http, request, asked)
        except EngineDied as error:
            assert self._die is not None
            self._die(str(error))
            await reset_connection(http)
        except ApiError:
            self._turn_away(asked)
            raise
        finally:
            self.in_flight -= 1

    def _handoff_of(self, content_type: str, body: bytes) -> HandOver | Fetch | None:
        if self._config.handoff is None:
            return None
        return handoff_of(json_body(content_type, body), self._config.handoff)

    def _turn_away(self, asked: _Asked | None) -> None:
        """Free the KV cache that a refused request would have fetched."""
        if asked is not None and isinstance(asked.handoff, Fetch) and not asked.is_wanted:
            assert self._consumer is not None
            self._consumer.refuse(asked.handoff)

    def _rank_of(self, http: web.Request) -> int | None:
        """Data-parallel rank named by the header. A value that is not a number is ignored; a rank out of range is
        refused."""
        named = http.headers.get(_RANK_HEADER, "").strip()
        if not named.isascii() or not named.removeprefix("-").isdecimal():
            return None
        rank = int(named)
        if not 0 <= rank < self._config.ranks:
            message = f"data_parallel_rank {rank} is out of range [0, {self._config.ranks})."
            raise bad_value("data_parallel_rank", rank, message)
        return rank

    async def _generate_or_misbehave(
        self, http: web.Request, request: GenerationRequest, asked: _Asked
    ) -> web.StreamResponse:
        fault = self._faults.strike(*GENERATION_FAULTS)
        match None if fault is None else fault.mode:
            case None | FaultMode.DIE_MIDSTREAM | FaultMode.ABORT_MIDSTREAM | FaultMode.RECOMPUTED_MIDSTREAM:
                return await self._generate(http, request, fault, asked)
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
                return await _send(http, request, _end_mark(request) if request.stream else b"")
            case mode:
                raise AssertionError(f"{mode} strikes elsewhere")

    async def _generate(
        self, http: web.Request, request: GenerationRequest, fault: EngineFault | None, asked: _Asked
    ) -> web.StreamResponse:
        if request.samples > 1 or request.further_prompts:
            return await self._generate_several(http, request, fault, asked)
        answer, engine_request = self._plan(http, request, asked.handoff)
        request_id = engine_request.request_id
        rank = self._driver.emptiest() if asked.rank is None else asked.rank
        self._note(answer, engine_request, asked, rank)
        feed = self._driver.submit(engine_request, rank)
        if isinstance(feed, Rejection):
            assert feed is Rejection.QUEUE_FULL, "lengths were checked"
            self.forget(request_id)
            return await _refuse(http, request, busy())
        if fault is not None and fault.mode is FaultMode.RECOMPUTED_MIDSTREAM:
            answer.cut_reason, answer.stop_reason = FinishReason.STOP, "recomputed"
        keep = partial(self._keep, _Run(http, answer, engine_request, rank))
        try:
            if request.stream:
                return await _relay(http, answer, feed, fault, keep)
            return await _collect(http, answer, feed, fault, keep)
        finally:
            self._driver.abort(request_id)

    async def _generate_several(
        self, http: web.Request, request: GenerationRequest, fault: EngineFault | None, asked: _Asked
    ) -> web.StreamResponse:
        """Serve several choices entirely on this engine: gateways never split such a request between prefill and
        decode."""
        planned = [self._plan(http, each, None) for each in choices_of(request)]
        choices: list[EngineChoice] = []

        async def progress(feed: TokenFeed, seen: int) -> tuple[int, FinishReason | None]:
            tokens, reason = await _progress(feed, seen, fault)
            if _dies(fault, reason):
                await reset_connection(http)
            return tokens, reason

        try:
            for answer, engine_request in planned:
                rank = self._driver.emptiest() if asked.rank is None else asked.rank
                feed = self._driver.submit(engine_request, rank)
                if isinstance(feed, Rejection):
                    return await _refuse(http, request, busy())
                assert isinstance(answer, ApiAnswer), "no other API has several choices"
                answer.is_one_of_several = True
                choices.append(EngineChoice(answer, feed))
            if not request.stream:
                return web.Response(body=await collect_all(choices, progress), headers=_JSON)
            response = await _open(http, request)
            await stream_all(choices, response.write, progress)
            return response
        finally:
            for _, engine_request in planned[: len(choices)]:
                self._driver.abort(engine_request.request_id)

    def _note(self, answer: _AnyAnswer, engine_request: EngineRequest, asked: _Asked, rank: int) -> None:
        """Register a hand-off before the engine has the request: the offer to keep or the fetch to make. Raises
        EngineDied."""
        handoff, request = asked.handoff, answer.request
        if handoff is None:
            return
        request_id, tokens = engine_request.request_id, engine_request.prompt_tokens
        digest = prompt_digest(request.model, request.cache_salt, request.prompt)
        if isinstance(handoff, Fetch):
            assert self._consumer is not None
            self._consumer.want(request_id, WantedCache(handoff, tokens, digest))
            asked.is_wanted = True
        elif engine_request.lease_ns is not None:
            assert self._producer is not None
            key = handoff.key or request_id
            self._producer.offer(key, CacheOffer(request_id, self._producer.engine_ids[rank], tokens, digest))

    def forget(self, request_id: str) -> None:
        """Remove an ended request from producer and consumer; an offer whose blocks are kept under a lease stays."""
        if self._producer is not None:
            self._producer.gone(request_id)
        if self._consumer is not None:
            self._consumer.gone(request_id)

    def _keep(self, run: _Run, tokens: int, reason: FinishReason) -> None:
        """Store the response and fill in the hand-off fields, before the client can have learned of the end."""
        answer, engine_request = run.answer, run.engine_request
        if isinstance(answer, ResponsesAnswer) and answer.request.store and reason is not FinishReason.ABORT:
            self._responses.put(answer.answer_id, answer.stored(tokens, reason))
        handoff, transport = self._config.handoff, run.http.transport
        if handoff is None or transport is None or engine_request.lease_ns is None or reason is FinishReason.ABORT:
            return
        assert self._producer is not None
        host, port = transport.get_extra_info("sockname")[:2]
        answer.handed_over = handed_over(
            handoff.connector,
            key=engine_request.request_id,
            engine_id=self._producer.engine_ids[run.rank],
            host=host,
            port=port,
            prompt_tokens=engine_request.prompt_tokens,
            blocks=-(-engine_request.prompt_tokens // self._config.engine.block_tokens),
        )
        if handoff.experts is not None and answer.handed_over is not None:
            answer.handed_over[COUNTS_KEY] = told_counts(answer.request.prompt, handoff.experts, self._config.model)

    def _identity(self, http: web.Request, endpoint: Endpoint) -> tuple[str, int]:
        """Answer id and creation time. Clients may choose the id, except of a response, which is stored."""
        created = int(datetime.fromisoformat(self._clock.wall_time()).timestamp())
        fresh = uuid4().hex[:16]
        if endpoint is Endpoint.RESPONSES:
            return f"resp_{fresh}", created
        return f"{_ANSWER_PREFIX[endpoint]}-{http.headers.get('X-Request-Id') or fresh}", created

    def _plan(
        self, http: web.Request, request: GenerationRequest, handoff: HandOver | Fetch | None
    ) -> tuple[_AnyAnswer, EngineRequest]:
        """Compute the whole answer; the model then decides when its tokens exist."""
        prompt_tokens = token_count(request.prompt)
        output_tokens, reason = self._output_length(request, prompt_tokens)
        voice = voice_of(request)
        output = continuation(voice, request.prompt, output_tokens)
        if request.tool is not None or request.schema is not None:
            output = _formed(request, voice)
            output_tokens, reason = _cut(token_count(output), self._output_limit(request, prompt_tokens))
            output = output[: output_tokens * TOKEN_BYTES]
        if isinstance(handoff, HandOver) and handoff.is_cut:
            output_tokens, reason, output = 1, FinishReason.LENGTH, output[:TOKEN_BYTES]
        answer_id, created = self._identity(http, request.endpoint)
        names = block_names(
            request.prompt + output,
            model=request.model,
            cache_salt=request.cache_salt,
            block_tokens=self._config.engine.block_tokens,
        )
        self._serial += 1
        request_id = f"{answer_id}-{self._serial}-{uuid4().hex[:8]}"
        engine_request = EngineRequest(request_id, prompt_tokens, output_tokens, names, reason)
        if isinstance(handoff, Fetch):
            engine_request = replace(engine_request, is_remote=True)
        elif handoff is not None and reason in handoff.reasons:
            assert self._producer is not None
            engine_request = replace(engine_request, lease_ns=self._producer.lease_ns)
        return _answer(request, answer_id, created, prompt_tokens, output), engine_request

    def _output_limit(self, request: GenerationRequest, prompt_tokens: int) -> int:
        limit = self._config.engine.context_tokens_max - prompt_tokens
        return limit if request.output_tokens_max is None else min(limit, request.output_tokens_max)

    def _output_length(self, request: GenerationRequest, prompt_tokens: int) -> tuple[int, FinishReason]:
        limit = self._output_limit(request, prompt_tokens)
        said = request.said_tokens
        if not said and request.endpoint is Endpoint.COMPLETION:
            said = continued_tokens(voice_of(request), request.prompt)
        if request.ignore_eos or self._config.ignore_eos:
            return limit, FinishReason.LENGTH
        asked = request.prompt[: len(request.prompt) - said * TOKEN_BYTES]
        chance = random.Random(xxhash.xxh3_64_intdigest(asked, seed=self._config.seed))
        drawn = chance.lognormvariate(math.log(self._config.output_tokens_median), self._config.output_tokens_sigma)
        least = request.output_tokens_min
        if least >= limit:  # a minimum at the limit leaves only the end by length
            return limit, FinishReason.LENGTH
        return _cut(max(1, least, max(1, round(drawn)) - said), limit)


def _formed(request: GenerationRequest, voice: str) -> bytes:
    """Answer with a required form: a call's arguments, or JSON that follows a schema. Raises ApiError."""
    if request.tool is not None:
        return call_arguments(request.tool, model=voice, prompt=request.prompt)
    return json_text(request.schema or {}, model=voice, prompt=request.prompt)


def _cut(tokens: int, limit: int) -> tuple[int, FinishReason]:
    return (tokens, FinishReason.STOP) if tokens <= limit else (limit, FinishReason.LENGTH)


def _answer(request: GenerationRequest, answer_id: str, created: int, prompt_tokens: int, output: bytes) -> _AnyAnswer:
    if isinstance(request, ResponsesRequest):
        return ResponsesAnswer(request, answer_id, created, prompt_tokens, output)
    if request.endpoint is Endpoint.MESSAGES:
        return MessagesAnswer(request, answer_id, created, prompt_tokens, output)
    return ApiAnswer(request, answer_id, created, prompt_tokens, output)


def _json(content: object) -> web.Response:
    return web.Response(body=encode(content), headers=_JSON)


async def _open(http: web.Request, request: GenerationRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers=_EVENTS if request.stream else _JSON)
    await response.prepare(http)
    return response


async def _send(http: web.Request, request: GenerationRequest, body: bytes) -> web.StreamResponse:
    response = await _open(http, request)
    await response.write(body)
    return response


async def _refuse(http: web.Request, request: GenerationRequest, error: ApiError) -> web.StreamResponse:
    """Send an error: as an event in a stream, whose status has gone out; otherwise as an HTTP error."""
    if not request.stream:
        raise error
    return await _send(http, request, _error_of(request, error) + _end_mark(request))


def _error_of(request: GenerationRequest, error: ApiError) -> bytes:
    if request.endpoint is Endpoint.MESSAGES:
        return b"event: error\ndata: %b\n\n" % encode(error.messages_content())
    return error_event(error)


def _end_mark(request: GenerationRequest) -> bytes:
    return DONE if request.endpoint in (Endpoint.CHAT, Endpoint.COMPLETION) else b""


async def _relay(
    http: web.Request, answer: _AnyAnswer, feed: TokenFeed, fault: EngineFault | None, on_end: _OnEnd
) -> web.StreamResponse:
    """Send the headers at once, then tokens as they exist; tokens that are due together go out together."""
    response = await _open(http, answer.request)
    if answer.preamble:
        await response.write(answer.preamble)
    sent = 0
    reason = None
    while reason is None:
        tokens, reason = await _progress(feed, sent, fault)
        answer.cached_tokens = feed.cached_tokens
        if _dies(fault, reason):
            await response.write(answer.piece(sent, tokens, None))
            await reset_connection(http)
        if feed.has_failed:
            await response.write(answer.piece(sent, tokens, None))
            await response.write(_error_of(answer.request, internal()) + _end_mark(answer.request))
            return response
        if reason is not None:
            on_end(tokens, reason)
        await response.write(answer.piece(sent, tokens, reason))
        sent = tokens
    return response


async def _collect(
    http: web.Request, answer: _AnyAnswer, feed: TokenFeed, fault: EngineFault | None, on_end: _OnEnd
) -> web.StreamResponse:
    tokens = 0
    reason = None
    while reason is None:
        tokens, reason = await _progress(feed, tokens, fault)
    if _dies(fault, reason):
        await reset_connection(http)
    if feed.has_failed:
        raise internal()
    answer.cached_tokens = feed.cached_tokens
    on_end(tokens, reason)
    return web.Response(body=answer.whole(tokens, reason), headers=_JSON)


async def _progress(feed: TokenFeed, seen: int, fault: EngineFault | None) -> tuple[int, FinishReason | None]:
    """Wait for more tokens; gives the token count, and the finish reason once it is complete. A fault ends it early."""
    await feed.more_than(seen)
    if fault is not None and feed.tokens >= fault.after_tokens:
        return fault.after_tokens, FinishReason.ABORT
    return feed.tokens, feed.reason


def _dies(fault: EngineFault | None, reason: FinishReason | None) -> bool:
    return fault is not None and fault.mode is FaultMode.DIE_MIDSTREAM and reason is FinishReason.ABORT

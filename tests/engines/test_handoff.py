"""A real pair, a prefill worker and a decode worker of vLLM, over NIXL on the CPU, driven by hand: without a gateway,
with the bodies that `gateway.engines.handoff` makes for either.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from gateway.core.vocabulary import Connector
from gateway.engines.handoff.attempt_ids import AttemptIds, attempt_ids, leg_headers
from gateway.engines.handoff.bodies import LegBody, decode_body, prefill_body
from gateway.request.assembling import Assembler
from gateway.request.event_scanner import EventScanner
from gateway.request.handoffs import Handoff, handoff_in
from gateway.request.side_channels import SideChannel
from tests.engines.calls import CHAT, COMPLETIONS, EXPIRED, FETCHED, PATHS, asked, comparable, long_text, said_in
from tests.engines.conftest import Pair
from tests.engines.real import KV_BLOCK_TOKENS, LEASE_S, Engine, reports_error

pytestmark = pytest.mark.timeout(600)


async def ask(
    session: aiohttp.ClientSession, engine: Engine, path: str, body: LegBody | bytes, met: AttemptIds
) -> tuple[int, bytes]:
    headers = dict(leg_headers((("content-type", "application/json"),), met))
    data = body if isinstance(body, bytes) else b"".join(body)
    async with session.post(f"{engine.url}{path}", data=io.BytesIO(data), headers=headers) as answer:
        return answer.status, await answer.read()


class ByHand:
    """One attempt at the pair, leg by leg."""

    def __init__(self, session: aiohttp.ClientSession, pair: Pair, path: str, body: bytes) -> None:
        self.met = attempt_ids(os.urandom(16), 1)
        self.session, self.pair, self.path, self.body = session, pair, path, body

    async def prefill(self) -> Handoff:
        leg = prefill_body(Connector.NIXL, self.path, self.body, self.met)
        status, said = await ask(self.session, self.pair.prefill, self.path, leg, self.met)
        assert status == 200, said
        return handoff_in(said, Connector.NIXL, SideChannel(frozenset({"127.0.0.1", "localhost"})))

    async def decode(self, handed: Handoff, *, assembled: bool = False) -> tuple[int, bytes]:
        leg = decode_body(Connector.NIXL, self.body, self.met, told=handed.told, assembled=assembled)
        return await ask(self.session, self.pair.decode, self.path, leg, self.met)

    @asynccontextmanager
    async def decoding(self, handed: Handoff) -> AsyncIterator[aiohttp.ClientResponse]:
        """A stream that has begun."""
        leg = b"".join(decode_body(Connector.NIXL, self.body, self.met, told=handed.told))
        headers = dict(leg_headers((("content-type", "application/json"),), self.met))
        async with self.session.post(f"{self.pair.decode.url}{self.path}", data=leg, headers=headers) as answer:
            assert await answer.content.readline()
            yield answer


class TestByHand:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("path", PATHS)
    async def test_what_two_engines_say_together_is_what_one_says(
        self, pair: Pair, session: aiohttp.ClientSession, path: str, stream: bool
    ) -> None:
        more: dict[str, object] = {"stream": stream}
        if stream and path in (CHAT, COMPLETIONS):
            more["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        body = asked(path, long_text(), **more)
        fetched = (await pair.decode.counters())[FETCHED]
        attempt = ByHand(session, pair, path, body)
        status, said = await attempt.decode(await attempt.prefill())
        alone = await ask(session, pair.prefill, path, body, attempt_ids(os.urandom(16), 1))
        assert (status, alone[0]) == (200, 200)
        assert said_in(path, said) == said_in(path, alone[1])
        assert said_in(path, said)[0]
        assert (await pair.decode.counters())[FETCHED] - fetched > 5 * KV_BLOCK_TOKENS
        await pair.prefill.until_empty()
        await pair.decode.until_empty()

    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    async def test_a_decode_had_as_a_stream_is_put_together_to_the_whole_answer(
        self, pair: Pair, session: aiohttp.ClientSession, path: str
    ) -> None:
        """Answers are equal in every member but the id, the time, and the counts of cached tokens."""
        body = asked(path, long_text(), logprobs=None, top_logprobs=None, logprob_token_ids=None, return_token_ids=True)
        attempt = ByHand(session, pair, path, body)
        handed = await attempt.prefill()
        scanner, assembler = EventScanner(), Assembler(path, handed.answer, bytes_max=1 << 20)
        status, said = await attempt.decode(handed, assembled=True)
        assembler.feed(scanner.feed(said))
        alone_status, alone = await ask(session, pair.prefill, path, body, attempt_ids(os.urandom(16), 1))
        assert (status, alone_status, scanner.done) == (200, 200, True)
        assert comparable(assembler.finish()) == comparable(alone)

    async def test_a_prompt_too_large_to_be_searched_is_overruled_from_both_ends(
        self, pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        """A member may stand twice in the body: the engine takes the gateway's."""
        padding = {"stream": True, "stop": None, "user": " " * (2 << 20)}
        attempt = ByHand(session, pair, COMPLETIONS, asked(COMPLETIONS, long_text(), **padding))
        status, said = await attempt.decode(await attempt.prefill())
        assert status == 200
        assert said.endswith(b"data: [DONE]\n\n")
        assert not reports_error(said)

    async def test_what_nobody_fetches_is_kept_for_the_lease_and_no_longer(
        self, pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        before = await pair.prefill.counters()
        await ByHand(session, pair, CHAT, asked(CHAT, long_text())).prefill()
        assert (await pair.prefill.counters())["vllm:kv_cache_usage_perc"] > 0
        await pair.prefill.until_empty(3 * LEASE_S)
        assert (await pair.prefill.counters())[EXPIRED] == before[EXPIRED] + 1

    async def test_what_the_decode_refuses_is_given_back_at_once(
        self, pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        """The first prefill's blocks are released, so that a retry needs a new prefill."""
        before = await pair.prefill.counters()
        attempt = ByHand(session, pair, COMPLETIONS, asked(COMPLETIONS, long_text(), max_tokens=10**6))
        status, said = await attempt.decode(await attempt.prefill())
        assert (status, json.loads(said)["error"]["code"]) == (400, 400)
        await pair.prefill.until_empty()
        assert (await pair.prefill.counters())[EXPIRED] == before[EXPIRED]

    async def test_a_decode_that_is_left_midway_frees_both(self, pair: Pair, session: aiohttp.ClientSession) -> None:
        body = asked(COMPLETIONS, long_text(), stream=True, max_tokens=1000, min_tokens=1000)
        attempt = ByHand(session, pair, COMPLETIONS, body)
        async with attempt.decoding(await attempt.prefill()) as answer:
            assert answer.status == 200
            await pair.decode.until_holding(1)
            answer.close()
        for engine in pair:
            await engine.until_holding(0)
            await engine.until_empty()

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_decode_whose_prefill_worker_died_says_so_and_its_engine_lives(
        self, pair: Pair, session: aiohttp.ClientSession, stream: bool
    ) -> None:
        attempt = ByHand(session, pair, CHAT, asked(CHAT, long_text(), stream=stream))
        handed = await attempt.prefill()
        pair.prefill.kill()
        status, said = await attempt.decode(handed)
        assert (status, reports_error(said)) == ((200, True) if stream else (500, False))
        assert await pair.decode.is_healthy()
        await pair.decode.until_holding(0)
        await pair.decode.until_empty()

    async def test_a_decode_worker_that_dies_midway_breaks_off_and_the_other_one_lives(
        self, pair: Pair, session: aiohttp.ClientSession
    ) -> None:
        body = asked(COMPLETIONS, long_text(), stream=True, max_tokens=1000, min_tokens=1000)
        attempt = ByHand(session, pair, COMPLETIONS, body)
        async with attempt.decoding(await attempt.prefill()) as answer:
            pair.decode.kill()
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        assert await pair.prefill.is_healthy()
        await pair.prefill.until_empty(3 * LEASE_S)

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from gateway.config.targets import Dialect
from gateway.core.vocabulary import ReplicaId, replica_target
from gateway.engines.client import ClientSettings, EngineClient
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.tokenizing import TokenizerLacks, in_words_of
from gateway.request.engine_api import DETOKENIZE_PATH, TOKENIZE_PATH
from gateway.request.legs import OutboundRequest
from mesh.clock import Clock
from tests.fakes.engine import FakeEngine, answer
from tests.support.core import SECOND, US, profile
from tests.support.listeners import Heard
from tests.support.orders import leg_order

TEXT = b'{"model":"m", "prompt": "hi \\u00e9 \\"there\\"" }'


def asked(body: bytes, path: str = TOKENIZE_PATH) -> OutboundRequest:
    return OutboundRequest(profile("r1"), path, (), body)


@pytest.mark.parametrize("dialect", [Dialect.VLLM, Dialect.SGLANG, Dialect.OPENAI])
def test_most_engines_are_asked_as_clients_ask(dialect: Dialect) -> None:
    assert in_words_of(dialect, asked(TEXT)).body == TEXT


def test_llama_cpp_reads_the_prompt_under_its_own_name() -> None:
    body = in_words_of(Dialect.LLAMACPP, asked(TEXT)).body
    assert msgspec.json.decode(body) == {"model": "m", "prompt": 'hi é "there"', "content": 'hi é "there"'}
    own = b'{"model":"m","content":"hi"}'
    assert in_words_of(Dialect.LLAMACPP, asked(own)).body == own
    back = b'{"model":"m","tokens":[1]}'
    assert in_words_of(Dialect.LLAMACPP, asked(back, DETOKENIZE_PATH)).body == back


@pytest.mark.parametrize("body", [b'{"model":"m","messages":[]}', b'{"model":"m","prompt":["a"]}', b'{"model":"m"}'])
def test_what_llama_cpp_would_answer_with_nothing_is_refused(body: bytes) -> None:
    with pytest.raises(TokenizerLacks, match="takes one text"):
        in_words_of(Dialect.LLAMACPP, asked(body))


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine().serving() as made:
        made.plays(answer(200, b'{"tokens":[1]}'))
        yield made


async def test_the_client_is_told_and_the_engine_is_not_asked(engine: FakeEngine) -> None:
    endpoints = ReplicaEndpoints([ReplicaEndpoint(ReplicaId("a"), US, engine.url, Dialect.LLAMACPP)])
    order = leg_order("r1", 1, replica_target(ReplicaId("a")), 1, deadline_ns=Clock().now_ns() + 60 * SECOND)
    async with EngineClient(endpoints, Clock(), ClientSettings()) as client:

        async def read(body: bytes) -> tuple[int, bytes]:
            heard = Heard()
            client.open(order, asked(body), heard)
            told = await heard.whole()
            return heard.head.status, told

        status, told = await read(b'{"model":"m","messages":[]}')
        assert (status, msgspec.json.decode(told)["error"]["code"]) == (400, 400)
        assert engine.received == []
        assert await read(TEXT) == (200, b'{"tokens":[1]}')

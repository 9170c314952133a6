"""Invalid answers of engines and peers: they count against their sender, and before the first byte the request is
retried elsewhere.

None of them causes an internal error of the gateway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.core.vocabulary import Outcome, ReplicaId
from gateway.request.legs import LegHead, RanAt
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes import answer_frames
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, Exchange, Script, answer, chat_chunk, event, stream
from tests.fakes.exchanging import FrameContext
from tests.fakes.liar import Liar, serve_liar
from tests.fakes.peer import Forwarded
from tests.support.aftermath import stand
from tests.support.core import EU, US, peer_spec
from tests.support.gateways import counted, until, usable_peers
from tests.support.regions import Mesh
from tests.support.wire import CHAT_BODY, posted, wire

GOOD = b"".join(GOOD_STREAM)
SPEC = peer_spec("eu-1", EU)
DEEP = b'{"choices":' + b"[" * 50_000
WHOLE = {
    "no UTF-8": b'{"choices":[{"message":{"content":"\xff\xfe"},"finish_reason":"stop"}]}',
    "bytes": bytes(range(256)),
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "NaN": b'{"choices":[],"x":NaN}',
    "an endless number": b'{"choices":[],"x":' + b"9" * 10_000 + b"}",
    "deep nesting": DEEP,
    "choices that are none": b'{"choices":{"a":1}}',
    "choices of another kind": b'{"choices":[[1]]}',
    "an end that is a list": b'{"choices":[{"finish_reason":["stop"]}]}',
    "an end that is an object": b'{"choices":[{"finish_reason":{}}]}',
    "half of it": b'{"choices":[{"finish_reason":"stop"}',
    "two of them": b'{"choices":[]}{"choices":[]}',
    "an error in an error": b'{"error":{"error":{"error":[]}}}',
    "a list for an error": b'{"error":[[]]}',
    "a number for an error": b'{"error":1}',
}
STREAMS = {
    "no UTF-8": (b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n',),
    "a list": (b"data: []\n\n",),
    "a number": (b"data: 7\n\n",),
    "null": (b"data: null\n\n",),
    "NaN": (b'data: {"choices":[{"delta":{"content":NaN}}]}\n\n',),
    "deep nesting": (b"data: " + DEEP + b"\n\n",),
    "choices that are none": (event({"choices": "abc"}),),
    "an end that is a list": (event({"choices": [{"delta": {"content": "x"}, "finish_reason": []}]}),),
    "an end that is an object, behind a role": (ROLE, event({"choices": [{"finish_reason": {"a": 1}}]})),
    "no token": (ROLE, DONE),
    "an error that is a number": (event({"error": 5}),),
    "an error of no text": (b"event: error\ndata: \xff\n\n",),
    "an error that is a list": (b"event: error\ndata: []\n\n",),
}
BAD: dict[str, Script] = {
    **{f"whole: {name}": answer(body=body) for name, body in WHOLE.items()},
    **{f"stream: {name}": stream(*events, DONE) for name, events in STREAMS.items()},
}
ODD_USAGES = [
    {"prompt_tokens": 10**30, "completion_tokens": -5},
    {"prompt_tokens": 1e300, "completion_tokens": "many"},
    {"prompt_tokens": [], "completion_tokens": {}, "prompt_tokens_details": 5},
    {"input_tokens": 2**64, "output_tokens": 2**63, "cache_read_input_tokens": 10**40},
    {"prompt_tokens": True},
]


def once(bad: Script) -> Script:
    """Answer the first request with this script, and all later ones well, whichever engine gets them."""
    left = [bad]

    async def script(exchange: Exchange) -> None:
        await (left.pop() if left else stream(*GOOD_STREAM))(exchange)

    return script


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_what_an_engine_gives_for_an_answer_is_had_elsewhere(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], bad: Script
) -> None:
    async with stand(tmp_path, unused_tcp_port_factory, engines=2) as up:
        script = once(bad)
        for engine in up.engines:
            engine.plays(script)
        async with up.session.post(f"{up.gateway.http_url}/v1/chat/completions", data=CHAT_BODY) as response:
            assert (response.status, await response.read()) == (200, GOOD)
        assert sorted(engine.arrived.count for engine in up.engines) == [1, 1]
        assert counted(up.gateway, "attempts_total", target="replica", result="failed") == 1
        assert counted(up.gateway, "attempts_total", target="replica", result="internal") == 0


@pytest.mark.parametrize("usage", ODD_USAGES)
@pytest.mark.parametrize("streams", [False, True])
async def test_an_odd_usage_costs_nobody_anything(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], usage: dict[str, object], streams: bool
) -> None:
    whole = event({"choices": [{"finish_reason": "stop"}], "usage": usage})[6:-2]
    told = (*GOOD_STREAM[:2], chat_chunk({}, "stop"), event({"choices": [], "usage": usage}), DONE)
    async with stand(tmp_path, unused_tcp_port_factory) as up:
        before = counted(up.gateway, "prompt_tokens_total", model="llama")
        up.engine.plays(stream(*told) if streams else answer(body=whole))
        async with up.session.post(f"{up.gateway.http_url}/v1/chat/completions", data=CHAT_BODY) as response:
            assert (response.status, await response.read()) == (200, b"".join(told) if streams else whole)
        assert counted(up.gateway, "prompt_tokens_total", model="llama") == before
        assert not up.gateway.driver.failed.is_set()


# Peers


@pytest.fixture
async def liar() -> AsyncIterator[Liar]:
    async with serve_liar() as made:
        yield made


def says(*data: bytes, status: int = 200, kind: str = "application/json", **more: str) -> Forwarded:
    head = LegHead(status, (("content-type", kind), *more.items()), RanAt(ReplicaId("eu-a"), EU))

    async def script(_: pb.ForwardRequest, context: FrameContext) -> None:
        ended = pb.AnswerFrame(ended=pb.Ended(outcome=Outcome.COMPLETED))
        for message in (answer_frames.accepted(), answer_frames.head(head), *map(answer_frames.data, data), ended):
            await context.write(message)

    return script


SECOND = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
BAD_PEERS: dict[str, Forwarded] = {
    **{f"whole: {name}": says(body) for name, body in WHOLE.items()},
    **{f"stream: {name}": says(*events, DONE, kind="text/event-stream") for name, events in STREAMS.items()},
    "204 with a body": says(SECOND, status=204),
    "204 with a stream": says(GOOD, status=204, kind="text/event-stream"),
    "205 with a body": says(b'{"choices":[]}', status=205),
    "304 with a body": says(SECOND, status=304),
}


@pytest.mark.parametrize("bad", BAD_PEERS.values(), ids=BAD_PEERS)
async def test_what_a_peer_gives_for_an_answer_is_had_at_home(mesh: Mesh, liar: Liar, bad: Forwarded) -> None:
    liar.forwards = bad
    us = await mesh.region("us-1", US)
    us.config = replace(us.config, peers=(liar.fake.config(SPEC),))
    await us.start()
    mesh.on_close(us.stop)
    await us.become_busy()
    await until(lambda: usable_peers(us.gateway) == 1)
    async with wire(us.gateway) as client:
        client.send(posted("connection: close"))
        await until(lambda: counted(us.gateway, "attempts_total", target="peer", result="failed") == 1)
        await us.become_free()
        received = await client.until_closed()
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.count(b"HTTP/1.1") == 1
    assert b"[DONE]" in received
    assert counted(us.gateway, "attempts_total", target="peer", result="internal") == 0

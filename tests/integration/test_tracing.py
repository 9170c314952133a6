"""A request's way through regions as one trace: whole gateways, engines that keep their requests, a collector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import aiohttp
import pytest
from msgspec.structs import replace

from gateway.app.gateway import serve_gateway
from gateway.config.tracing import Protocol, TailConfig, TracingConfig
from gateway.core.vocabulary import Place
from gateway.request.trace_context import SpanName, named_in
from tests.fakes.collector import FakeCollector, Told
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, FakeEngine, answer, stream, stream_and_cut, token
from tests.support.core import AP, EU, LAYERED, MS, SECOND, US, under
from tests.support.gateways import CHAT, region_config, until, write_policy
from tests.support.regions import Mesh, Region, busy_us_and_free_eu, with_a_pool

CANARY = "correct horse battery staple"
CLIENT = SpanName("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", is_sampled=True)
PREFILLED = (
    b'{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"H"},'
    b'"finish_reason":"length"}],"usage":{"prompt_tokens":22,"completion_tokens":1},'
    b'"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_host":"127.0.0.1","remote_port":1}}'
)
TAIL = TailConfig(slow_first_token_ns=None)


@pytest.fixture
async def collector() -> AsyncIterator[FakeCollector]:
    async with FakeCollector().serving() as made:
        yield made


def to(collector: FakeCollector, **changes: object) -> TracingConfig:
    config = TracingConfig(
        endpoint=collector.grpc_url, sampled_share=0.0, tail=TAIL, interval_ns=MS, shutdown_wait_ns=MS
    )
    return replace(config, **changes)


async def ask(session: aiohttp.ClientSession, url: str, **headers: str) -> bytes:
    asked = {**CHAT, "messages": [{"role": "user", "content": CANARY}]}
    async with session.post(f"{url}/v1/chat/completions", json=asked, headers=headers) as response:
        assert response.status == 200
        return await response.read()


def joined(engine: FakeEngine) -> SpanName:
    """Span that the engine's last request names as its parent."""
    named = named_in(tuple(engine.received[-1].headers.items()))
    assert named is not None
    return named


def one(spans: Iterable[Told]) -> Told:
    (found,) = spans
    return found


async def three_regions(mesh: Mesh, tracing: TracingConfig) -> tuple[Region, Region, Region]:
    """Three gateways: the first is busy, the third far away too, so that requests at the first go to the second."""
    places: tuple[Place, ...] = (US, EU, AP)
    us, eu, ap = [await mesh.region(f"{place.region[:2]}-1", place) for place in places]
    for region in (us, eu, ap):
        region.config = replace(region.config, tracing=tracing, core=under(LAYERED, region.config.core))
    await mesh.start(us, eu, ap)
    await ap.become_busy()
    await us.become_busy()
    (heard,) = (state for state in us.gateway.core.peers if state.spec.gateway_id == "ap-1")
    await until(lambda: not any(each.available for each in heard.served))
    return us, eu, ap


async def test_one_trace_from_the_client_through_two_regions_to_an_engine(mesh: Mesh, collector: FakeCollector) -> None:
    us, eu, _ = await three_regions(mesh, to(collector))
    await ask(mesh.session, us.gateway.http_url, traceparent=CLIENT.traceparent, tracestate="a=1", baggage="who=me")
    await collector.has("placement", "placement", "forward", "chat llama", "chat llama", "chat llama")
    spans = collector.spans
    assert {each.trace_id for each in spans} == {CLIENT.trace_id}
    here, there = ([each for each in spans if each.gateway == name] for name in ("us-1", "eu-1"))
    assert len(here) + len(there) == len(spans)
    origin = one(each for each in here if each.name == "chat llama")
    forward = one(each for each in here if each.name == "forward")
    assert origin.parent_id == CLIENT.span_id
    assert forward.parent_id == origin.span_id
    peer, leg = (each for each in there if each.name == "chat llama")
    assert (peer.parent_id, leg.parent_id) == (forward.span_id, peer.span_id)
    assert forward.attributes["nightside.target.id"] == peer.gateway
    assert peer.attributes["nightside.origin.gateway"] == origin.gateway
    assert joined(eu.engine) == replace(CLIENT, span_id=leg.span_id, tracestate="a=1")
    assert "baggage" not in eu.engine.received[-1].headers
    assert leg.attributes["server.port"] == eu.engine.port
    assert len({each.span_id for each in spans}) == len(spans)


async def test_nothing_that_anybody_said_is_in_what_is_exported(mesh: Mesh, collector: FakeCollector) -> None:
    us, _, _ = await three_regions(mesh, to(collector, sampled_share=1.0))
    for engine in (us.engine,):
        engine.plays(stream(*GOOD_STREAM))
    await ask(mesh.session, us.gateway.http_url, authorization="Bearer s3cr3t-k3y", **{"user-agent": "their-agent/7"})
    await collector.has("forward", "chat llama", "chat llama", "chat llama")
    raw = b"".join(collector.raw)
    assert raw.count(b"chat llama") >= 3, "nothing is looked at"
    for said in (CANARY, "correct", "s3cr3t", "their-agent", "Hel", "127.0.0.1:"):
        assert said.encode() not in raw, said
    said_by_engine = [piece for piece in GOOD_STREAM if b'"content"' in piece]
    assert said_by_engine


async def served_in_us(mesh: Mesh, tracing: TracingConfig) -> Region:
    us = await mesh.region("us-1", US)
    us.config = replace(us.config, tracing=tracing)
    await mesh.start(us)
    return us


async def test_a_client_that_is_not_trusted_begins_a_trace_of_ours(mesh: Mesh, collector: FakeCollector) -> None:
    us = await served_in_us(mesh, to(collector, trust_client=False, sampled_share=1.0))
    await ask(mesh.session, us.gateway.http_url, traceparent=CLIENT.traceparent, tracestate="a=1")
    await collector.has("chat llama", "chat llama")
    whole = next(each for each in collector.spans if each.name == "chat llama")
    assert (whole.trace_id != CLIENT.trace_id, whole.parent_id) == (True, "")
    assert one(whole.span.links).trace_id.hex() == CLIENT.trace_id  # type: ignore[arg-type,attr-defined]
    assert joined(us.engine).trace_id == whole.trace_id
    assert "tracestate" not in us.engine.received[-1].headers


@pytest.mark.parametrize("broken", ["00-1-2-01", "caf\xe9", f"{CLIENT.traceparent}-x"])
async def test_a_traceparent_that_is_none_is_replaced(mesh: Mesh, collector: FakeCollector, broken: str) -> None:
    us = await served_in_us(mesh, to(collector, sampled_share=1.0))
    await ask(mesh.session, us.gateway.http_url, traceparent=broken, tracestate="a=1")
    fresh = joined(us.engine)
    assert (fresh.trace_id != CLIENT.trace_id, fresh.is_sampled, fresh.tracestate) == (True, True, "")


async def test_what_a_client_sends_in_two_lines_is_one_list(mesh: Mesh, collector: FakeCollector) -> None:
    us = await served_in_us(mesh, to(collector))
    lines = [("traceparent", CLIENT.traceparent), ("tracestate", "a=1"), ("tracestate", "b=2")]
    url = f"{us.gateway.http_url}/v1/chat/completions"
    async with mesh.session.post(url, json=CHAT, headers=lines) as response:
        await response.read()
    assert joined(us.engine).tracestate == "a=1,b=2"
    async with mesh.session.post(url, json=CHAT, headers=[*lines, lines[0]]) as response:
        await response.read()
    assert joined(us.engine).trace_id != CLIENT.trace_id, "two parents are none"


async def test_where_an_answer_goes_on_its_trace_does(mesh: Mesh, collector: FakeCollector) -> None:
    us = await mesh.region("us-1", US)
    other = await mesh._stack.enter_async_context(FakeEngine().serving())
    us.config = replace(
        region_config("us-1", US, [us.engine.url, other.url], policy_file=write_policy(mesh._folder, US)),
        tracing=to(collector),
    )
    await mesh.start(us)
    for engine in (us.engine, other):
        engine.plays(stream_and_cut(ROLE, token("Hel")), stream(ROLE, token("lo"), STOP, DONE))
    answered = await ask(mesh.session, us.gateway.http_url)
    assert b"went on elsewhere, resume 2" in answered, "each breaks it once"
    await collector.has("pause", "pause")
    whole = next(each for each in collector.spans if each.attributes.get("nightside.kept"))
    assert whole.attributes["nightside.kept"] == "failed"
    legs = [each for each in collector.named("chat llama") if each.parent_id == whole.span_id]
    assert [each.attributes["nightside.leg.result"] for each in legs] == ["failed", "failed", "completed"]
    assert {each.parent_id for each in collector.named("pause")} == {whole.span_id}
    assert [each.attributes["nightside.resume"] for each in collector.named("pause")] == [1, 2]


async def test_two_engines_that_share_a_request_each_have_a_leg(mesh: Mesh, collector: FakeCollector) -> None:
    us = await mesh.region("us-1", US)
    us.config = with_a_pool(replace(us.config, tracing=to(collector, sampled_share=1.0)), us.engine.url)
    await mesh.start(us)
    await until(lambda: us.gateway.core.replicas.available.bit_count() == len(list(us.gateway.core.replicas)))
    us.engine.plays(answer(body=PREFILLED), stream(*GOOD_STREAM))
    url = f"{us.gateway.http_url}/v1/chat/completions"
    async with mesh.session.post(url, json={**CHAT, "model": "pooled"}) as response:
        assert response.status == 200
        await response.read()
    await collector.has("chat pooled", "prefill pooled", "decode pooled")
    whole, legs = one(collector.named("chat pooled")), ("prefill pooled", "decode pooled")
    told = [named_in(tuple(each.headers.items())) for each in us.engine.received]
    assert [each.span_id for each in told if each] == [one(collector.named(name)).span_id for name in legs]
    assert {one(collector.named(name)).parent_id for name in legs} == {whole.span_id}


async def test_a_dead_collector_costs_requests_nothing(mesh: Mesh, unused_tcp_port: int) -> None:
    dead = TracingConfig(endpoint=f"http://127.0.0.1:{unused_tcp_port}", sampled_share=1.0, queue_max=4, batch_max=1)
    us = await served_in_us(mesh, replace(dead, interval_ns=MS, shutdown_wait_ns=MS))
    for _ in range(20):
        assert await ask(mesh.session, us.gateway.http_url) == b"".join(GOOD_STREAM)
    dropped = us.gateway.metrics.registry.get_sample_value("nightside_traces_dropped_total", {"reason": "full"})
    assert dropped is not None
    assert dropped > 0
    async with asyncio.timeout(60):
        await us.stop()


async def test_where_nothing_is_traced_traceparents_pass_as_they_came(mesh: Mesh) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    await ask(mesh.session, us.gateway.http_url, traceparent=CLIENT.traceparent, tracestate="a=1")
    assert joined(eu.engine) == replace(CLIENT, tracestate="a=1")


async def test_a_gateway_that_traces_is_believed_by_one_that_believes_no_client(
    mesh: Mesh, collector: FakeCollector
) -> None:
    us, eu = await busy_us_and_free_eu(mesh, tracing=to(collector, trust_client=False, sampled_share=1.0))
    await ask(mesh.session, us.gateway.http_url, traceparent=CLIENT.traceparent)
    await collector.has("forward", "chat llama", "chat llama", "chat llama")
    assert len({each.trace_id for each in collector.spans}) == 1
    assert joined(eu.engine).trace_id == collector.spans[0].trace_id


async def test_over_http_as_well(mesh: Mesh, collector: FakeCollector) -> None:
    tracing = to(collector, endpoint=collector.http_url, protocol=Protocol.HTTP, sampled_share=1.0)
    us = await served_in_us(mesh, tracing)
    await ask(mesh.session, us.gateway.http_url)
    await collector.has("chat llama", "chat llama", "placement", "first_token")
    assert {each.gateway for each in collector.spans} == {"us-1"}


async def test_what_is_left_is_sent_at_the_end(mesh: Mesh, collector: FakeCollector) -> None:
    us = await mesh.region("us-1", US)
    slow = to(collector, sampled_share=1.0, interval_ns=3600 * SECOND, shutdown_wait_ns=60 * SECOND)
    config = replace(us.config, tracing=slow)
    async with serve_gateway(config) as gateway:
        await until(lambda: gateway.core.replicas.available.bit_count() == 1)
        await ask(mesh.session, gateway.http_url)
        assert collector.raw == []
    await collector.has("chat llama", "chat llama")

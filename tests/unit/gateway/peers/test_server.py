from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from msgspec.structs import replace

from gateway.config.sections import PeeringConfig
from gateway.core.kernel.attempts import BreakerState
from gateway.core.kernel.events import DrainRequested
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    LoadReport,
    Place,
    RefusalReason,
    RequestId,
    ResidencyStamp,
)
from gateway.peers import codec, server
from gateway.peers.caller_refusal import CallerRefusal
from gateway.peers.server import SERVICE_NAME
from gateway.request.bodies import read_body
from gateway.request.cache_salts import CacheSalts
from gateway.request.legs import LegFailure
from mesh.clock import Clock
from protos.mesh.v1 import peer_pb2 as pb
from tests.support.callee import BODY, CALLER, HEAD, LAST, SIBLING, TOKEN, Callee, serve
from tests.support.core import AP, EU, MS, SECOND, TENANT, US, rule
from tests.support.orders import forward_order

PEERING = PeeringConfig()


@pytest.fixture
async def callee() -> AsyncIterator[Callee]:
    async with serve(PEERING) as made:
        yield made


async def test_a_forward_runs_here_and_streams_back(callee: Callee) -> None:
    for chunk in (TOKEN, TOKEN, LAST, None):
        callee.engine.chunks.put_nowait(chunk)
    async with callee.forward() as leg:
        assert leg.head == replace(HEAD, attempt=1), "the head says where it ran"
        assert b"".join([chunk async for chunk in leg.chunks()]) == TOKEN + TOKEN + LAST
    (asked,) = callee.engine.asked
    assert (asked.body, asked.path) == (BODY, "/v1/completions")


async def test_the_head_comes_with_the_first_byte_and_never_before(callee: Callee) -> None:
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(callee.read())
        await callee.engine.opened.wait()
        await callee.accepted.wait()
        assert not reading.done()
        for chunk in (TOKEN, LAST, None):
            callee.engine.chunks.put_nowait(chunk)
    assert b"".join(reading.result()) == TOKEN + LAST


async def test_what_came_with_an_error_crosses_before_it(callee: Callee) -> None:
    callee.engine.chunks.put_nowait(TOKEN)
    async with callee.forward() as leg:
        chunks = leg.chunks()
        assert await anext(chunks) == TOKEN
        callee.engine.chunks.put_nowait(TOKEN + b'data: {"error":{"message":"oops","code":500}}\n\n')
        assert await anext(chunks) == TOKEN
        with pytest.raises(LegFailure):
            await anext(chunks)


async def test_a_large_body_travels_in_parts_below_the_message_limit() -> None:
    async with serve(replace(PEERING, message_max_bytes=512 * 1024)) as callee:
        large = TOKEN.replace(b"x", b"y" * 2**20)
        for chunk in (TOKEN, large, LAST, None):
            callee.engine.chunks.put_nowait(chunk)
        assert b"".join(await callee.read()) == TOKEN + large + LAST


async def test_leaving_cancels_the_request_down_to_the_engine(callee: Callee) -> None:
    callee.engine.chunks.put_nowait(TOKEN)
    async with callee.forward() as leg:
        assert await anext(leg.chunks()) == TOKEN
    await callee.engine.closed.wait()


async def test_the_calls_deadline_ends_the_request() -> None:
    async with serve(PEERING) as callee:
        order = replace(forward_order(), deadline_ns=Clock().now_ns() + SECOND // 20)
        failure = await callee.failure(order)
        assert failure.result is LegResult.FAILED
        assert "expired" in failure.detail
        await callee.engine.closed.wait()


async def test_an_engine_that_dies_midway_is_told_as_such(callee: Callee) -> None:
    callee.engine.chunks.put_nowait(TOKEN)
    callee.engine.chunks.put_nowait(None)
    failure = await callee.failure()
    assert failure.result is LegResult.FAILED
    assert "failed_midstream" in failure.detail


async def test_a_refusal_of_the_core_is_the_first_word(callee: Callee) -> None:
    stamp = ResidencyStamp(US, TENANT, rule(US), "digest")
    failure = await callee.failure(forward_order(stamp=stamp))
    assert (failure.result, failure.refusal) == (LegResult.REFUSED, RefusalReason.RESIDENCY_STAMP)
    callee.driver.submit(DrainRequested())
    failure = await callee.failure()
    assert (failure.result, failure.refusal) == (LegResult.REFUSED, RefusalReason.DRAINING)
    assert callee.engine.asked == []


async def test_the_same_request_twice_is_refused(callee: Callee) -> None:
    callee.engine.chunks.put_nowait(TOKEN)
    async with callee.forward() as leg:
        assert await anext(leg.chunks()) == TOKEN
        assert (await callee.failure()).refusal is RefusalReason.DUPLICATE


async def test_forwards_at_once_are_bounded_and_leave_room_when_they_go() -> None:
    async with serve(replace(PEERING, forwards_max=1)) as callee:
        callee.engine.chunks.put_nowait(TOKEN)
        async with callee.forward() as leg:
            assert await anext(leg.chunks()) == TOKEN
            assert (await callee.failure(forward_order("r-2"))).refusal is RefusalReason.BUSY
        await callee.engine.closed.wait()
        callee.engine.chunks.put_nowait(TOKEN + LAST)
        callee.engine.chunks.put_nowait(None)
        assert await callee.read(forward_order("r-3")) == [TOKEN + LAST]


async def test_what_forwards_hold_is_bounded_and_there_is_room_when_they_go() -> None:
    """One running forward leaves no room for another: each counts with its stated size."""
    bounds = replace(PEERING, message_max_bytes=2**16, forwards_held_max_bytes=300, forwards_held_peer_max_bytes=300)
    async with serve(bounds) as callee:
        callee.engine.chunks.put_nowait(TOKEN)
        async with callee.forward() as leg:
            assert await anext(leg.chunks()) == TOKEN
            failure = await callee.failure(forward_order("r-2"))
            assert (failure.result, failure.refusal) == (LegResult.REFUSED, RefusalReason.BUSY)
        await callee.engine.closed.wait()
        callee.engine.chunks.put_nowait(TOKEN + LAST)
        callee.engine.chunks.put_nowait(None)
        assert await callee.read(forward_order("r-3")) == [TOKEN + LAST]


@pytest.mark.parametrize(
    "gateway_id,origin,refusal",
    [("eu-9", US, RefusalReason.RESIDENCY_NOT_ACCEPTED), ("us-1", AP, RefusalReason.RESIDENCY_STAMP)],
)
async def test_strangers_run_nothing_here(
    callee: Callee, gateway_id: str, origin: Place, refusal: RefusalReason
) -> None:
    stamp = ResidencyStamp(origin, TENANT, rule(EU), "digest")
    assert (await callee.failure(forward_order(stamp=stamp), GatewayId(gateway_id))).refusal is refusal
    assert callee.engine.asked == []


async def test_a_malformed_forward_is_an_error_of_its_sender(callee: Callee) -> None:
    failure = await callee.failure(gateway_id=GatewayId("us 1"))
    detail = "INVALID_ARGUMENT: origin_gateway_id is not an id"
    assert failure == LegFailure(LegResult.REFUSED, detail, RefusalReason.BUSY)
    assert callee.engine.asked == []
    assert callee.malformed == [""], "nobody knows whose it is"


async def test_a_body_that_no_door_lets_in_is_its_senders_fault_and_no_engine_hears_of_it(callee: Callee) -> None:
    callee.body = BODY.replace(b"{", b'{"kv_transfer_params": {"do_remote_prefill": true}, ')
    failure = await callee.failure()
    assert failure.result is LegResult.REFUSED, "an origin takes it for a fault of its own"
    assert failure.detail.startswith("INVALID_ARGUMENT: the body is not one that a gateway lets in")
    assert "kv_transfer_params" in failure.detail
    assert (callee.engine.asked, callee.malformed) == ([], [CALLER])
    (replica,) = callee.core.replicas
    assert replica.breaker.state is BreakerState.CLOSED
    callee.body = BODY
    for chunk in (TOKEN, LAST, None):
        callee.engine.chunks.put_nowait(chunk)
    assert b"".join(await callee.read()) == TOKEN + LAST


async def test_a_priority_that_engines_here_do_not_schedule_by_is_refused_as_no_fault(callee: Callee) -> None:
    callee.body = BODY.replace(b"{", b'{"priority": 1, ')
    failure = await callee.failure()
    assert (failure.result, failure.refusal) == (LegResult.REFUSED, RefusalReason.BUSY)
    assert "priority" in failure.detail
    assert (callee.engine.asked, callee.malformed) == ([], [])


async def test_each_tenant_has_a_salt_of_its_own_here_too(callee: Callee) -> None:
    for chunk in (TOKEN, LAST, None):
        callee.engine.chunks.put_nowait(chunk)
    await callee.read()
    (asked,) = callee.engine.asked
    body = read_body(asked.path, BODY, passes_priority=False)
    assert asked.cache_salt == CacheSalts().salt(TENANT, body.salt, body)
    assert asked.cache_salt is not None


async def heard(call: grpc.aio.UnaryStreamCall[pb.SubscribeRequest, pb.SubscribeResponse]) -> LoadReport:
    while isinstance(message := await call.read(), pb.SubscribeResponse) and message.is_sign_of_life:
        pass
    assert isinstance(message, pb.SubscribeResponse)
    return codec.read_load(message)[0]


async def test_a_subscriber_hears_of_each_change(callee: Callee) -> None:
    call = callee.link.stub.Subscribe(codec.subscribe_request(CALLER, US))
    while not (report := await heard(call)).accepting:
        pass
    assert (report.gateway_id, report.place, report.policy_digest) == ("eu-1", EU, "policy-of-eu-west-1")
    callee.driver.submit(DrainRequested())
    while (await heard(call)).accepting:
        pass
    call.cancel()


async def test_a_busy_gateway_gives_signs_of_life_beside_its_reports(
    callee: Callee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lateness of a link is learnt from these alone, since their interval is known."""
    monkeypatch.setattr(server, "BEAT_NS", 20 * MS)
    call = callee.link.stub.Subscribe(codec.subscribe_request(CALLER, US))
    report = await heard(call)

    async def post() -> None:
        while True:
            callee.board.post(report, 0)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as tasks:
        posting = tasks.create_task(post())
        while isinstance(message := await call.read(), pb.SubscribeResponse) and not message.is_sign_of_life:
            pass
        posting.cancel()
    assert message == pb.SubscribeResponse(is_sign_of_life=True)
    call.cancel()


async def test_closing_the_board_ends_subscriptions(callee: Callee) -> None:
    call = callee.link.stub.Subscribe(codec.subscribe_request(CALLER, US))
    await call.read()
    callee.board.close()
    while isinstance(await call.read(), pb.SubscribeResponse):
        pass
    assert await call.code() is grpc.StatusCode.OK


async def test_subscribers_are_bounded_and_leave_room_when_they_go() -> None:
    async with serve(PeeringConfig(subscribers_max=1)) as callee:
        first = callee.link.stub.Subscribe(codec.subscribe_request(CALLER, US))
        await first.read()
        second = callee.link.stub.Subscribe(codec.subscribe_request(CALLER, US))
        with pytest.raises(grpc.aio.AioRpcError, match="too many subscribers"):
            await second.read()
        first.cancel()
        while not await subscribes(callee):
            pass


async def test_one_peer_takes_no_other_peers_place(callee: Callee) -> None:
    taken = [callee.link.stub.Subscribe(codec.subscribe_request(CALLER, US)) for _ in range(8)]
    for call in taken:
        await call.read()
    with pytest.raises(grpc.aio.AioRpcError, match="too many subscriptions of one gateway"):
        await callee.link.stub.Subscribe(codec.subscribe_request(CALLER, US)).read()
    other = callee.link.stub.Subscribe(codec.subscribe_request(SIBLING, US))
    assert (await heard(other)).gateway_id == "eu-1"
    taken[0].cancel()
    while not await subscribes(callee):
        pass
    for call in (*taken, other):
        call.cancel()


async def subscribes(callee: Callee) -> bool:
    call = callee.link.stub.Subscribe(codec.subscribe_request(CALLER, US))
    try:
        return isinstance(await call.read(), pb.SubscribeResponse)
    except grpc.aio.AioRpcError:
        return False
    finally:
        call.cancel()


async def test_strangers_hear_nothing(callee: Callee) -> None:
    for gateway_id, place in (("eu-9", US), ("us-1", AP)):
        call = callee.link.stub.Subscribe(codec.subscribe_request(GatewayId(gateway_id), place))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert callee.refusals == [CallerRefusal.NOT_A_PEER, CallerRefusal.IDENTITY]


async def test_health_is_served_and_ends_with_the_drain(callee: Callee) -> None:
    async with grpc.aio.insecure_channel(str(callee.link.peer.address)) as channel:
        check: grpc.aio.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        for service in ("", SERVICE_NAME):
            answer = await check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await callee.server.drain()
        answer = await check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_taken_port_is_an_error_not_a_shared_port(callee: Callee) -> None:
    async with serve(PeeringConfig()) as other:
        with pytest.raises(OSError, match="cannot listen on"):
            await other.server.start(callee.link.peer.address)


async def test_a_decision_is_explained_and_any_other_is_not_found(callee: Callee) -> None:
    answer = await callee.link.stub.Explain(codec.explain_request(CALLER, RequestId("r-1")))
    assert codec.read_explained(answer).origin == CALLER
    for question in (
        codec.explain_request(CALLER, RequestId("r-2")),
        codec.explain_request(GatewayId("ap-1"), RequestId("r-1")),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await callee.link.stub.Explain(question)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await callee.link.stub.Explain(pb.ExplainRequest(gateway_id="not an id", request_id="r-1"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_gateway_that_must_take_nothing_says_why(callee: Callee) -> None:
    callee.closed_because.append("the audit record cannot be written")
    failure = await callee.failure()
    assert (failure.refusal, failure.detail) == (RefusalReason.BUSY, "the audit record cannot be written")
    assert callee.engine.asked == []


@pytest.mark.parametrize("method", ["Ping", "Explain", "Ownership", "Subscribe"])
async def test_bytes_that_are_no_message_are_refused_and_no_error_of_ours(
    callee: Callee, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with grpc.aio.insecure_channel(str(callee.link.peer.address)) as channel:
        kind: Any = channel.unary_stream if method == "Subscribe" else channel.unary_unary
        for _ in range(3):
            call = kind(f"/{SERVICE_NAME}/{method}")(b"\xff\xff")
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records

"""A real gateway's end of an exchange, with another gateway's connection to it: sharing a stream, moving to a new one,
and breaking off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from gateway.config.sections import PeeringConfig
from gateway.core.kernel.effects import StartLeg
from gateway.core.vocabulary import LegResult, RefusalReason
from gateway.request.legs import STOPPED, LegFailure, LegHandle, LegListener, OutboundRequest
from protos.mesh.v1 import peer_pb2 as pb
from tests.support.background import in_background
from tests.support.callee import BODY, HEAD, LAST, TOKEN, Callee
from tests.support.callee import serve as serve_with
from tests.support.core import MS, SECOND
from tests.support.gateways import until
from tests.support.legs import OpenLeg
from tests.support.orders import forward_order

PIECE = TOKEN.replace(b'"x"', b'"' + b"y" * 4000 + b'"')


async def pinging(callee: Callee) -> None:
    """Ping for ever, as a gateway does: a ping opens the next connection once the open one is old."""
    while True:
        await callee.link.stub.Ping(pb.PingRequest())
        await asyncio.sleep(0.02)


class Gate:
    """Holds answers after their first token until it is set."""

    def __init__(self) -> None:
        self._held: list[Callable[[], None]] | None = []

    def holds(self, go_on: Callable[[], None]) -> bool:
        """True if the gate is closed; `go_on` is called once it opens."""
        if self._held is None:
            return False
        self._held.append(go_on)
        return True

    def set(self) -> None:
        held, self._held = self._held, None
        for go_on in held or ():
            go_on()


class Answer:
    """Leg at an engine that answers at once: a token, `pieces` further pieces once the gate opens, and the end. It
    hands on one piece each turn of the loop, while its request has room."""

    def __init__(self, engines: Engines, listener: LegListener, gate: Gate | None, pieces: int) -> None:
        self._engines = engines
        self._listener = listener
        self._gate = gate
        self._chunks = deque([TOKEN, *[PIECE] * pieces, LAST])
        self.is_paused = self._has_head = False
        self.is_over = False
        self.pauses = 0
        asyncio.get_running_loop().call_soon(self._tell)

    def stop(self) -> None:
        if not self.is_over:
            self._finish()
            self._listener.on_failed(STOPPED)

    def pause(self) -> None:
        assert not self.is_paused
        self.is_paused = True
        self.pauses += 1

    def resume(self) -> None:
        assert self.is_paused
        self.is_paused = False
        asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        if self.is_over or self.is_paused:
            return
        if not self._has_head:
            self._has_head = True
            self._listener.on_accepted()
            self._listener.on_head(HEAD)
        elif self._gate is not None and self._gate.holds(self._tell):
            return
        if self._chunks:
            self._listener.on_data(self._chunks.popleft())
            asyncio.get_running_loop().call_soon(self._tell)
        else:
            self._finish()
            self._listener.on_end(None)
        self._engines.turn_over()

    def _finish(self) -> None:
        self.is_over = True
        self._engines.open_legs -= 1


class Engines:
    """Engines in place of the scripted one: they take every request at once, each with an answer of its own."""

    def __init__(self, gate: Gate | None = None, pieces: Callable[[str], int] = lambda _: 0) -> None:
        self.open_legs = 0
        self.legs: list[Answer] = []
        self.turn_over: Callable[[], None] = lambda: None
        self._gate = gate
        self._pieces = pieces

    def open(self, order: StartLeg, request: OutboundRequest, listener: LegListener) -> LegHandle:
        self.open_legs += 1
        self.legs.append(Answer(self, listener, self._gate, self._pieces(request.profile.request_id)))
        return self.legs[-1]


@asynccontextmanager
async def serve(peering: PeeringConfig, engines: Engines) -> AsyncIterator[Callee]:
    async with serve_with(peering, engines) as callee:
        engines.turn_over = callee.driver.run
        yield callee


async def whole(callee: Callee, number: int) -> bytes:
    return b"".join(await callee.read(forward_order(f"r-{number}")))


def reads_nothing(callee: Callee, order: StartLeg) -> OpenLeg:
    """A forward whose origin reads nothing beyond the head of its answer."""
    leg = OpenLeg()
    leg.on_told = lambda name: leg.handle.pause() if name == "head" else None
    return callee.open(order, leg=leg)


async def until_at_rest(callee: Callee, engines: Engines) -> None:
    reception, room = callee.service.reception, callee.service.room
    await until(lambda: not (callee.driver.open_requests or engines.open_legs or reception.forwards or room.peers))


async def test_500_forwards_on_a_stream_that_is_killed_each_end_once_and_leave_no_count_slot_or_byte() -> None:
    engines = Engines(gate=Gate())
    async with serve(PeeringConfig(), engines) as callee:
        failures: list[LegFailure] = []

        async def client(number: int) -> None:
            order = forward_order(f"r-{number}")
            order.deadline_ns += 170 * SECOND  # a slow machine takes its time to begin so many
            try:
                async with callee.forward(order) as leg:
                    begun.append(number)
                    async for _ in leg.chunks():
                        pass
            except LegFailure as failure:
                failures.append(failure)

        begun: list[int] = []
        async with asyncio.TaskGroup() as tasks:
            for number in range(500):
                tasks.create_task(client(number))
                if number % 50 == 49:  # all at once, the last would be accepted too late
                    await until(lambda: len(begun) + len(failures) == number + 1)  # noqa: B023 - awaited at once
            assert failures == []
            assert callee.service.callers.streams == 1
            await callee.server.stop(0)
        assert len(failures) == 500
        assert {failure.result for failure in failures} == {LegResult.FAILED}
        await until_at_rest(callee, engines)
        assert len(engines.legs) == 500
        assert callee.service.callers.streams == 0


async def test_a_stalled_reader_holds_its_own_engine_and_no_other_forward() -> None:
    """The 199 streams beside a leg that reads nothing end, and the bytes held for that leg are bounded."""
    sizes = {"r-0": 1000}
    engines = Engines(pieces=lambda request_id: sizes.get(request_id, 3))
    async with serve(PeeringConfig(), engines) as callee:
        stalled = reads_nothing(callee, forward_order("r-0"))
        await stalled.until_head()
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(whole(callee, number)) for number in range(1, 200)]
        assert {task.result() for task in others} == {TOKEN + 3 * PIECE + LAST}
        assert engines.open_legs == 1
        await until(lambda: engines.legs[0].is_paused)
        stalled.handle.resume()
        await stalled.until_over()
        assert stalled.body == TOKEN + 1000 * PIECE + LAST
        assert engines.legs[0].pauses > 1, "it held its engine again and again"
        await until_at_rest(callee, engines)


async def test_new_forwards_move_to_new_streams_as_connections_age_and_nothing_is_lost() -> None:
    """Runs under load; an old stream ends with its last forward, and a long forward keeps its own. At rest none keeps a
    connection open that takes no new calls."""
    aged = PeeringConfig(connection_age_ns=200 * MS)
    gate = Gate()
    engines = Engines(pieces=lambda _: 2)
    async with serve(aged, engines) as callee, in_background(pinging(callee)):
        seen: set[object] = set()
        callers = callee.service.callers
        engines._gate = gate
        async with asyncio.TaskGroup() as tasks:
            long = tasks.create_task(whole(callee, 0))
            await until(lambda: engines.open_legs == 1)
            engines._gate = None
            number = 0
            while len(seen) < 6:
                number += 10
                batch = [tasks.create_task(whole(callee, number + each)) for each in range(10)]
                await asyncio.wait(batch)
                assert {task.result() for task in batch} == {TOKEN + 2 * PIECE + LAST}
                seen |= {stream for each in callers._callers.values() for stream in each.streams}
            gate.set()
        assert long.result() == TOKEN + 2 * PIECE + LAST
        await until(lambda: callers.streams == 0)
        await until_at_rest(callee, engines)


async def test_a_gateway_that_stops_lets_what_runs_end_and_takes_nothing_new_on_the_stream() -> None:
    gate = Gate()
    engines = Engines(gate=gate)
    async with serve(PeeringConfig(), engines) as callee:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(whole(callee, 1))
            await until(lambda: engines.open_legs == 1)
            stopping = tasks.create_task(callee.server.stop(30.0))
            await until(lambda: callee.link.carrier._stream is None or callee.link.carrier._stream.is_retiring)
            assert not stopping.done()
            gate.set()
        assert running.result() == TOKEN + LAST


async def test_a_body_of_8_mib_comes_in_pieces_beside_chats_that_overtake_it() -> None:
    engines = Engines()
    async with serve(PeeringConfig(), engines) as callee:
        await whole(callee, 0)
        ended: list[str] = []

        async def ask(number: int, body: bytes) -> None:
            callee.body = body
            assert await whole(callee, number) == TOKEN + LAST
            ended.append("large" if len(body) > 2**20 else "chat")

        async with asyncio.TaskGroup() as tasks:
            large = BODY.replace(b"hello", b"h" * (8 << 20))
            tasks.create_task(ask(1, large))
            await asyncio.sleep(0)
            for number in range(2, 22):
                tasks.create_task(ask(number, BODY))
        assert ended == ["chat"] * 20 + ["large"]


async def test_a_request_for_which_there_is_no_room_is_refused_before_it_is_sent() -> None:
    small = PeeringConfig(message_max_bytes=2**21, forwards_held_max_bytes=2**20, forwards_held_peer_max_bytes=2**20)
    async with serve(small, Engines()) as callee:
        callee.body = BODY.replace(b"hello", b"h" * (3 << 19))
        failure = await callee.failure()
        assert (failure.result, failure.refusal) == (LegResult.REFUSED, RefusalReason.BUSY)
        assert failure.detail == "too much is held for other gateways"
        callee.body = BODY
        assert await whole(callee, 2) == TOKEN + LAST


async def test_an_error_of_ours_ends_one_forward_and_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(PeeringConfig(), Engines()) as callee:

        def stumble(*_: object) -> None:
            raise ZeroDivisionError("ours")

        with monkeypatch.context() as patched:
            patched.setattr(callee.service.reception, "request_of", stumble)
            failure = await callee.failure(forward_order("r-1"))
        assert (failure.result, failure.refusal) == (LegResult.REFUSED, RefusalReason.BUSY)
        assert [type(each) for each in callee.faults] == [ZeroDivisionError]
        assert await whole(callee, 2) == TOKEN + LAST
        assert callee.service.callers.streams == 1


async def test_an_answer_that_nobody_takes_is_dropped_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.peers.exchange.serving_stream._UNREAD_GRACE_S", 0.05)
    engines = Engines(pieces=lambda _: 200)
    async with serve(PeeringConfig(), engines) as callee:
        order = replace(forward_order("r-1"), deadline_ns=forward_order().deadline_ns - 30 * SECOND + 200 * MS)
        stalled = reads_nothing(callee, order)
        await stalled.until_head()
        assert stalled.head.status == 200
        await until(lambda: engines.open_legs == 0)
        await until_at_rest(callee, engines)
        stalled.handle.stop()

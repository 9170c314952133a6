from __future__ import annotations

import asyncio
import io
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.core.vocabulary import GatewayId
from gateway.takeover.messages import (
    AccountMessage,
    FromSuccessor,
    Passed,
    Released,
    TakeoverOffer,
    TakeoverReady,
    UsageMessage,
    UsageRow,
)
from gateway.takeover.predecessor import Predecessor
from gateway.takeover.successor import Successor
from gateway.takeover.wire import CounterpartGone, TakeOverFault, Wire
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.values import Address
from tests.support.gateways import until
from tests.support.programs import ROOT

GATEWAY = GatewayId("us-1")
HELD = [AccountMessage("key", "a", 7)]

OTHER_PROCESS = """
import sys, time
from pathlib import Path
from gateway.takeover.messages import VERSION, TakeoverHello, Left, TakeoverReady, Serving
from gateway.takeover.wire import connect_to

wire = connect_to(Path(sys.argv[1]))
wire.send(TakeoverHello(VERSION, "us-1"))
wire.receive_sockets(60)
for step in sys.argv[2:]:
    {"ready": lambda: wire.send(TakeoverReady("/audit")), "serving": lambda: wire.send(Serving()),
     "released": lambda: wire.receive_sockets(60), "nonsense": lambda: wire._socket.send(b"\\0\\0\\0\\1x"),
     "stall": lambda: time.sleep(600)}[step]()
"""


class FakeEstate:
    def __init__(self) -> None:
        self.reason = ""
        self.steps: list[str] = []
        self.fault: Exception | None = None
        """Error of the estate itself, raised once it has released a part."""
        self.hangs = False

    def why_not(self) -> str:
        return self.reason

    def offer(self) -> tuple[TakeoverOffer, list[socket.socket]]:
        listening = socket.create_server(("127.0.0.1", 0))
        return TakeoverOffer([Passed("http", "127.0.0.1:0")], ("127.0.0.1:0", "127.0.0.1:7070")), [listening]

    async def release(self, ready: TakeoverReady) -> Released:
        self.steps.append("released")
        assert ready.audit == "/audit"
        if self.fault is not None:
            raise self.fault
        if self.hangs:
            await asyncio.Event().wait()
        return Released(HELD)

    async def take_back(self) -> None:
        self.steps.append("taken back")

    def give_to(self, successor: Wire[FromSuccessor]) -> None:
        self.steps.append("given")
        successor.send(UsageMessage([UsageRow("2026-11-22", "a", "acme", 1, 22, 0, 6)], []))


class World:
    def __init__(self, folder: Path, **limits: float) -> None:
        self.path, self.estate, self.stream = folder / "us-1.takeover.sock", FakeEstate(), io.StringIO()
        self.log = make_logger(LoggingConfig(format=LogFormat.JSON), GATEWAY, self.stream)
        own = {"release_max_s": 60.0, "serving_max_s": 60.0, **limits}
        self.predecessor = Predecessor(self.path, GATEWAY, self.estate, self.log, **own)

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.stream.getvalue().splitlines()]

    async def other_process(self, *steps: str) -> int | None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OTHER_PROCESS, self.path, *steps, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait()


@asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(world.predecessor.run())
        try:
            yield
        finally:
            task.cancel()
            world.predecessor.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    async with running(made):
        yield made


async def test_one_that_stalls_once_it_has_all_is_ended_and_all_is_taken_back(tmp_path: Path) -> None:
    world = World(tmp_path, serving_max_s=0.1)
    async with running(world):
        assert await world.other_process("ready", "released", "stall") == -9
        await until(lambda: world.events()[-1:] == ["takeover_failed"])
        assert world.estate.steps == ["released", "taken back"]
        assert world.events() == ["takeover_started", "takeover_release_started", "takeover_failed"]


async def test_a_fault_of_its_own_while_it_lets_go_is_taken_back_as_well(world: World) -> None:
    world.estate.fault = AssertionError("a fault")
    assert await world.other_process("ready", "stall") == -9
    await until(lambda: world.events()[-1:] == ["takeover_failed"])
    assert world.estate.steps == ["released", "taken back"]
    world.estate.fault = None
    await world.other_process("ready", "released", "serving")
    await world.predecessor.has_left.wait()


async def test_one_that_does_not_let_go_in_time_takes_all_back(tmp_path: Path) -> None:
    world = World(tmp_path, release_max_s=0.1)
    world.estate.hangs = True
    async with running(world):
        assert await world.other_process("ready", "stall") == -9
        await until(lambda: world.events()[-1:] == ["takeover_failed"])
        assert world.estate.steps == ["released", "taken back"]
        assert "has not let go in time" in world.stream.getvalue()


@pytest.mark.parametrize(
    ("steps", "taken_back"),
    [
        ([], []),
        (["serving"], []),
        (["nonsense"], []),
        (["ready", "released", "nonsense"], ["released", "taken back"]),
        (["ready", "released", "ready"], ["released", "taken back"]),
        (["ready", "released"], ["released", "taken back"]),
    ],
    ids=" ".join,
)
async def test_one_that_ends_or_misspeaks_changes_nothing_and_the_next_may_come(
    world: World, steps: list[str], taken_back: list[str]
) -> None:
    await world.other_process(*steps)
    await until(lambda: world.events()[-1:] == ["takeover_failed"])
    assert ("takeover_release_started" in world.events()) == bool(taken_back)
    assert world.estate.steps == taken_back
    await world.other_process("ready", "released", "serving")
    await world.predecessor.has_left.wait()
    assert world.estate.steps == [*taken_back, "released", "given"]


class Heir:
    def __init__(self) -> None:
        self.used: list[UsageMessage] = []

    def take_used(self, used: UsageMessage) -> None:
        self.used.append(used)

    def take_lines(self, lines: list[bytes]) -> None:
        raise AssertionError("there are none")


async def test_both_sides_come_to_an_end(world: World) -> None:
    successor = await asyncio.to_thread(Successor.begin, world.path, GATEWAY)
    assert successor is not None
    asked = Address("127.0.0.1", 0)
    assert [successor.has(role, asked) for role in ("http", "admin")] == [True, False]
    assert successor.listening("http", Address("127.0.0.1", 1)) == []
    (listening,) = successor.listening("http", asked)
    listening.close()
    assert successor.peers_address(asked) == Address("127.0.0.1", 7070)
    assert successor.peers_address(Address("127.0.0.2", 0)) == Address("127.0.0.2", 0)
    assert await successor.until_released("/audit") == HELD
    successor.say_serving()
    await world.predecessor.has_left.wait()
    assert successor.requests_left == 0
    world.predecessor.close()
    heir = Heir()
    await successor.follow(heir, world.log)
    assert heir.used == [UsageMessage([UsageRow("2026-11-22", "a", "acme", 1, 22, 0, 6)], []), UsageMessage([], [])]
    assert successor.requests_left is None
    successor.close()


async def test_one_that_misspeaks_once_it_has_let_go_is_listened_to_no_more(world: World) -> None:
    successor = await asyncio.to_thread(Successor.begin, world.path, GATEWAY)
    assert successor is not None
    await successor.until_released("/audit")
    successor.say_serving()
    await world.predecessor.has_left.wait()
    before = world.predecessor.successor
    assert before is not None
    before.send(Released([]))
    await successor.follow(Heir(), world.log)
    assert successor.requests_left is None
    with pytest.raises(CounterpartGone):
        before.send(UsageMessage([], []))
    successor.close()


async def test_a_reason_that_comes_up_while_the_other_loads_is_told(world: World) -> None:
    successor = await asyncio.to_thread(Successor.begin, world.path, GATEWAY)
    assert successor is not None
    world.estate.reason = "it is ending"
    with pytest.raises(TakeOverFault, match="refuses: it is ending"):
        await successor.until_released("/audit")
    successor.close()
    assert world.estate.steps == []


async def test_one_at_a_time(world: World) -> None:
    first = await asyncio.to_thread(Successor.begin, world.path, GATEWAY)
    assert first is not None
    with pytest.raises(TakeOverFault, match="does another take over already"):
        await asyncio.to_thread(Successor.begin, world.path, GATEWAY, answer_max_s=0.05)
    first.close()

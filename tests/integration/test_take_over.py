"""One process of a gateway takes over from another while clients come, stream and stay connected; and the result where
one of the two fails midway.
"""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import dns.asyncquery
import dns.message
import pytest
import yaml

from controller.app import serve_controller
from gateway.app.takeover import socket_path
from gateway.core.vocabulary import GatewayId
from gateway.security.keys_editing import add_key
from gateway.takeover.messages import VERSION, TakeoverHello, TakeoverRefused
from gateway.takeover.wire import connect_to
from mesh.clock import Clock
from tests.fakes.engine import GOOD_STREAM, Exchange, FakeEngine, answer, stream, stream_until
from tests.support.certificates import Files, clients_leaf, new_ca, roots_of
from tests.support.controllers import read_file
from tests.support.core import EU, US
from tests.support.gateways import CHAT, ask, until
from tests.support.processes import Process, gateway_process, region_file, two_regions
from tests.support.programs import ROOT, AnyProcess, nightside, started

GATEWAY = GatewayId("us-1")
BODY = json.dumps(CHAT).encode()
WHOLE = b"".join(GOOD_STREAM)


def lone(folder: Path, engine: FakeEngine, **more: object) -> Path:
    own = {"state": {"folder": str(folder / "state")}, "limits": {"drain": "5m"}, "probes": {"interval": "20ms"}}
    return region_file(folder, GATEWAY, US, engine, **{**own, **more})


def at(folder: Path) -> Path:
    return socket_path(folder / "state", GATEWAY)


@asynccontextmanager
async def taking_over(file: Path, *, fresh: bool = False) -> AsyncIterator[Process]:
    """The new process, once it serves."""
    async with gateway_process(file, "--take-over", fresh=fresh) as process:
        yield process


async def refused(file: Path) -> str:
    """Reason why a process does not take over."""
    status, _, err = await nightside("gateway", "run", file, "--take-over")
    assert status == 1
    return err.splitlines()[-1]


@dataclass
class Client:
    """Client that keeps its connection for as long as the gateway does, and never retries: a failure fails the test."""

    url: str
    tls: ssl.SSLContext | None = None
    headers: str = ""
    answered: int = 0
    connections: int = 0
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, repr=False)

    async def ask(self) -> bytes:
        """Body of one chat request, to its last byte."""
        await self.begin()
        return await self.finish()

    async def begin(self) -> None:
        """Send a request and read the head of its answer."""
        reader, writer = self._streams or await self.connect()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{self.headers}"
        writer.write(f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY)
        self.head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert self.head.startswith("http/1.1 200"), self.head

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.url.partition("://")[2].rpartition(":")
        self._streams = await asyncio.open_connection(host, int(port), ssl=self.tls)
        self.connections += 1
        return self._streams

    async def finish(self) -> bytes:
        assert self._streams is not None
        reader, _ = self._streams
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        self.answered += 1
        if self.is_told_to_leave:
            await self.close()
        return body

    @property
    def is_told_to_leave(self) -> bool:
        return "connection: close" in self.head

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def ask_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            assert await self.ask() == WHOLE
        await self.close()


class Load:
    """Clients that send one request after the other, some on a kept connection and some on one for each request."""

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        self.keeping = [Client(url, tls) for _ in range(6)]
        self.coming = [Client(url, tls, headers="connection: close\r\n") for _ in range(2)]

    @property
    def answered(self) -> int:
        return min(each.answered for each in (*self.keeping, *self.coming))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for each in (*self.keeping, *self.coming):
                tasks.create_task(each.ask_until(over))
            await self.goes_on()
            yield
            await self.goes_on()
            over.set()

    async def goes_on(self) -> None:
        """Wait until each client has been served several times more."""
        before = {id(each): each.answered for each in (*self.keeping, *self.coming)}
        await until(lambda: all(each.answered >= before[id(each)] + 5 for each in (*self.keeping, *self.coming)))


def with_tls(folder: Path) -> tuple[dict[str, Any], ssl.SSLContext]:
    ca, files = new_ca(), Files(folder / "tls")
    files.put(clients_leaf(ca))
    listen = dict.fromkeys(("http", "admin", "peers"), "127.0.0.1:0")
    trusting = ssl.create_default_context(cadata=roots_of(ca).decode())
    return {**listen, "tls": {"certificate": str(files.certificate), "key": str(files.key)}}, trusting


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_under_load_nobody_is_refused_reset_or_cut_off(tmp_path: Path, engine: FakeEngine, is_tls: bool) -> None:
    listen, trusting = with_tls(tmp_path)
    file = lone(tmp_path, engine, **({"listen": listen} if is_tls else {}))
    gate = asyncio.Event()
    async with gateway_process(file, fresh=not is_tls) as old, AsyncExitStack() as later:
        tls = trusting if is_tls else None
        load, streams = Load(old.http_url, tls), [Client(old.http_url, tls) for _ in range(4)]
        idle = Client(old.http_url, tls)
        assert await idle.ask() == WHOLE
        engine.plays(stream_until(gate, GOOD_STREAM[:1], GOOD_STREAM[1:]))
        for each in streams:
            await each.begin()
        engine.plays(stream(*GOOD_STREAM))
        async with load.running():
            new = await later.enter_async_context(taking_over(file, fresh=not is_tls))
            assert (new.http_url, new.admin_url) == (old.http_url, old.admin_url)
            await load.goes_on()
            await until(lambda: all(each.connections > 1 for each in load.keeping))
            gate.set()
            assert [await each.finish() for each in streams] == [WHOLE] * 4
            assert old.process.returncode is None, "clients are still connected"
            for each in (idle, *streams):
                assert await each.ask() == WHOLE
                assert each.is_told_to_leave
            assert await old.process.wait() == 0
            await until_alone(new)
            await later.enter_async_context(taking_over(file))
            await load.goes_on()
            assert await new.process.wait() == 0
            assert await idle.ask() == WHOLE
        await idle.close()


async def until_alone(new: Process) -> None:
    await new.until_logged("predecessor_exited")


class TestWhatIsCounted:
    async def test_budgets_are_exact_and_what_still_runs_holds_what_it_may_use(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        """Each answer is 28 tokens. The request of `held` reserves more than its budget until it is over."""
        keys = tmp_path / "keys.yaml"
        spent, held = minted(keys, "spent", 100), minted(keys, "held", 1000)
        file = lone(tmp_path, engine, keys=str(keys), usage={"flush_interval": "20ms"})
        gate = asyncio.Event()
        async with gateway_process(file) as old, AsyncExitStack() as later:
            asked = [await later.enter_async_context(KeyedClient(old.http_url, spent))]
            assert await asked[0].ask() == WHOLE
            engine.plays(stream_until(gate, GOOD_STREAM[:1], GOOD_STREAM[1:]))
            asked += [await later.enter_async_context(KeyedClient(old.http_url, key)) for key in (spent, held)]
            for each in asked[1:]:
                await each.begin()
            engine.plays(stream(*GOOD_STREAM))
            new = await later.enter_async_context(taking_over(file))
            assert await status_of(session, new, held) == 429
            await new.until_metric(session, lambda left: left == 2, "nightside_predecessor_requests")
            _, out, _ = await nightside("gateway", "status", "--admin", new.admin_url)
            assert f"took over from process {old.process.pid}, where 2 requests still run" in out
            gate.set()
            assert [await each.finish() for each in asked[1:]] == [WHOLE, WHOLE]
            while await used(session, new) != {"spent": (2, 2 * 28), "held": (1, 28)}:
                assert not old.has_logged("usage_write_failed")
            await asked[0].close()
            for each in asked[1:]:
                await each.close()
            assert await old.process.wait() == 0
            await until_alone(new)
            _, out, _ = await nightside("gateway", "status", "--admin", new.admin_url)
            assert f"took over from process {old.process.pid}, which has ended" in out
            assert await status_of(session, new, held) == 200
            assert [await status_of(session, new, spent) for _ in range(3)] == [200, 200, 429]
            assert await used(session, new) == {"spent": (4, 4 * 28), "held": (2, 2 * 28)}
            new.signal(signal.SIGTERM)
            assert await new.process.wait() == 0
        async with gateway_process(file) as again:
            assert await status_of(session, again, spent) == 429
            assert await used(session, again) == {"spent": (4, 4 * 28), "held": (2, 2 * 28)}

    async def test_the_audit_chain_is_whole_and_has_every_request_once(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        folder, gate = tmp_path / "audit", asyncio.Event()
        file = lone(tmp_path, engine, audit={"folder": str(folder), "flush_interval": "20ms"})
        async with gateway_process(file) as old, AsyncExitStack() as later:
            assert await answered(session, old)
            engine.plays(stream_until(gate, GOOD_STREAM[:1], GOOD_STREAM[1:]))
            streams = [Client(old.http_url) for _ in range(2)]
            for each in streams:
                await each.begin()
            engine.plays(stream(*GOOD_STREAM))
            new = await later.enter_async_context(taking_over(file))
            assert await answered(session, new)
            gate.set()
            for each in streams:
                assert await each.finish() == WHOLE
                await each.close()
            assert await old.process.wait() == 0
            new.signal(signal.SIGTERM)
            assert await new.process.wait() == 0
        files = sorted(folder.iterdir())
        code, out, _ = await nightside("audit", "verify", *files)
        assert (code, out.splitlines()[0][:6]) == (0, "whole:")
        lines = [json.loads(line) for each in files for line in each.read_text().splitlines()]
        asked = [line["request"] for line in lines if line["kind"] == "request"]
        assert len(set(asked)) == len(asked) == 4

    async def test_where_the_new_process_keeps_no_such_record_the_old_one_keeps_its_own_to_the_end(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        folder = tmp_path / "audit"
        file = lone(tmp_path, engine, audit={"folder": str(folder), "flush_interval": "20ms"})
        async with gateway_process(file) as old:
            staying = Client(old.http_url)
            assert await staying.ask() == WHOLE
            async with taking_over(lone(tmp_path, engine)) as new:
                assert await answered(session, new)
                assert await staying.ask() == WHOLE
                assert await old.process.wait() == 0
        code, out, _ = await nightside("audit", "verify", *sorted(folder.iterdir()))
        assert (code, out.splitlines()[0]) == (0, "whole: 3 lines in 1 files")

    async def test_an_operators_order_is_refused_by_the_old_process_and_holds_in_both(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        gate, order = asyncio.Event(), {"active": True, "reason": "drill"}
        file = lone(tmp_path, engine)
        async with gateway_process(file) as old, AsyncExitStack() as later:
            engine.plays(stream_until(gate, GOOD_STREAM[:1], GOOD_STREAM[1:]))
            running = Client(old.http_url)
            await running.begin()
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as staying,
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as staying_too,
            ):
                for each in (staying, staying_too):
                    async with each.get(f"{old.admin_url}/admin/state") as response:
                        await response.read()
                new = await later.enter_async_context(taking_over(file))
                for each, what in ((staying, "lockdown"), (staying_too, "drain")):
                    async with each.post(f"{old.admin_url}/admin/{what}", json=order) as response:
                        assert (response.status, response.headers["connection"]) == (409, "close")
                        assert "another process is taking over" in await response.text()
            assert not old.has_logged("lockdown_activated")
            async with session.post(f"{new.admin_url}/admin/lockdown", json=order) as response:
                assert response.status == 200
            await old.until_logged("lockdown_restored")
            gate.set()
            assert await running.finish() == WHOLE
            await running.close()
            assert await old.process.wait() == 0


class KeyedClient(Client):
    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, headers=f"authorization: Bearer {key}\r\n")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def minted(keys: Path, key_id: str, tokens_per_day: int) -> str:
    options = {"tenant": "acme", "tokens_per_day": tokens_per_day}
    return add_key(keys, key_id, options, Clock().wall_ns(), may_be_missing=True).key


async def status_of(session: aiohttp.ClientSession, gateway: Process, key: str) -> int:
    body = {**CHAT, "max_tokens": 1}
    asked = session.post(
        f"{gateway.http_url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
    )
    async with asked as response:
        await response.read()
        return response.status


async def used(session: aiohttp.ClientSession, gateway: Process) -> dict[str, tuple[int, int]]:
    """Requests and tokens, by key."""
    async with session.get(f"{gateway.admin_url}/admin/usage") as response:
        rows = (await response.json())["rows"]
    return {row["key"]: (row["requests"], row["prompt_tokens"] + row["output_tokens"]) for row in rows}


async def answered(session: aiohttp.ClientSession, gateway: Process) -> bool:
    async with ask(session, gateway.http_url) as response:
        return await response.read() == WHOLE


async def test_names_are_answered_all_the_while(
    tmp_path: Path, engine: FakeEngine, unused_tcp_port_factory: Callable[[], int]
) -> None:
    port, over = unused_tcp_port_factory(), asyncio.Event()
    file = lone(tmp_path, engine, dns={"listen": [f"127.0.0.1:{port}"], "answers_per_s": 1_000_000, "time_max": "1s"})
    told = {dns.asyncquery.udp: 0, dns.asyncquery.tcp: 0}

    async def keep_asking(ask_by: Any) -> None:
        while not over.is_set():
            question = dns.message.make_query("mesh.example.", "A")
            assert (await ask_by(question, "127.0.0.1", timeout=60, port=port)).id == question.id
            told[ask_by] += 1

    async def is_told_again() -> None:
        before = dict(told)
        await until(lambda: all(count >= before[way] + 5 for way, count in told.items()))

    async with gateway_process(file) as old, AsyncExitStack() as later, asyncio.TaskGroup() as tasks:
        for ask_by in told:
            tasks.create_task(keep_asking(ask_by))
        await is_told_again()
        await later.enter_async_context(taking_over(file))
        await is_told_again()
        assert await old.process.wait() == 0
        await is_told_again()
        over.set()


class TestOtherGateways:
    async def test_forwards_run_on_and_new_ones_go_to_the_new_process(
        self, tmp_path: Path, session: aiohttp.ClientSession, unused_tcp_port_factory: Callable[[], int]
    ) -> None:
        gate = asyncio.Event()
        async with FakeEngine().serving() as us_engine, FakeEngine().serving() as eu_engine, AsyncExitStack() as later:
            state = {"folder": str(tmp_path / "state")}
            us_file, eu_file = two_regions(tmp_path, unused_tcp_port_factory, us_engine, eu_engine, state=state)
            us_engine.waiting = 1
            eu_engine.plays(stream_until(gate, GOOD_STREAM[:1], GOOD_STREAM[1:]))
            async with gateway_process(us_file) as us, gateway_process(eu_file) as eu:
                await us.until_logged("peer_found", peer="eu-1")
                running = Client(us.http_url)
                await running.begin()
                assert f"x-nightside-region: {EU.region}" in running.head
                eu_engine.plays(stream(*GOOD_STREAM))
                newer_eu = await later.enter_async_context(taking_over(eu_file))
                newer_us = await later.enter_async_context(taking_over(us_file))
                await newer_eu.until_logged("peer_found", peer="us-1")
                async with ask(session, newer_us.http_url) as response:
                    assert response.headers["x-nightside-region"] == EU.region
                    assert await response.read() == WHOLE
                assert await newer_eu.metric(session, "nightside_forwards_received_total") > 0
                gate.set()
                assert await running.finish() == WHOLE
                await running.close()
                assert [await us.process.wait(), await eu.process.wait()] == [0, 0]

    async def test_the_controller_hears_the_new_process_and_moves_nothing(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        async with serve_controller(read_file(tmp_path)) as controller, AsyncExitStack() as later:
            control = {"controllers": [str(controller.grpc_address)], "client_addresses": ["192.0.2.1"]}
            file = lone(tmp_path, engine, control=control)
            old = await later.enter_async_context(gateway_process(file))
            await until(lambda: has_taken_all(controller, GATEWAY))
            before, staying = controller.links.get(GATEWAY), Client(old.http_url)
            assert await staying.ask() == WHOLE
            new = await later.enter_async_context(taking_over(file))
            await until(lambda: controller.links.get(GATEWAY) is not before and has_taken_all(controller, GATEWAY))
            now = controller.links.get(GATEWAY)
            await new.until_logged("controller_attached")
            assert await answered(session, new)
            assert await staying.ask() == WHOLE
            assert await old.process.wait() == 0
            assert not old.has_logged("controller_disconnected"), "it has left, and does not come back"
            assert controller.links.get(GATEWAY) is now


def has_taken_all(controller: Any, gateway_id: GatewayId) -> bool:
    link = controller.links.get(gateway_id)
    return link is not None and link.pushed is not None and link.taken == link.pushed


STAND_IN = """
import sys
from pathlib import Path
from gateway.takeover.messages import VERSION, TakeoverHello, TakeoverReady
from gateway.takeover.wire import connect_to

wire = connect_to(Path(sys.argv[1]))
wire.send(TakeoverHello(VERSION, "us-1"))
wire.receive_sockets(60)
print("offered", flush=True)
if sys.argv[2] == "once it owns the gateway":
    wire.send(TakeoverReady(sys.argv[3]))
    print(type(wire.receive_sockets(60)[0]).__name__, flush=True)
sys.exit(1)
"""
"""Program of a process that takes over, and ends midway."""


class TestWhatFails:
    @pytest.mark.parametrize("when", ["while it loads", "once it owns the gateway"])
    async def test_a_process_that_dies_leaves_the_old_one_as_it_was(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession, when: str
    ) -> None:
        folder, keys = tmp_path / "audit", tmp_path / "keys.yaml"
        key = minted(keys, "a", 28 * 2 + 1)
        file = lone(
            tmp_path,
            engine,
            keys=str(keys),
            usage={"flush_interval": "20ms"},
            audit={"folder": str(folder), "flush_interval": "20ms"},
        )
        async with gateway_process(file) as old:
            assert await status_of(session, old, key) == 200
            dying = await asyncio.create_subprocess_exec(
                sys.executable, "-c", STAND_IN, at(tmp_path), when, folder, stdout=asyncio.subprocess.PIPE, cwd=ROOT
            )
            told, _ = await dying.communicate()
            assert told.split()[-1] == (b"offered" if when == "while it loads" else b"Released")
            await old.until_logged("takeover_failed", pid=dying.pid)
            assert [await status_of(session, old, key) for _ in range(3)] == [200, 200, 429]
            assert await used(session, old) == {"a": (3, 3 * 28)}
            async with taking_over(file) as new:
                assert await status_of(session, new, key) == 429
                await session.close()
                assert await old.process.wait() == 0
                new.signal(signal.SIGTERM)
                assert await new.process.wait() == 0
        code, out, _ = await nightside("audit", "verify", *sorted(folder.iterdir()))
        assert (code, out[:6]) == (0, "whole:")

    async def test_a_process_that_is_killed_while_it_loads_leaves_the_old_one_as_it_was(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        file = lone(tmp_path, engine, probes={"interval": "20ms", "timeout": "30s", "slow_max": "30s"})
        async with gateway_process(file) as old:
            async with loading(file, engine, old) as (dying, _):
                dying.kill()
                await old.until_logged("takeover_failed", pid=dying.pid)
            assert await answered(session, old)

    async def test_where_the_old_process_dies_the_new_one_begins_as_after_a_crash(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        file = lone(tmp_path, engine, probes={"interval": "20ms", "timeout": "30s", "slow_max": "30s"})
        async with gateway_process(file) as old:
            async with loading(file, engine, old) as (new, go_on):
                old.process.kill()
                await old.process.wait()
                waiting = Client(old.http_url)
                await waiting.connect()
                go_on()
                assert await waiting.ask() == WHOLE, "it waits with the system, and is refused by nobody"
                await waiting.close()
                assert new.returncode is None

    async def test_a_file_that_cannot_be_used_moves_nothing(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        file = lone(tmp_path, engine)
        async with gateway_process(file) as old:
            wrong = tmp_path / "wrong.yaml"
            wrong.write_text(file.read_text().replace("drain: 5m", "drain: soon"))
            assert "limits.drain" in await refused(wrong)
            taken = yaml.safe_load(file.read_text())
            taken["listen"]["http"] = engine.url.removeprefix("http://")
            wrong.write_text(yaml.safe_dump(taken))
            assert "is in use by another program" in await refused(wrong)
            await old.until_logged("takeover_failed")
            assert not old.has_logged("takeover_release_started")
            assert await answered(session, old)

    async def test_without_a_folder_in_which_both_would_meet_it_is_refused(
        self, tmp_path: Path, engine: FakeEngine
    ) -> None:
        assert "names no state.folder" in await refused(region_file(tmp_path, GATEWAY, US, engine))

    async def test_where_nobody_serves_it_begins_by_itself(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        file = lone(tmp_path, engine)
        async with taking_over(file) as first:
            assert await answered(session, first)
            first.process.kill()
            await first.process.wait()
        async with taking_over(file) as next_one:
            assert await answered(session, next_one)
            code, out, _ = await nightside("gateway", "status", "--admin", next_one.admin_url)
            assert (code, "took over" in out) == (0, False)

    async def test_a_gateway_that_is_drained_hands_nothing_over(
        self, tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
    ) -> None:
        file = lone(tmp_path, engine)
        async with gateway_process(file) as old:
            code, _, err = await nightside("gateway", "drain", "--admin", old.admin_url)
            assert code == 0, err
            assert "refuses: it is drained" in await refused(file)

    @pytest.mark.parametrize(
        ("hello", "why"),
        [
            (TakeoverHello(VERSION + 1, GATEWAY), f"it speaks version {VERSION + 1} of the hand-over"),
            (TakeoverHello(VERSION, "eu-1"), "it is gateway eu-1, and us-1 runs here"),
        ],
    )
    async def test_another_version_and_another_gateway_are_refused_in_words(
        self, tmp_path: Path, engine: FakeEngine, hello: TakeoverHello, why: str
    ) -> None:
        async with gateway_process(lone(tmp_path, engine)) as old:
            wire = connect_to(at(tmp_path))
            assert wire is not None
            wire.send(hello)
            said = await wire.receive(60)
            wire.close()
            assert isinstance(said, TakeoverRefused)
            assert said.reason.startswith(why)
            await old.until_logged("takeover_refused", reason=said.reason)

    async def test_a_second_process_that_does_not_take_over_finds_the_port_taken(
        self, tmp_path: Path, engine: FakeEngine, unused_tcp_port_factory: Callable[[], int]
    ) -> None:
        """Both would share the port, and the system would give each some of the peers' calls."""
        listen = {"http": "127.0.0.1:0", "admin": "127.0.0.1:0", "peers": f"127.0.0.1:{unused_tcp_port_factory()}"}
        file = lone(tmp_path, engine, listen=listen)
        async with gateway_process(file):
            status, out, err = await nightside("gateway", "run", file)
            assert (status, out) == (1, "")
            assert "listen.peers: cannot listen" in err

    async def test_only_its_own_user_reaches_it(self, tmp_path: Path, engine: FakeEngine) -> None:
        async with gateway_process(lone(tmp_path, engine)):
            assert at(tmp_path).stat().st_mode & 0o777 == 0o600


@asynccontextmanager
async def loading(file: Path, engine: FakeEngine, old: Process) -> AsyncIterator[tuple[AnyProcess, Callable[[], None]]]:
    """A process that was offered all sockets and is not ready, because the engine delays its probe; and a function that
    lets the engine answer.
    """
    gate = asyncio.Event()

    async def keep_waiting(exchange: Exchange) -> None:
        await gate.wait()
        await answer(200)(exchange)

    def go_on() -> None:
        engine.probe_script = None
        gate.set()

    engine.probe_script = keep_waiting
    async with started("gateway", "run", file, "--take-over") as process:
        await old.until_logged("takeover_started", pid=process.pid)
        try:
            yield process, go_on
        finally:
            go_on()

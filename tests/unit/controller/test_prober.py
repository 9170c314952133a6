from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec.structs import replace

from controller import prober
from controller.config import GatewayProbeConfig
from controller.core.events import Event, GatewayProbed
from controller.prober import APART_MIN_NS, GatewayProber, ProbePace
from controller.registry import Registry, registry_of
from tests.fakes.attached import hello
from tests.support.core import EU, REGIONS, US
from tests.support.gateways import until

QUICK = GatewayProbeConfig(interval_ns=20_000_000, timeout_ns=300_000_000)
PATIENT = GatewayProbeConfig(interval_ns=20_000_000, timeout_ns=60_000_000_000)
"""Time-out that no healthy gateway reaches, however busy the machine is."""


@asynccontextmanager
async def serving(status: int = 200, *, hangs: bool = False) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        if hangs:
            await asyncio.Event().wait()
        return web.Response(status=status, headers={"location": "/elsewhere"})

    app = web.Application()
    app.router.add_get("/health", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/health"
    finally:
        await runner.cleanup()


class Host(AbstractResolver):
    """Resolver that gives every name the same addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=socket.AI_NUMERICHOST
            )
            for each in self.addresses
        ]

    async def close(self) -> None:
        pass


class Probed:
    """A prober, its registry and attached gateways, and the events that it has submitted."""

    def __init__(self, config: GatewayProbeConfig = QUICK, resolver: AbstractResolver | None = None) -> None:
        self.registry: Registry = registry_of({}, REGIONS)
        self.attached: set[str] = set()
        self.said: list[GatewayProbed] = []
        self.prober = GatewayProber(
            lambda: self.registry, self.attached.__contains__, self._submit, config, resolver=resolver
        )

    def _submit(self, event: Event) -> None:
        assert isinstance(event, GatewayProbed)
        self.said.append(event)

    def register(self, name: str, url: str) -> None:
        place = EU if name.startswith("eu") else US
        self.registry = self.registry.changed(self.registry.announce(hello(name, place, health_url=url)))
        self.prober.look()

    def of(self, name: str) -> list[GatewayProbed]:
        return [each for each in self.said if each.gateway_id == name]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.prober.run())
            yield
            task.cancel()


async def test_each_gateway_is_asked_again_and_again_while_one_hangs() -> None:
    probed = Probed(PATIENT)
    async with serving() as well, serving(503) as ill, serving(302) as moved, serving(hangs=True) as hung:
        for name, url in (("us-1", well), ("us-2", ill), ("us-3", moved), ("eu-1", hung)):
            probed.register(name, url)
        probed.register("eu-2", "http://127.0.0.1:1/health")
        async with probed.running():
            await until(lambda: all(len(probed.of(name)) > 3 for name in ("us-1", "us-2", "us-3", "eu-2")))
            assert not probed.of("eu-1")
        late = Probed()
        late.register("eu-1", hung)
        async with late.running():
            await until(lambda: len(late.of("eu-1")) > 1)
    assert {(each.healthy, each.detail) for each in late.of("eu-1")} == {(False, "it does not answer in time")}
    assert {each.healthy for each in probed.of("us-1")} == {True}
    assert {(each.healthy, each.detail) for each in probed.of("us-2")} == {(False, "it answers 503")}
    assert {(each.healthy, each.detail) for each in probed.of("us-3")} == {(False, "it answers 302")}
    assert all(not each.healthy and "127.0.0.1" in each.detail for each in probed.of("eu-2"))
    assert {name for name in ("us-1", "us-2", "us-3", "eu-2") if probed.of(name)[0].was_refused} == {"eu-2"}


NOWHERE = "255.255.255.255"
"""Address to which connections fail without being refused."""


@pytest.mark.parametrize(
    ("addresses", "is_refused"),
    [(["127.0.0.1", "127.0.0.2"], True), ([NOWHERE, "127.0.0.1"], False), (["127.0.0.1", NOWHERE], False)],
)
async def test_only_a_host_that_refuses_at_each_of_its_addresses_says_that_nobody_listens(
    addresses: list[str], is_refused: bool
) -> None:
    probed = Probed(resolver=Host(*addresses))
    probed.register("us-1", "http://gateway.test:1/health")
    async with probed.running():
        await until(lambda: len(probed.of("us-1")) > 0)
    assert {(each.healthy, each.was_refused) for each in probed.of("us-1")} == {(False, is_refused)}


async def test_one_whose_stream_is_lost_is_asked_at_once_and_one_that_goes_is_asked_no_more() -> None:
    probed = Probed(GatewayProbeConfig(interval_ns=3600 * 10**9))
    async with serving() as url:
        probed.register("us-1", url)
        probed.attached.add("us-1")
        async with probed.running():
            await until(lambda: len(probed.of("us-1")) == 1)
            probed.prober.look()
            probed.attached.clear()
            probed.prober.look()
            await until(lambda: len(probed.of("us-1")) == 2)
            probed.registry = registry_of({}, REGIONS)
            probed.prober.look()
            await until(lambda: not probed.prober._targets)


class TestPace:
    CONFIG = GatewayProbeConfig(interval_ns=300_000_000, timeout_ns=1_000_000_000)

    def test_however_urgent_two_do_not_start_at_once(self) -> None:
        pace = ProbePace()
        assert pace.wait_ns(0, self.CONFIG) == 0
        pace.start(0)
        pace.end()
        assert pace.wait_ns(1, self.CONFIG) == APART_MIN_NS - 1
        assert pace.wait_ns(APART_MIN_NS, self.CONFIG) == 0
        assert pace.wait_ns(1, replace(self.CONFIG, interval_ns=50)) == 49, "intervals may be shorter"

    def test_no_more_run_than_start_within_a_time_out(self) -> None:
        pace = ProbePace()
        for number in range(4):
            at_ns = number * APART_MIN_NS
            assert pace.wait_ns(at_ns, self.CONFIG) == 0
            pace.start(at_ns)
        assert pace.wait_ns(10**12, self.CONFIG) == APART_MIN_NS
        pace.end()
        assert pace.wait_ns(10**12, self.CONFIG) == 0

    def test_what_an_older_one_found_is_no_news(self) -> None:
        pace = ProbePace()
        first, second, third = (pace.start(number) for number in range(3))
        assert [pace.is_news(each) for each in (second, first, third)] == [True, False, True]


class Asked:
    """Answers of gateways in place of their hosts': the first probe hangs until it is let go, and then fails; the
    others find the gateway well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, first_hangs: bool = False) -> None:
        self.count = 0
        self.let_go = asyncio.Event()
        self.has_first_ended = False
        self._first_hangs = first_hangs
        monkeypatch.setattr(GatewayProber, "_ask", self._answer)

    async def _answer(self, *_: object) -> object:
        self.count += 1
        if self.count > 1 or not self._first_hangs:
            return None
        await self.let_go.wait()
        self.has_first_ended = True
        return prober._Fault("ill")


async def test_each_change_calls_for_a_probe_of_who_has_no_stream_and_nobody_is_flooded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prober, "APART_MIN_NS", 3600 * 10**9)
    asked, probed = Asked(monkeypatch), Probed(GatewayProbeConfig(interval_ns=3600 * 10**9, timeout_ns=7200 * 10**9))
    async with probed.running():
        for number in range(20):
            name = f"us-{number}"
            probed.register(name, "http://192.0.2.1/health")
            await until(lambda name=name: len(probed.of(name)) == 1)  # type: ignore[misc]
    assert asked.count == len(probed.said) == 20


async def test_one_that_hangs_is_asked_so_often_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "APART_MIN_NS", 1)
    running = most = ended = 0

    async def hang(*_: object) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.01)
        finally:
            running -= 1
            ended += 1

    monkeypatch.setattr(GatewayProber, "_ask", hang)
    probed = Probed(GatewayProbeConfig(interval_ns=1_000_000_000, timeout_ns=2_500_000_000))
    async with probed.running():
        probed.register("us-1", "http://192.0.2.1/health")

        def has_asked_often() -> bool:
            probed.prober.look()
            return ended > 20

        await until(has_asked_often)
    assert most == 3


async def test_a_result_older_than_one_that_is_known_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, probed = Asked(monkeypatch, first_hangs=True), Probed(replace(QUICK, timeout_ns=3600 * 10**9))
    async with probed.running():
        probed.register("us-1", "http://192.0.2.1/health")
        await until(lambda: len(probed.said) > 0)
        asked.let_go.set()
        await until(lambda: asked.has_first_ended)
    assert {each.healthy for each in probed.said} == {True}


async def test_without_a_url_its_stream_is_all_that_speaks_for_it() -> None:
    probed = Probed()
    probed.register("us-1", "")
    probed.register("us-2", "")
    probed.attached.add("us-1")
    async with probed.running():
        await until(lambda: len(probed.of("us-2")) > 3)
    assert probed.of("us-1") == []
    assert {(each.healthy, each.detail) for each in probed.of("us-2")} == {(False, "it names no URL for its health")}

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from gateway.config.sections import ProbeConfig
from gateway.config.targets import Dialect
from gateway.core.kernel.events import ReplicasObserved
from gateway.core.vocabulary import ReplicaId, ReplicaObservation
from gateway.engines.endpoints import Engine, ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.prober import EngineProber, next_beat_ns, wait_s
from mesh.clock import Clock
from mesh.supervisor import Backoff
from tests.fakes.engine import Exchange, FakeEngine, Tally, answer, hang, metrics_page
from tests.fakes.engine_pages import PagesEngine, vllm_page
from tests.support.background import in_background
from tests.support.clock import StillClock
from tests.support.core import US

FAST = ProbeConfig(interval_ns=1_000_000, life_interval_ns=1_000_000)
A, B = ReplicaId("a"), ReplicaId("b")


def endpoint(replica_id: ReplicaId, url: str, dialect: Dialect = Dialect.VLLM) -> ReplicaEndpoint:
    return ReplicaEndpoint(replica_id, US, url, dialect, "the-key")


class Watch:
    """Reports of a prober, and a way to wait for more of them."""

    def __init__(
        self, endpoints: Iterable[ReplicaEndpoint], settings: ProbeConfig, clock: Clock, batch_s: float = 0.002
    ) -> None:
        self.endpoints = ReplicaEndpoints(endpoints)
        self.observed: list[ReplicaObservation] = []
        self.events = Tally()
        self.restarted: list[tuple[str, Exception]] = []
        self.looked: list[tuple[str, bool]] = []
        self.prober = EngineProber(
            self.endpoints,
            clock,
            settings,
            self._submit,
            lambda *restart: self.restarted.append(restart),
            backoff=Backoff(min_ns=1_000_000),
            batch_s=batch_s,
            on_adopted=lambda *look: self.looked.append(look),
        )

    def _submit(self, event: ReplicasObserved) -> None:
        self.observed.extend(event.observations)
        self.events.add()

    async def first(self, replica_id: ReplicaId, *, healthy: bool) -> ReplicaObservation:
        while True:
            for each in self.observed:
                if (each.replica_id, each.healthy) == (replica_id, healthy):
                    return each
            await self.events.reaches(self.events.count + 1)


@asynccontextmanager
async def watching(
    *endpoints: ReplicaEndpoint, settings: ProbeConfig = FAST, clock: Clock | None = None, batch_s: float = 0.002
) -> AsyncIterator[Watch]:
    watch = Watch(endpoints, settings, clock or Clock(), batch_s)
    async with in_background(watch.prober.run()):
        yield watch


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine().serving() as engine:
        yield engine


async def test_load_is_read_again_and_again(engine: FakeEngine) -> None:
    engine.running, engine.waiting = 4, 12
    before_ns = Clock().now_ns()
    async with watching(endpoint(A, engine.url)) as watch:
        await watch.events.reaches(3)
    assert replace(watch.observed[0], sampled_ns=0) == ReplicaObservation(A, 0, True, 4, 12, 0.25, 8192)
    sampled = [each.sampled_ns for each in watch.observed]
    assert before_ns < sampled[0]
    assert sampled == sorted(set(sampled))


async def test_adopted_engines_share_a_budget_and_others_do_not(engine: FakeEngine) -> None:
    settings = replace(FAST, adopted_per_s=1)
    adopted = [
        dataclasses.replace(endpoint(ReplicaId(name), f"{engine.url}/{name}"), is_adopted=True) for name in ("b", "c")
    ]
    async with watching(endpoint(A, engine.url), *adopted, settings=settings, clock=StillClock()) as watch:
        await watch.first(B, healthy=False)
        await watch.events.reaches(watch.events.count + 3)
    assert watch.looked == [(f"{engine.url}/b", False)], "the other one's turn is a second later"


async def test_one_that_is_our_own_as_well_is_looked_at_as_our_own(engine: FakeEngine) -> None:
    both = endpoint(A, engine.url), dataclasses.replace(endpoint(ReplicaId("theirs"), engine.url), is_adopted=True)
    async with watching(*both, settings=replace(FAST, adopted_per_s=1), clock=StillClock()) as watch:
        await watch.events.reaches(3)
    assert not watch.looked


async def test_the_time_of_a_sample_is_when_it_was_asked_for(engine: FakeEngine) -> None:
    clock = StillClock(5)

    async def slow(exchange: Exchange) -> None:
        clock.now = 1_000
        await answer(200, metrics_page(0, 0).encode())(exchange)

    engine.probe_script = slow
    async with watching(endpoint(A, engine.url), clock=clock) as watch:
        assert (await watch.first(A, healthy=True)).sampled_ns == 5


async def test_an_engine_without_metrics_is_idle_while_it_lists_its_models(engine: FakeEngine) -> None:
    async with watching(endpoint(A, engine.url, Dialect.OPENAI)) as watch:
        assert (await watch.first(A, healthy=True)).waiting == 0


async def test_the_gateway_s_key_is_sent(engine: FakeEngine) -> None:
    seen: list[dict[str, str]] = []

    async def look(exchange: Exchange) -> None:
        seen.append(exchange.received.headers)
        await answer(200, metrics_page(0, 0).encode())(exchange)

    engine.probe_script = look
    async with watching(endpoint(A, engine.url)) as watch:
        await watch.first(A, healthy=True)
    assert seen[0]["authorization"] == "Bearer the-key"


async def test_nobody_listening_is_unhealthy_at_once() -> None:
    async with watching(endpoint(A, "http://127.0.0.1:1")) as watch:
        seen = await watch.first(A, healthy=False)
    assert watch.observed[0] == seen
    assert "Connect" in seen.detail


@pytest.mark.parametrize("script", [answer(500), answer(404), answer(200, b"<html>"), answer(200, b"")])
async def test_garbage_is_unhealthy_and_says_why(engine: FakeEngine, script: object) -> None:
    engine.probe_script = script  # type: ignore[assignment]
    async with watching(endpoint(A, engine.url)) as watch:
        assert "BadProbe" in (await watch.first(A, healthy=False)).detail


async def test_slow_is_not_dead_until_it_is_slow_again_and_again(engine: FakeEngine) -> None:
    engine.probe_script = hang
    settings = replace(FAST, timeout_ns=50_000_000, timeouts_max=3)
    async with watching(endpoint(A, engine.url), settings=settings) as watch:
        await watch.first(A, healthy=False)
        assert engine.probed.count >= 3
        assert len(watch.observed) == 1


async def test_one_good_answer_forgives_slow_ones(engine: FakeEngine) -> None:
    plays = iter([hang, hang, answer(200, metrics_page(1, 0).encode()), hang, hang])

    async def alternate(exchange: Exchange) -> None:
        await next(plays, answer(500))(exchange)

    engine.probe_script = alternate
    settings = replace(FAST, timeout_ns=200_000_000, timeouts_max=3)
    async with watching(endpoint(A, engine.url), settings=settings) as watch:
        await watch.first(A, healthy=False)
    unfit = "BadProbe: /metrics has status 500"
    assert [(each.healthy, each.detail) for each in watch.observed[:2]] == [(True, ""), (False, unfit)]


async def test_probes_of_one_replica_never_overlap(engine: FakeEngine) -> None:
    at_once = most = 0

    async def count(exchange: Exchange) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        at_once -= 1
        await answer(200, metrics_page(0, 0).encode())(exchange)

    engine.probe_script = count
    async with watching(endpoint(A, engine.url)) as watch:
        await watch.events.reaches(5)
    assert most == 1


async def test_observations_reach_the_core_in_batches(engine: FakeEngine) -> None:
    ids = [ReplicaId(f"r{number}") for number in range(8)]
    endpoints = [dataclasses.replace(endpoint(each, engine.url), api_key=f"key of {each}") for each in ids]
    async with watching(*endpoints, settings=replace(FAST, interval_ns=60_000_000_000), batch_s=0.5) as watch:
        await engine.probed.reaches(8)
        await watch.events.reaches(1)
        assert {each.replica_id for each in watch.observed} == set(ids)


@pytest.mark.parametrize(
    ("sent_ns", "beat_ns"),
    [
        (1_007, 1_107),
        (1_008, 1_107),  # a late timer delays no later probe
        (1_057, 1_107),  # a first probe, or one after a slow one, joins its beat at once
        (1_106, 1_107),
        (993, 1_007),
    ],
)
def test_looks_fall_on_a_beat_and_never_wait_longer_than_the_interval(sent_ns: int, beat_ns: int) -> None:
    assert next_beat_ns(sent_ns, interval_ns=100, phase_ns=7) == beat_ns


@pytest.mark.parametrize("until_beat_ns", [1, 999_999, 1_000_000, 1_000_001, 99_400_000])
def test_a_timer_of_whole_milliseconds_does_not_end_before_the_beat(until_beat_ns: int) -> None:
    slept_ms = int(wait_s(until_beat_ns) * 1_000)
    assert until_beat_ns <= slept_ms * 1_000_000 <= until_beat_ns + 1_000_000


def test_a_beat_that_has_passed_is_not_waited_for() -> None:
    assert [wait_s(until_beat_ns) for until_beat_ns in (0, -5)] == [0, 0]


async def test_engines_are_looked_at_in_groups_each_on_its_own_beat(engine: FakeEngine) -> None:
    clock = StillClock()
    ids = [ReplicaId(f"r{number}") for number in range(9)]
    endpoints = [dataclasses.replace(endpoint(each, engine.url), api_key=f"key of {each}") for each in ids]
    async with watching(*endpoints, settings=replace(FAST, interval_ns=60_000_000_000), clock=clock) as watch:
        clock.now = 1_000_000  # the first group's next beat is a minute away, the second's due in milliseconds
        while not (seen := Counter(each.replica_id for each in watch.observed)) or seen[ids[8]] < 3:
            await watch.events.reaches(watch.events.count + 1)
    assert [seen[each] for each in ids[:8]] == [1] * 8


async def test_an_engine_is_asked_once_for_all_its_ranks() -> None:
    async with PagesEngine({"/metrics": vllm_page((4, 1), (3, 0))}).serving() as engine:
        ranks = [
            dataclasses.replace(endpoint(ReplicaId(f"a@{rank}"), engine.url), ranks=2, rank=rank) for rank in (0, 1)
        ]
        async with watching(*ranks, settings=replace(FAST, interval_ns=60_000_000_000)) as watch:
            await watch.events.reaches(1)
        seen = [(each.replica_id, each.running, each.waiting, each.healthy) for each in watch.observed]
        assert seen == [("a@0", 4, 1, True), ("a@1", 3, 0, True)]
        assert engine.asked["/metrics"] == 1


async def test_an_engine_that_sleeps_or_shuts_down_is_unhealthy_though_it_answers() -> None:
    clock = StillClock(5)
    async with PagesEngine({"/metrics": vllm_page((0, 0), asleep="discard_all")}).serving() as engine:
        async with watching(endpoint(A, engine.url), clock=clock) as watch:
            assert (await watch.first(A, healthy=False)).detail == "the engine sleeps (discard_all)"
            watch.endpoints.closes(engine.url, 10)
            watch.observed.clear()
            engine.pages["/metrics"] = vllm_page((0, 0))
            while not any("shutting down" in each.detail for each in watch.observed):
                await watch.events.reaches(watch.events.count + 1)
            clock.now = 10
            await watch.first(A, healthy=True)


async def test_new_numbers_hold_from_the_next_look_on(engine: FakeEngine) -> None:
    async with watching(endpoint(A, engine.url)) as watch:
        await watch.events.reaches(1)
        watch.prober.configure(replace(FAST, timeout_ns=1_000_000, timeouts_max=1))
        engine.probe_script = hang
        assert "took too long" in (await watch.first(A, healthy=False)).detail


async def test_endpoints_come_go_and_move(engine: FakeEngine) -> None:
    async with FakeEngine().serving() as other, watching(endpoint(A, engine.url)) as watch:
        await watch.first(A, healthy=True)
        watch.endpoints.replace([endpoint(A, other.url), endpoint(B, other.url)])
        await watch.first(B, healthy=True)
        await other.probed.reaches(4)
        watch.endpoints.replace([endpoint(B, other.url)])
        await watch.events.reaches(watch.events.count + 2)
        watch.observed.clear()
        await watch.events.reaches(watch.events.count + 3)
        assert {each.replica_id for each in watch.observed} == {B}


async def test_a_fault_in_one_loop_is_counted_and_ends_no_other(engine: FakeEngine) -> None:
    class FragileEngine(Engine):
        def authorization(self) -> dict[str, str]:
            raise RuntimeError("a fault of ours")

    broken = endpoint(A, engine.url)
    object.__setattr__(broken, "engine", FragileEngine(engine.url, Dialect.VLLM, "another key"))
    async with watching(broken, endpoint(B, engine.url)) as watch:
        await watch.first(B, healthy=True)
        while watch.prober.restarts[engine.url] < 3:
            await watch.events.reaches(watch.events.count + 1)
        assert {each.replica_id for each in watch.observed} == {B}
        assert str(watch.restarted[0][1]) == "a fault of ours"
        watch.endpoints.replace([endpoint(A, engine.url)])
        await watch.first(A, healthy=True)

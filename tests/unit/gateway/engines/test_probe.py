from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
from msgspec.structs import replace

from gateway.config.sections import ProbeConfig
from gateway.config.targets import Dialect
from gateway.engines.dialects import LoadReading
from gateway.engines.endpoints import Engine
from gateway.engines.probe import EngineProbe, probe_connections
from tests.fakes.engine_pages import (
    HANGS,
    LOADING,
    NO_METRICS,
    NOT_THERE,
    Page,
    PagesEngine,
    llama_metrics,
    llama_slots,
    model_list,
    sglang_loads,
    vllm_page,
)
from tests.support.core import MS, SECOND
from tests.support.descriptors import no_descriptor_left

PATIENT = ProbeConfig(timeout_ns=20 * SECOND)
QUICK = ProbeConfig(timeout_ns=300 * MS)
"""Config of engines of which one page hangs; the others have that long to come on a busy machine."""
SGLANG_METRICS = Page(b'sglang:num_queue_reqs{tp_rank="0"} 3.0\nsglang:num_running_reqs{tp_rank="0"} 1.0\n')


@pytest.fixture
async def engine() -> AsyncIterator[PagesEngine]:
    async with PagesEngine().serving() as engine:
        yield engine


@asynccontextmanager
async def probing(
    engine: PagesEngine, dialect: Dialect, *, ranks: int = 1, config: ProbeConfig = PATIENT
) -> AsyncIterator[EngineProbe]:
    with closing(probe_connections(5.0)) as connections:
        yield EngineProbe(connections, Engine(engine.url, dialect, "the-key", ranks), config)


async def test_an_engine_that_we_have_no_descriptor_to_ask_with_is_not_unfit(engine: PagesEngine) -> None:
    """The last observation ages meanwhile, and the next answer is reported as news."""
    engine.pages = {"/metrics": vllm_page((4, 12)), "/health": Page()}
    async with probing(engine, Dialect.VLLM) as probe:
        with no_descriptor_left():
            assert await probe.look(0) is None
        assert await probe.look(0) == [LoadReading(4, 12, 0.1)]


class TestVllm:
    async def test_load_and_health(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": vllm_page((4, 12)), "/health": Page()}
        async with probing(engine, Dialect.VLLM) as probe:
            assert await probe.look(0) == [LoadReading(4, 12, 0.1)]
        assert set(engine.keys) == {"Bearer the-key"}

    async def test_all_ranks_are_read_in_one_look(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": vllm_page((4, 1), (3, 0))}
        async with probing(engine, Dialect.VLLM, ranks=2) as probe:
            assert await probe.look(0) == [LoadReading(4, 1, 0.1), LoadReading(3, 0, 0.2)]
        assert engine.asked["/metrics"] == 1

    async def test_health_is_asked_for_now_and_then_while_it_is_good(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": vllm_page((0, 0)), "/health": Page()}
        async with probing(engine, Dialect.VLLM) as probe:
            for sent_ns in (0, SECOND // 2, SECOND - 1, SECOND):
                await probe.look(sent_ns)
        assert (engine.asked["/health"], engine.asked["/metrics"]) == (2, 4)

    async def test_a_dead_engine_is_outlived_by_its_load_page_and_found_out(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": vllm_page((0, 0)), "/health": Page(status=503)}
        async with probing(engine, Dialect.VLLM, ranks=1) as probe:
            for sent_ns in (0, 1, 2):  # the fault is reported until the engine is good again, at any interval
                readings = await probe.look(sent_ns)
                assert readings is not None
                assert readings[0].unfit == "BadProbe: /health has status 503"
            engine.pages["/health"] = Page()
            assert await probe.look(3) == [LoadReading(0, 0, 0.1)]

    async def test_silence_says_nothing_until_it_lasts(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": HANGS}
        async with probing(engine, Dialect.VLLM, config=QUICK) as probe:
            assert [await probe.look(0), await probe.look(1)] == [None, None]
            assert await probe.look(2) == [LoadReading(unfit="3 probes in a row took too long")]
            engine.pages = {"/metrics": vllm_page((0, 0))}
            assert await probe.look(3) == [LoadReading(0, 0, 0.1)]
            engine.pages = {"/metrics": HANGS}
            assert await probe.look(4) is None


class TestSglang:
    async def test_loads_are_preferred_and_health_is_left_alone(self, engine: PagesEngine) -> None:
        engine.pages = {"/v1/loads": sglang_loads((12, 3)), "/metrics": SGLANG_METRICS, "/health": Page()}
        async with probing(engine, Dialect.SGLANG) as probe:
            assert await probe.look(0) == [LoadReading(12, 3, 0.28, 183_000)]
        assert set(engine.asked) == {"/v1/loads"}

    async def test_metrics_stand_in_for_loads_that_are_not_offered(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": SGLANG_METRICS}
        async with probing(engine, Dialect.SGLANG) as probe:
            assert await probe.look(0) == await probe.look(1) == [LoadReading(1, 3)]
        assert engine.asked["/v1/loads"] == 1, "once it is known what the engine offers, only that is asked"

    async def test_an_engine_that_comes_back_is_asked_afresh(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": SGLANG_METRICS}
        async with probing(engine, Dialect.SGLANG) as probe:
            await probe.look(0)
            engine.pages = {"/metrics": Page(status=500)}
            await probe.look(1)
            engine.pages = {"/v1/loads": sglang_loads((1, 0)), "/metrics": SGLANG_METRICS}
            assert await probe.look(2) == [LoadReading(1, 0, 0.28, 183_000)]

    async def test_neither_is_offered(self, engine: PagesEngine) -> None:
        async with probing(engine, Dialect.SGLANG, ranks=2) as probe:
            readings = await probe.look(0)
        assert readings == [LoadReading(unfit="BadProbe: /metrics has status 404")] * 2

    async def test_a_scheduler_that_takes_its_time_is_busy(self, engine: PagesEngine) -> None:
        engine.pages = {"/v1/loads": sglang_loads((12, 0)), "/ping": Page()}
        async with probing(engine, Dialect.SGLANG, config=QUICK) as probe:
            await probe.look(0)
            engine.pages["/v1/loads"] = HANGS
            assert await probe.look(1) == [LoadReading(12, 1, 0.28, 183_000)]


class TestLlamacpp:
    async def test_metrics_tell_the_load(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": llama_metrics(4, 2)}
        async with probing(engine, Dialect.LLAMACPP) as probe:
            assert await probe.look(0) == [LoadReading(4, 2)]

    @pytest.mark.parametrize("missing", [NO_METRICS, NOT_THERE])
    async def test_slots_stand_in_for_metrics(self, engine: PagesEngine, missing: Page) -> None:
        engine.pages = {"/metrics": missing, "/slots": llama_slots(True, False)}
        async with probing(engine, Dialect.LLAMACPP) as probe:
            assert await probe.look(0) == [LoadReading(1, 0, 0.0, 4096, slots=2)]

    async def test_slow_is_busy_while_it_lives_and_dead_after_too_long(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": HANGS, "/health": Page(b'{"status":"ok"}')}
        config = replace(QUICK, timeouts_max=2, slow_max_ns=10)
        async with probing(engine, Dialect.LLAMACPP, config=config) as probe:
            for sent_ns in (0, 5, 9):
                assert await probe.look(sent_ns) == [LoadReading(0, 1)]
            assert await probe.look(10) == [LoadReading(unfit="4 probes in a row took too long")]

    async def test_slow_without_a_sign_of_life_is_dead(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": HANGS, "/health": LOADING}
        async with probing(engine, Dialect.LLAMACPP, config=replace(QUICK, timeouts_max=1)) as probe:
            assert await probe.look(0) == [LoadReading(unfit="1 probes in a row took too long")]

    async def test_a_model_that_loads_is_not_served_yet(self, engine: PagesEngine) -> None:
        engine.pages = {"/metrics": LOADING}
        async with probing(engine, Dialect.LLAMACPP) as probe:
            assert await probe.look(0) == [LoadReading(unfit="BadProbe: /metrics has status 503")]


class TestOpenai:
    async def test_a_sign_of_life_at_a_lower_rate(self, engine: PagesEngine) -> None:
        engine.pages = {"/v1/models": model_list("gpt")}
        async with probing(engine, Dialect.OPENAI) as probe:
            assert await probe.look(0) == [LoadReading()]
            assert probe.interval_ns == PATIENT.life_interval_ns > PATIENT.interval_ns


async def test_a_page_without_end_is_cut_off(engine: PagesEngine) -> None:
    engine.pages = {"/metrics": Page(b"#" * (9 << 20))}
    async with probing(engine, Dialect.VLLM, config=PATIENT) as probe:
        readings = await probe.look(0)
    assert readings is not None
    assert "larger than" in readings[0].unfit

"""A modelled engine in the world: its outputs are reported once, and it can slow down, crash and return with a cold
cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from gateway.core.vocabulary import Jurisdiction, ModelName, Place, RegionName, ReplicaId, ReplicaSpec
from loadgen.engine.blocks import packed
from loadgen.engine.presets import TINY
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.vocabulary import Rejection
from loadgen.report import PrefixTokens
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.engines import EngineRun, SimEngine

SPEC = ReplicaSpec(ReplicaId("r0"), Place(RegionName("us-east-1"), Jurisdiction("US")), (ModelName("llama"),))
SECOND = 1_000_000_000
NAMES = packed(range(1, 40))


@dataclass
class Bench:
    """One engine and its outputs."""

    log: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agenda = Agenda()
        self.engine = SimEngine(SPEC, replace(TINY, queued_requests_max=2), self.agenda)

    def note(self, what: str) -> None:
        self.log.append((what, self.agenda.now_ns))

    def run(self, run_id: str, *, prompt_tokens: int = 160, output_tokens: int = 50) -> EngineRun:
        run = EngineRun(
            run_id,
            EngineRequest(run_id, prompt_tokens, output_tokens, NAMES),
            on_first_token=lambda _: self.note(f"{run_id} first"),
            on_finished=lambda: self.note(f"{run_id} done"),
            on_rejected=lambda rejection: self.note(f"{run_id} {rejection}"),
            on_lost=lambda detail: self.note(f"{run_id} {detail}"),
        )
        self.engine.submit(run)
        return run

    def told(self) -> list[str]:
        return [what for what, _ in self.log]

    def wait(self, duration_ns: int = 10 * SECOND) -> None:
        self.agenda.run_until(self.agenda.now_ns + duration_ns)


def test_a_request_is_answered_and_the_next_finds_its_prefix() -> None:
    bench = Bench()
    cold = bench.run("a")
    bench.wait()
    warm = bench.run("b")
    bench.wait()
    assert bench.told() == ["a first", "a done", "b first", "b done"]
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 144)
    assert bench.engine.prefix_tokens() == PrefixTokens(queried=320, hit=144)
    assert bench.engine.outstanding == 0


def test_it_knows_what_it_has_cached_and_what_it_is_asked_until_it_crashes() -> None:
    bench = Bench()
    other = packed([1, 2, *range(100, 120)])
    assert bench.engine.known_blocks(NAMES) == 0
    bench.run("a")
    assert [bench.engine.known_blocks(each) for each in (NAMES, other)] == [39, 2], "nothing is computed yet"
    bench.wait()
    assert [bench.engine.known_blocks(each) for each in (NAMES, other)] == [13, 2], "160 and 50 tokens, in blocks of 16"
    bench.engine.crash()
    assert bench.engine.known_blocks(NAMES) == 0


def test_a_slow_engine_takes_that_many_times_as_long_from_now_on() -> None:
    def duration_ns(percent: int) -> int:
        bench = Bench()
        bench.wait(777)
        bench.engine.slow_down(percent)
        bench.run("a")
        bench.wait(100 * SECOND)
        return bench.log[-1][1] - 777

    assert duration_ns(300) == pytest.approx(3 * duration_ns(100), abs=300)


def test_an_engine_that_recovers_goes_on_from_where_it_was() -> None:
    bench = Bench()
    bench.engine.slow_down(1000)
    bench.run("a")
    bench.wait(SECOND // 10)
    bench.engine.slow_down(100)
    bench.wait()
    assert bench.told() == ["a first", "a done"]


def test_a_crash_loses_what_ran_and_the_cache_but_no_count() -> None:
    bench = Bench()
    bench.run("a")
    bench.wait()
    bench.run("b")
    bench.engine.crash()
    bench.run("c")
    assert not bench.engine.observe(5).healthy
    bench.engine.restart()
    again = bench.run("d")
    bench.wait()
    assert bench.told() == ["a first", "a done", "b connection reset", "c connection refused", "d first", "d done"]
    assert again.cached_tokens == 0
    assert bench.engine.prefix_tokens().queried == 320, "in both lives"


def test_what_was_due_in_an_earlier_life_is_forgotten() -> None:
    bench = Bench()
    bench.run("a")
    bench.engine.crash()
    bench.engine.restart()
    bench.wait()
    assert bench.told() == ["a connection reset"]


def test_an_abort_frees_the_engine() -> None:
    bench = Bench()
    bench.run("a", output_tokens=2000)
    bench.wait(SECOND)
    bench.engine.abort("a")
    bench.engine.abort("a")
    assert bench.engine.outstanding == 0
    assert bench.engine.observe(0).running == 0


def test_one_that_hangs_takes_requests_and_says_that_it_is_well_and_answers_when_it_goes_on() -> None:
    bench = Bench()
    bench.run("a", output_tokens=500)
    bench.wait(SECOND // 2)
    bench.engine.hang(True)
    bench.run("b", output_tokens=5)
    bench.wait(100 * SECOND)
    assert bench.told() == ["a first"]
    assert bench.engine.outstanding == 2
    assert bench.engine.observe(0).healthy
    bench.engine.hang(False)
    bench.wait(100 * SECOND)
    assert bench.told() == ["a first", "b first", "b done", "a done"]


def test_a_full_and_a_too_long_request_are_told_apart() -> None:
    bench = Bench()
    for number in range(3):
        bench.run(str(number))
    bench.run("huge", prompt_tokens=5000)
    assert bench.told() == [f"2 {Rejection.QUEUE_FULL}", f"huge {Rejection.TOO_LONG}"]


def test_a_probe_sees_the_engines_own_gauges() -> None:
    bench = Bench()
    for number in range(2):
        bench.run(str(number), output_tokens=500)
    bench.wait(SECOND // 10)
    seen = bench.engine.observe(42)
    assert (seen.sampled_ns, seen.healthy, seen.running, seen.waiting) == (42, True, 2, 0)
    assert bench.engine.changed_ns <= bench.agenda.now_ns

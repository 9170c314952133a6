"""Decode workers in the world: they fetch prefilled blocks, release them, and lose them when an engine dies."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from gateway.core.vocabulary import Jurisdiction, ModelName, Place, RegionName, ReplicaId, ReplicaRole, ReplicaSpec
from loadgen.engine.decode_group import DecodeGroupConfig
from loadgen.engine.presets import TINY
from loadgen.engine.sequences import EngineRequest
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.decode_workers import SimDecodeGroup, SimDecodeWorker, TransferConfig
from loadgen.simulator.engines import EngineRun, PrefillRun, SimEngine

SPEC = ReplicaSpec(ReplicaId("p0"), Place(RegionName("us-east-1"), Jurisdiction("US")), (ModelName("llama"),))
SECOND = 1_000_000_000
MS = 1_000_000


@dataclass
class Bench:
    """A prefill worker, and a group of two decode workers."""

    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agenda = Agenda()
        self.reader = SimEngine(replace(SPEC, role=ReplicaRole.PREFILL), TINY, self.agenda)
        config = DecodeGroupConfig(2, batch_max=1, base_ns=10 * MS, kv_token_ns=1_000, kv_tokens=TINY.kv_tokens)
        self.group = SimDecodeGroup(config, TransferConfig(5 * MS, 1_000), self.agenda)
        self.workers = [
            SimDecodeWorker(
                replace(SPEC, replica_id=ReplicaId(f"d{rank}"), role=ReplicaRole.DECODE), TINY, self.agenda, self.group
            )
            for rank in range(2)
        ]

    def run(self, run_id: str, output_tokens: int, **more: object) -> EngineRun:
        lease_ns = None if more.get("handoff") else 30 * SECOND
        return EngineRun(
            run_id,
            EngineRequest(run_id, 160, output_tokens, lease_ns=lease_ns),
            on_first_token=lambda _: self.log.append(f"{run_id} first"),
            on_finished=lambda: self.log.append(f"{run_id} done"),
            on_rejected=lambda rejection: self.log.append(f"{run_id} {rejection}"),
            on_lost=lambda detail: self.log.append(f"{run_id} {detail}"),
            **more,  # type: ignore[arg-type]
        )

    def read(self, name: str) -> None:
        self.reader.submit(self.run(f"{name}/p", 1))

    def answer(self, name: str, *, rank: int = 0, output_tokens: int = 20, waits: bool = False) -> EngineRun:
        run = self.run(
            f"{name}/d", output_tokens, handoff=PrefillRun(self.reader, f"{name}/p"), waits_for_its_prompt=waits
        )
        self.workers[rank].submit(run)
        return run

    def wait(self, duration_ns: int = 10 * SECOND) -> None:
        self.agenda.run_until(self.agenda.now_ns + duration_ns)


def test_what_was_read_is_fetched_let_go_and_answered() -> None:
    bench = Bench()
    bench.read("a")
    bench.wait(SECOND)
    assert bench.reader.kept == 1
    bench.answer("a")
    bench.wait(6 * MS)
    assert bench.reader.kept == 0

    bench.wait()
    assert bench.log == ["a/p first", "a/p done", "a/d first", "a/d done"]
    assert bench.workers[0].outstanding == 0
    assert bench.group.model.alive == 0


def test_what_nobody_keeps_cannot_be_answered() -> None:
    bench = Bench()
    bench.answer("a")

    assert bench.log == ["a/d 500: what it was to fetch is gone"]


def test_who_may_come_first_waits_for_the_prompt_to_be_read() -> None:
    bench = Bench()
    bench.answer("a", waits=True)
    bench.wait(SECOND)
    assert bench.log == []
    seen = bench.workers[0].observe(bench.agenda.now_ns)
    assert (seen.running, seen.waiting) == (0, 1), "a probe counts it as waiting"
    bench.read("a")
    bench.wait()

    assert bench.log == ["a/p first", "a/p done", "a/d first", "a/d done"]
    assert bench.reader.kept == 0


@pytest.mark.parametrize("waits", [True, False])
def test_who_leaves_before_it_was_fetched_lets_go_at_once(waits: bool) -> None:
    bench = Bench()
    bench.read("a")
    if not waits:
        bench.wait(SECOND)
    run = bench.answer("a", waits=waits)
    bench.workers[0].abort(run.run_id)
    bench.wait(SECOND)
    assert bench.reader.kept == waits  # read after all, in vain

    bench.wait(31 * SECOND)
    assert bench.reader.kept == 0
    assert bench.workers[0].outstanding == 0


def test_the_lease_of_what_waits_for_its_turn_is_kept_alive_and_that_of_a_dead_one_is_not() -> None:
    bench = Bench()
    for name in "ab":
        bench.read(name)
    bench.wait(SECOND)
    bench.group.hang(0, True)
    bench.answer("a")
    bench.wait(100 * SECOND)
    assert bench.reader.kept == 1  # the abandoned one is gone

    bench.group.hang(0, False)
    bench.workers[0].crash()
    assert bench.log[-1] == "a/d connection reset"
    bench.wait(25 * SECOND)
    assert bench.reader.kept == 0


def test_what_is_on_its_way_from_one_that_dies_is_lost() -> None:
    bench = Bench()
    bench.read("a")
    bench.wait(SECOND)
    bench.answer("a")
    bench.reader.crash()
    bench.wait()

    assert bench.log[-1] == "a/d 500: what it was fetching is gone"
    assert bench.group.model.alive == 0


def test_a_rank_that_hangs_holds_up_its_group_and_one_that_dies_does_not() -> None:
    bench = Bench()
    for name in "ab":
        bench.read(name)
    bench.wait(SECOND)
    bench.answer("a", rank=0)
    bench.answer("b", rank=1)
    bench.wait(20 * MS)
    bench.workers[1].hang(True)
    bench.wait()
    assert "a/d done" not in bench.log

    bench.workers[1].hang(False)
    bench.workers[1].crash()
    bench.wait()
    assert bench.log[-2:] == ["b/d connection reset", "a/d done"]
    assert not bench.workers[1].observe(0).healthy
    bench.workers[1].restart()
    assert bench.workers[1].observe(0).healthy


def test_a_probe_sees_batches_and_caches_and_a_gateway_how_far_an_answer_has_come() -> None:
    bench = Bench()
    for name in "ab":
        bench.read(name)
    bench.wait(SECOND)
    run = bench.answer("a")
    bench.answer("b")
    bench.wait(60 * MS)
    seen = bench.workers[0].observe(0)

    assert (seen.running, seen.waiting) == (1, 1)
    assert seen.kv_usage * seen.kv_tokens == pytest.approx(160 + 160 + bench.workers[0].generated(run.run_id))
    assert bench.workers[0].generated(run.run_id) == 5

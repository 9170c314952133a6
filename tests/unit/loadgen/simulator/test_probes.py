"""A probe reports each change once, and unchanged states before they become stale."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.core.vocabulary import (
    Jurisdiction,
    ModelName,
    Place,
    RegionName,
    ReplicaId,
    ReplicaObservation,
    ReplicaSpec,
)
from loadgen.engine.presets import TINY
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.engines import SimEngine
from loadgen.simulator.probes import Probes

SECOND = 1_000_000_000
SPEC = ReplicaSpec(ReplicaId("r0"), Place(RegionName("us"), Jurisdiction("US")), (ModelName("llama"),))


def engines(agenda: Agenda, count: int) -> list[SimEngine]:
    return [SimEngine(replace(SPEC, replica_id=ReplicaId(f"r{number}")), TINY, agenda) for number in range(count)]


def probe(agenda: Agenda, probes: Probes, at_ns: int) -> tuple[ReplicaObservation, ...]:
    """Observations of a probe that is sent, taken and reported at one moment."""
    agenda.run_until(at_ns)
    observations = probes.news(at_ns)
    probes.tell(observations)
    return observations


def names(observations: tuple[ReplicaObservation, ...]) -> list[str]:
    return [each.replica_id for each in observations]


def test_what_changed_is_told_once_and_the_rest_before_it_is_old() -> None:
    agenda = Agenda()
    some = engines(agenda, 3)
    probes = Probes(some, SECOND)
    assert names(probe(agenda, probes, SECOND)) == ["r0", "r1", "r2"]
    assert names(probe(agenda, probes, SECOND + SECOND // 4)) == []
    some[1].crash()
    told = probe(agenda, probes, SECOND + SECOND // 2)
    assert [(each.replica_id, each.healthy) for each in told] == [("r1", False)]
    assert names(probe(agenda, probes, 2 * SECOND)) == ["r0", "r2"]
    assert names(probe(agenda, probes, 2 * SECOND + SECOND // 2)) == ["r1"]


def test_what_changes_on_the_way_is_told_again() -> None:
    agenda = Agenda()
    some = engines(agenda, 1)
    probes = Probes(some, SECOND)
    seen = probes.news(0)
    agenda.run_until(SECOND // 10)
    some[0].crash()
    probes.tell(seen)
    assert [each.healthy for each in probe(agenda, probes, SECOND // 5)] == [False]


def test_whoever_starts_anew_is_told_everything() -> None:
    agenda = Agenda()
    probes = Probes(engines(agenda, 2), SECOND)
    probe(agenda, probes, SECOND)
    probes.forget()
    assert names(probe(agenda, probes, SECOND + 1)) == ["r0", "r1"]

"""Shadow overflow records the forwards that overflow would make, and moves nothing."""

from __future__ import annotations

import random

import pytest

from gateway.core.config import CoreConfig
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.config import OverflowMode, PlacementConfig, PlacementPolicy
from gateway.core.kernel.effects import Effect
from gateway.core.vocabulary import (
    RequestId,
)
from tests.support.core import (
    BOTH,
    EU,
    EU_PEER,
    LONG,
    MS,
    Desk,
    busy_desk,
    desk,
    of_kind,
    started,
    words,
)
from tests.support.nightly import first_of

under_both = pytest.mark.parametrize("placement", BOTH)


@under_both
class TestShadow:
    CONFIG = CoreConfig(placement=PlacementConfig(overflow=OverflowMode.SHADOW))

    def shadows(self, effects: list[Effect]) -> list[str]:
        return [effect.target.id for effect in of_kind(ordered.RecordShadow, effects)]

    def test_it_records_what_it_would_have_forwarded_once_and_keeps_the_request(
        self, placement: PlacementPolicy
    ) -> None:
        one = busy_desk(placement, config=self.CONFIG)
        effects = one.ask("q")
        assert (started(effects), self.shadows(effects)) == ([], ["gw-eu"])
        one.wait(50 * MS)
        assert self.shadows(one.hear("gw-eu", EU)) == []
        assert started(one.probe("r0")) == ["r0"]

    def test_who_arrives_behind_others_is_recorded_as_well(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement, config=self.CONFIG)
        assert [self.shadows(one.ask(f"q{i}")) for i in range(3)] == [["gw-eu"]] * 3

    def test_what_runs_at_home_casts_no_shadow(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER], config=self.CONFIG, placement=placement)
        one.hear("gw-eu", EU)
        assert self.shadows(one.ask("q")) == []


class _Region:
    """Gateway with one or two replicas and a peer abroad, under one overflow mode. Events are drawn at random; they are
    the same for every mode for as long as the modes give the same orders."""

    def __init__(self, seed: int, mode: OverflowMode) -> None:
        self._rng = random.Random(seed)
        config = CoreConfig(placement=PlacementConfig(overflow=mode))
        self.one = desk(replicas=1 + seed % 2, peers=[EU_PEER], config=config)
        self.running: dict[str, str] = {}
        """Running requests and their targets."""
        self._asked = 0

    def step(self) -> list[Effect]:
        self.one.wait(self._rng.randrange(1, 20) * MS)
        effects = self._rng.choice((self._ask, self._ask, self._probe, self._hear, self._answer, self._finish))()
        self.running |= {leg.request_id: leg.target.id for leg in of_kind(ordered.StartLeg, effects)}
        return effects

    def _ask(self) -> list[Effect]:
        self._asked += 1
        prompt = words(f"s{self._rng.randrange(6)}", self._rng.choice((3, 100, LONG)))
        return self.one.ask(f"q{self._asked}", prompt=prompt)

    def _probe(self) -> list[Effect]:
        return self.one.probe(running=self._rng.randrange(40))

    def _hear(self) -> list[Effect]:
        return self.one.hear("gw-eu", EU, available=8, rtt_ms=self._rng.choice((1, 30, 300, 3_000)))

    def _answer(self) -> list[Effect]:
        return self.one.first_token(self._rng.choice(list(self.running))) if self.running else []

    def _finish(self) -> list[Effect]:
        if not self.running:
            return []
        request_id = self._rng.choice(list(self.running))
        del self.running[request_id]
        return self.one.finish(request_id)


class TestShadowByCost:
    """Placement by cost weighs all targets at once: the shadow is the choice of the same rule with targets abroad
    included."""

    CONFIG = TestShadow.CONFIG

    def shadows(self, effects: list[Effect]) -> list[tuple[str, str]]:
        return [(effect.request_id, effect.target.id) for effect in of_kind(ordered.RecordShadow, effects)]

    def beside(self, rtt_ms: int) -> Desk:
        """One replica, and an idle peer at this round-trip time."""
        one = desk(replicas=1, peers=[EU_PEER], config=self.CONFIG)
        one.hear("gw-eu", EU, rtt_ms=rtt_ms)
        return one

    def test_what_is_held_where_abroad_is_dearer_casts_none(self) -> None:
        one = self.beside(rtt_ms=10_000)
        one.ask("first", prompt=words("first"))
        assert self.shadows(one.ask("waits", prompt=words("waits"))) == []
        assert one.core.requests[RequestId("waits")].held is not None

    def test_what_is_held_where_abroad_is_cheaper_casts_one(self) -> None:
        one = self.beside(rtt_ms=10)
        one.ask("first", prompt=words("first"))
        assert self.shadows(one.ask("waits", prompt=words("waits"))) == [("waits", "gw-eu")]
        assert one.core.requests[RequestId("waits")].held is not None

    def test_what_is_held_casts_one_once_abroad_becomes_cheaper(self) -> None:
        one = self.beside(rtt_ms=10_000)
        one.ask("first", prompt=words("first"))
        one.ask("waits", prompt=words("waits"))
        one.wait(10 * MS)
        one.hear("gw-eu", EU, rtt_ms=10)
        assert self.shadows(one.probe(running=1)) == [("waits", "gw-eu")]
        assert self.shadows(one.probe(running=1)) == []

    def test_what_is_sent_to_a_busy_replica_at_once_casts_one(self) -> None:
        one = self.beside(rtt_ms=10)
        one.probe(running=300)
        effects = one.ask("q")
        assert (started(effects), self.shadows(effects)) == (["r0"], [("q", "gw-eu")])
        (shadow,) = of_kind(ordered.RecordShadow, effects)
        costs = [each.costs.total_ns for each in shadow.decision.considered if each.costs is not None]
        assert len(costs) == 2, "each that was compared, with what it would have cost"
        assert costs[0] < costs[1], "first whom the rule would have chosen"
        assert effects.index(shadow) == 0, "told before what was done instead"

    @pytest.mark.parametrize("seed", first_of(range(10), 3))
    def test_it_changes_nothing_of_what_is_done(self, seed: int) -> None:
        off, shadow = _Region(seed, OverflowMode.OFF), _Region(seed, OverflowMode.SHADOW)
        recorded: list[tuple[str, str]] = []
        for _ in range(400):
            told = shadow.step()
            recorded += self.shadows(told)
            assert off.step() == [effect for effect in told if not isinstance(effect, ordered.RecordShadow)]
        assert recorded
        assert len(recorded) == len(set(recorded)), "once for each request"

    def test_it_tells_what_overflow_would_have_done(self) -> None:
        """The modes agree until the first forward, after which their runs differ."""
        seen = []
        for seed in range(30):
            on, shadow = _Region(seed, OverflowMode.ON), _Region(seed, OverflowMode.SHADOW)
            for _ in range(400):
                abroad = [(leg.request_id, leg.target.id) for leg in of_kind(ordered.StartLeg, on.step())]
                abroad = [each for each in abroad if each[1] == "gw-eu"]
                told = self.shadows(shadow.step())
                assert told[:1] == abroad[:1]
                if abroad:
                    seen.append(shadow.one.core.requests[RequestId(abroad[0][0])].held is not None)
                    break
        assert set(seen) == {True, False}, "of those that were held here, and of those that were sent at once"


def test_what_is_held_casts_a_shadow_once() -> None:
    config = CoreConfig(placement=PlacementConfig(overflow=OverflowMode.SHADOW))
    one = desk(replicas=1, peers=[EU_PEER], config=config)
    one.hear("gw-eu", EU)
    one.ask("first", prompt=words("first"))
    assert len(of_kind(ordered.RecordShadow, one.ask("waits", prompt=words("waits")))) == 1
    one.wait(10 * MS)
    assert of_kind(ordered.RecordShadow, one.probe(running=1)) == []

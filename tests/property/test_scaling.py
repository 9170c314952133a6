"""Regions that scale together: under constant load the wanted replicas rise, settle, and never oscillate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.features.scaling.demand import needed_replicas, needed_slots
from gateway.core.features.scaling.scaler import Scaler
from gateway.core.features.scaling.vocabulary import (
    Heard,
    PoolKey,
    PoolSettings,
    Sample,
    ScalingReason,
    ScalingSettings,
    Want,
    Way,
)
from gateway.core.vocabulary import GatewayId, ModelName, RegionName

SECOND = 1_000_000_000
MS = 1_000_000
INTERVAL = 15 * SECOND
MODEL = ModelName("m")
SETTINGS = ScalingSettings(down_after_ns=60 * SECOND, down_every_ns=30 * SECOND)


@dataclass
class Region:
    name: RegionName
    running: int
    ready: int
    pool: PoolSettings
    ways: tuple[Way, ...]
    accepts: tuple[RegionName, ...]
    pinned: int = 0
    scaler: Scaler | None = None

    def begin(self, scaling: ScalingSettings) -> Scaler:
        gateway_id = GatewayId(f"{self.name}-gw")
        self.scaler = Scaler(gateway_id, self.name, scaling, [self.pool], stale_ns=4 * INTERVAL)
        return self.scaler


@st.composite
def meshes(draw: st.DrawFn, *, is_open: bool = False) -> list[Region]:
    """Regions with random load. `is_open`: every region may forward to every other, and regions differ in load
    alone.
    """
    names = [RegionName(name) for name in ("ap", "eu", "us", "za")[: draw(st.integers(1, 4))]]
    regions = []
    for name in names:
        others = [other for other in names if other != name]
        some = st.just(others) if is_open or not others else st.lists(st.sampled_from(others), unique=True)
        most = draw(st.integers(1, 6))
        running = draw(st.integers(0, 50))
        concurrency = 8 if is_open else draw(st.sampled_from((5, 8)))
        price = 0.0 if is_open else draw(st.sampled_from((0.0, 1.0, 2.0)))
        pool = PoolSettings(MODEL, concurrency, most, replicas_min=draw(st.integers(0, most)), price=price)
        ways = tuple(Way(other, draw(st.integers(1, 150 if is_open else 300)) * MS) for other in draw(some))
        ready, pinned = draw(st.integers(0, most)), 0 if is_open else draw(st.integers(0, running))
        regions.append(Region(name, running, ready, pool, ways, tuple(draw(some)), pinned))
    return regions


def play(
    regions: list[Region],
    looks: int,
    scaling: ScalingSettings = SETTINGS,
    *,
    obeys: Callable[[Region], bool] = lambda _: True,
) -> dict[RegionName, list[Want]]:
    """Let each region evaluate in turn, with the latest reports of the others and the replicas wanted at its last
    evaluation.
    """
    told: dict[RegionName, list[Want]] = {each.name: [] for each in regions}
    scalers = {each.name: each.scaler or each.begin(scaling) for each in regions}
    for number in range(looks):
        for turn, each in enumerate(regions):
            now_ns = number * INTERVAL + turn * SECOND
            scaler = scalers[each.name]
            for other in regions:
                if other is not each and number:
                    heard = Heard(GatewayId(f"{other.name}-gw"), other.name, scalers[other.name].report, now_ns)
                    scaler.hear(heard)
            sample = Sample(each.ready, each.running, pinned=each.pinned)
            (want,) = scaler.look(
                now_ns, {each.pool.key: sample}, minute_of_day=0, ways=each.ways, accepts=each.accepts
            )
            told[each.name].append(want)
            if obeys(each):
                each.ready = want.wanted
    return told


def turns(counts: list[int]) -> list[int]:
    """Direction of each change, as +1 or -1."""
    return [1 if after > before else -1 for before, after in pairwise(counts) if after != before]


@settings(max_examples=20)
@given(meshes())
def test_with_constant_load_nobody_goes_to_and_fro(regions: list[Region]) -> None:
    """Wanted replicas may rise and then fall, once; the first two evaluations, without reports of others, are
    left out.
    """
    told = play(regions, 30)
    for name, wants in told.items():
        changes = turns([want.wanted for want in wants[2:]])
        assert changes == sorted(changes, reverse=True), f"{name}: {changes}"


@settings(max_examples=20)
@given(meshes())
def test_it_stays_within_its_bounds_and_comes_to_rest(regions: list[Region]) -> None:
    told = play(regions, 60)
    for each in regions:
        counts = [want.wanted for want in told[each.name]]
        assert all(each.pool.replicas_min <= count <= each.pool.replicas_max for count in counts)
        assert counts[-1] == counts[-8]
        assert told[each.name][-1].reason not in (ScalingReason.WAITS, ScalingReason.COOLS)


@settings(max_examples=20)
@given(meshes())
def test_at_rest_nobody_goes_short_whom_one_more_would_help(regions: list[Region]) -> None:
    told = play(regions, 60)
    for each in regions:
        want = told[each.name][-1]
        if want.missing:
            assert want.wanted == each.pool.replicas_max


@settings(max_examples=60)
@given(meshes(is_open=True), st.sampled_from((0.0, 0.1)))
def test_together_they_keep_no_more_than_each_for_its_load_and_the_slack(regions: list[Region], slack: float) -> None:
    """Slack may keep a replica that a region which grows would not have asked for; without slack there is none."""
    scaling = replace(SETTINGS, slack_share=slack)
    told = play(regions, 60, scaling)
    apart = sum(max(each.pool.replicas_min, replicas_for(told[each.name][-1], scaling)) for each in regions)
    assert sum(wants[-1].wanted for wants in told.values()) <= apart


def replicas_for(want: Want, scaling: ScalingSettings) -> int:
    """Replicas for the load of a region's own clients and the slack."""
    slots = needed_slots(want.offered, scaling.headroom) * (1.0 + scaling.slack_share)
    return needed_replicas(round(slots), want.concurrency)


@settings(max_examples=12)
@given(meshes(), st.integers(0, 50))
def test_after_a_change_of_load_it_comes_to_rest_again(regions: list[Region], running: int) -> None:
    play(regions, 30)
    regions[0].running, regions[0].pinned = running, 0
    for each in regions:
        each.scaler = None
    told = play(regions, 30)
    for wants in told.values():
        changes = turns([want.wanted for want in wants[2:]])
        assert changes == sorted(changes, reverse=True)


def mesh_of_two(running: int, ready: int) -> list[Region]:
    """Two regions: Europe is busy, America idle."""
    eu, us = RegionName("eu"), RegionName("us")
    pool = PoolSettings(MODEL, 8, 6)
    return [
        Region(eu, running, 2, pool, (Way(us, 80 * MS),), (us,)),
        Region(us, 0, ready, pool, (Way(eu, 80 * MS),), (eu,)),
    ]


def test_a_neighbour_is_not_counted_on_that_never_gets_what_it_asked_for() -> None:
    eu, us = mesh_of_two(30, 1)
    us.pool = replace(us.pool, price=0.0)
    eu.pool = replace(eu.pool, price=9.0)
    scaling = replace(SETTINGS, start_max_ns=120 * SECOND)
    early = play([eu, us], 6, scaling, obeys=lambda each: each is eu)
    assert early[RegionName("us")][-1].wanted > us.ready
    assert early[RegionName("eu")][-1].wanted == 2
    late = play([eu, us], 40, scaling, obeys=lambda each: each is eu)
    assert late[RegionName("eu")][-1].wanted > 2


def test_whose_requests_wait_although_neighbours_idle_counts_on_itself() -> None:
    eu, us = mesh_of_two(30, 4)
    scaler = eu.begin(SETTINGS)
    play([eu, us], 10)
    key = PoolKey(MODEL, eu.pool.pool)
    assert scaler.wants[key].borrowed
    before = scaler.wants[key].wanted
    for number in range(12):
        now_ns = (20 + number) * INTERVAL
        assert us.scaler is not None
        scaler.hear(Heard(GatewayId("us-gw"), us.name, us.scaler.report, now_ns))
        sample = Sample(eu.ready, 16, waiting=14)
        scaler.look(now_ns, {key: sample}, minute_of_day=0, ways=eu.ways, accepts=eu.accepts)
    assert scaler.wants[key].wanted > before
    assert scaler.report.loads[0].is_alone
    assert not scaler.wants[key].borrowed

from __future__ import annotations

from msgspec.structs import replace

from gateway.core.features.scaling.scaler import Scaler
from gateway.core.features.scaling.vocabulary import (
    Floor,
    Heard,
    PoolKey,
    PoolSettings,
    Sample,
    ScalingReason,
    ScalingReport,
    ScalingSettings,
    Want,
    Way,
)
from gateway.core.vocabulary import DEFAULT_POOL, GatewayId, ModelName, RegionName

SECOND = 1_000_000_000
MS = 1_000_000
EU, US = RegionName("eu"), RegionName("us")
MODEL = ModelName("m")
KEY = PoolKey(MODEL, DEFAULT_POOL)
POOL = PoolSettings(MODEL, 8, 10)
SETTINGS = ScalingSettings(up_after_ns=0)


def scaler(gateway_id: str = "eu-1", region: RegionName = EU, pool: PoolSettings = POOL, **changes: object) -> Scaler:
    settings = replace(SETTINGS, **changes)
    return Scaler(GatewayId(gateway_id), region, settings, [pool], stale_ns=10 * SECOND)


def look(
    it: Scaler, at_s: float, *, running: int = 0, ready: int = 1, minute: int = 0, to: RegionName | None = US
) -> Want:
    ways = () if to is None else (Way(to, 80 * MS),)
    accepts = () if to is None else (to,)
    sample = Sample(ready=ready, running=running)
    (want,) = it.look(round(at_s * SECOND), {KEY: sample}, minute_of_day=minute, ways=ways, accepts=accepts)
    return want


def heard(other: Scaler, gateway_id: str, region: RegionName, at_s: float) -> Heard:
    return Heard(GatewayId(gateway_id), region, other.report, round(at_s * SECOND))


def test_an_idle_neighbour_is_counted_on_for_as_long_as_it_is_heard() -> None:
    here, there = scaler(), scaler("us-1", US)
    look(there, 0, ready=4, to=EU)
    here.hear(heard(there, "us-1", US, 0))
    assert look(here, 1, running=20).wanted == 1
    assert look(here, 9, running=20).reason is ScalingReason.BORROWS
    assert look(here, 12, running=20).wanted == 4


def test_a_neighbour_too_far_away_is_not() -> None:
    here, there = scaler(reach_ns=50 * MS), scaler("us-1", US)
    look(there, 0, ready=4, to=EU)
    here.hear(heard(there, "us-1", US, 0))
    assert look(here, 1, running=20).wanted == 4


def test_a_neighbour_that_does_not_take_ours_is_not() -> None:
    here, there = scaler(), scaler("us-1", US)
    look(there, 0, ready=4, to=None)
    here.hear(heard(there, "us-1", US, 0))
    assert look(here, 1, running=20).wanted == 4


def test_a_gateway_beside_us_adds_its_demand_and_one_of_us_speaks() -> None:
    first, second = scaler("eu-1"), scaler("eu-2")
    for number in range(4):
        look(first, 2 * number, running=10, ready=2, to=None)
        second.hear(heard(first, "eu-1", EU, 2 * number))
        look(second, 2 * number + 1, running=10, ready=1, to=None)
        first.hear(heard(second, "eu-2", EU, 2 * number + 1))
    assert first.wants[KEY].ready == 3
    assert first.wants[KEY].offered == 20_000
    assert first.wants[KEY].wanted == second.wants[KEY].wanted == 4
    silent = [look(second, 30 + number, running=10, ready=1, to=None) for number in range(2)]
    assert silent[-1].offered == 10_000, "the other one is heard no more"
    assert silent[-1].wanted == 4


def test_a_plan_for_the_day_is_a_floor() -> None:
    pool = replace(POOL, floors=(Floor(6 * 60, 3), Floor(20 * 60, 0)))
    it = scaler(pool=pool)
    assert look(it, 0, minute=3 * 60).wanted == 1
    risen = look(it, 1, minute=6 * 60)
    assert (risen.wanted, risen.reason) == (3, ScalingReason.BOUNDS)
    assert look(it, 2, minute=19 * 60 + 59).least == 3
    assert look(it, 3, minute=20 * 60).least == 1
    assert pool.least_at(3 * 60) == 1, "before the first of the day, the last of the day before"
    assert replace(pool, replicas_max=2).least_at(7 * 60) == 2


def test_after_a_start_nobody_is_sent_away() -> None:
    assert look(scaler(), 0, ready=6).wanted == 6


def test_after_a_start_what_the_gateway_beside_us_wants_is_wanted() -> None:
    old, new = scaler("eu-1"), scaler("eu-2")
    look(old, 0, running=40, to=None)
    new.hear(heard(old, "eu-1", EU, 0))
    assert look(new, 1, ready=0, to=None).wanted == old.wants[KEY].wanted > 1


def test_what_others_say_of_other_pools_is_none_of_ours() -> None:
    here, there = (
        scaler(),
        scaler("us-1", US, replace(POOL, pool=PoolKey(MODEL, DEFAULT_POOL).pool, model=ModelName("n"))),
    )
    there.look(0, {}, minute_of_day=0)
    here.hear(heard(there, "us-1", US, 0))
    assert look(here, 1, running=20).borrowed == 0


def test_it_tells_what_others_need_to_know() -> None:
    it = scaler()
    look(it, 0, running=8, ready=2)
    (load,) = it.report.loads
    assert (load.key, load.ready, load.wanted, load.offered, load.concurrency, load.most) == (KEY, 2, 2, 8_000, 8, 10)
    assert it.report == ScalingReport((load,), (Way(US, 80 * MS),), (US,))


def test_the_ones_that_would_be_wanted_beyond_the_most_are_missing() -> None:
    want = look(scaler(pool=replace(POOL, replicas_max=2)), 0, running=40, to=None)
    want = want if want.wanted == 2 else look(scaler(pool=replace(POOL, replicas_max=2)), 1, running=40, to=None)
    assert want.wanted == 2
    assert want.missing_replicas == 4

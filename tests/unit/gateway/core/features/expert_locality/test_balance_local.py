from __future__ import annotations

from gateway.core.features.disaggregated.config import BalanceConfig, DecodeConfig, DecodePolicyName
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.nearness import Nearness
from gateway.core.vocabulary import ReplicaId, RequestId
from tests.support.decode import MS, SECOND, Bench, bench, pool_spec
from tests.support.locality import near

TWO_GROUPS = {"w0": "a", "w1": "a", "w2": "b", "w3": "b"}


def under(workers: dict[str, str] = TWO_GROUPS, batch: int = 2) -> Bench:
    balance = BalanceConfig(block_tokens=1, greedy_above_slots=0)
    config = DecodeConfig(DecodePolicyName.BR_H_LOCAL, balance=balance, band=0.1, pool_ttl_ns=30 * SECOND)
    one = bench(workers, config=config, spec=pool_spec(batch))
    one.tier.take_artifact("a1", len({group or worker for worker, group in workers.items()}), 0)
    return one


def add(one: Bench, key: str, tokens: int, nearness: Nearness | None) -> None:
    assert one.tier.add(Facts(RequestId(key), tokens, nearness=nearness), one.now_ns, one.now_ns + 60 * SECOND) is None


def test_each_group_is_filled_with_those_near_to_it_and_evenly() -> None:
    one = under()
    for number, tokens in enumerate([400, 300, 200, 100]):
        add(one, f"a{number}", tokens, near(0.9, 0.1))
        add(one, f"b{number}", tokens, near(0.1, 0.9))
    went = dict(one.tick())
    assert {key[0] for key, worker in went.items() if worker in ("w0", "w1")} == {"a"}
    assert {key[0] for key, worker in went.items() if worker in ("w2", "w3")} == {"b"}
    assert one.loads() == {"a": (600, 400), "b": (600, 400)}, "as BR-H fills each by itself"


def test_nobody_waits_for_a_full_worker_while_another_one_has_room() -> None:
    one = under(batch=1)
    for number in range(3):
        add(one, f"q{number}", 100, near(0.9, 0.1))
    went = dict(one.tick())
    assert len(went) == 3
    assert sum(worker in ("w0", "w1") for worker in went.values()) == 2


def test_who_has_waited_for_half_of_its_time_goes_anywhere() -> None:
    one = under({"w0": "", "w1": ""}, batch=1)
    one.tier.set_open(ReplicaId("w1"), False, 0)
    add(one, "first", 100, near(0.9, 0.1))
    one.tick()
    add(one, "late", 100, near(0.9, 0.1))
    assert one.tick() == []
    one.now_ns += 16 * SECOND
    one.tier.set_open(ReplicaId("w1"), True, one.now_ns)
    assert one.tick(MS) == [("late", "w1")]


def test_without_signatures_it_is_balance_route() -> None:
    one = under()
    for number, tokens in enumerate([400, 300, 200, 100]):
        add(one, f"q{number}", tokens, None)
    assert len(one.tick()) == 4
    assert one.tier.figures(0).ticks_degraded == 1, "there is no predictor"

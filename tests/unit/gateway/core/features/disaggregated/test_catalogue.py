from __future__ import annotations

import pytest

from gateway.core.features.disaggregated.config import DecodeConfig, DecodePolicyName
from tests.support.decode import Bench, bench, pool_spec

BASELINES = [
    DecodePolicyName.RANDOM,
    DecodePolicyName.ROUND_ROBIN,
    DecodePolicyName.POWER_OF_TWO,
    DecodePolicyName.JOIN_SHORTEST_QUEUE,
    DecodePolicyName.LEAST_KV_TOKENS,
]


def under(policy: DecodePolicyName, workers: int = 2, batch: int = 8, seed: int = 1) -> Bench:
    return bench(workers, config=DecodeConfig(policy), spec=pool_spec(batch), seed=seed)


def shares(policy: DecodePolicyName, requests: int = 400) -> dict[str, int]:
    """Number of requests that each of three workers gets, one at a time, while eight earlier requests keep running."""
    counts = {"w0": 0, "w1": 0, "w2": 0}
    one = under(policy, 3, 9)
    for number in range(8):
        one.add(f"before {number}", 100)
    one.tick()
    for number in range(requests):
        one.add(f"q{number}", 100)
        ((key, worker),) = one.tick()
        one.end(key)
        counts[worker] += 1
    return counts


@pytest.mark.parametrize("policy", BASELINES)
def test_each_serves_everybody_and_fills_every_slot(policy: DecodePolicyName) -> None:
    one = under(policy, 3, 2)
    for number in range(9):
        one.add(f"q{number}", 100 + number)
    assert [key for key, _ in one.tick()] == [f"q{number}" for number in range(6)], "first come, first served"
    assert one.tick() == []
    for number in range(6):
        one.end(f"q{number}")
    assert len(one.tick()) == 3


def test_round_robin_takes_turns_and_leaves_out_who_is_full() -> None:
    one = under(DecodePolicyName.ROUND_ROBIN, 3, 2)
    for number in range(3):
        one.add(f"q{number}")
    assert [worker for _, worker in one.tick()] == ["w0", "w1", "w2"]
    one.end("q1")
    for number in range(3, 8):
        one.add(f"q{number}")
    assert [worker for _, worker in one.tick()] == ["w0", "w1", "w2", "w1"]


def test_by_chance_everybody_gets_a_share() -> None:
    assert min(shares(DecodePolicyName.RANDOM).values()) > 80


def test_of_two_the_emptier_one() -> None:
    """The worker with the most requests gets one only when it is drawn twice: a ninth of them."""
    one = under(DecodePolicyName.POWER_OF_TWO, 3, 9)
    one.add("long", 100)
    ((_, busy),) = one.tick()
    count = 0
    for number in range(450):
        one.add(f"q{number}", 100)
        ((key, worker),) = one.tick()
        count += worker == busy
        one.end(key)
    assert 20 < count < 90


def test_the_shortest_queue_is_counted_in_requests() -> None:
    one = under(DecodePolicyName.JOIN_SHORTEST_QUEUE)
    for key, tokens in (("a", 9000), ("b", 10), ("c", 10)):
        one.add(key, tokens)
    first, second, third = (worker for _, worker in one.tick())
    assert first != second
    one.add("d", 10)
    assert one.tick() == [("d", first if third == second else second)], "however large those are that it has"


def test_fewest_tokens_are_counted_with_what_was_generated() -> None:
    one = under(DecodePolicyName.LEAST_KV_TOKENS)
    one.add("a", 9000)
    ((_, heavy),) = one.tick()
    light = {"w0": "w1", "w1": "w0"}[heavy]
    for number in range(6):
        one.add(f"q{number}", 1000)
    assert {worker for _, worker in one.tick()} == {light}
    one.grow("q0", 3001)
    one.add("last", 1)
    assert one.tick() == [("last", heavy)]

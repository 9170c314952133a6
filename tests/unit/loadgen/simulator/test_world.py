"""Whole small worlds: programs run in their order, distances cost time, probes report changes, faults heal."""

from __future__ import annotations

import re
from typing import Any

from loadgen.simulator.gateways import NOTICED_AFTER_NS
from loadgen.simulator.world import Story, World
from loadgen.vocabulary import RequestEnd
from tests.support.scenarios import small_scenario

ROUND_TRIP_NS = 80_000_000
SECOND = 1_000_000_000


def play(**changes: Any) -> tuple[Story, list[str]]:
    """The story and every line of it, of a world checked to its end."""
    own = {
        "duration": "8s",
        "workloads": {"chat": {"conversations": {}}, "tree": {"tree": {}}, "bursts": {"bursts": {"requests": 30}}},
        "clients": [{"region": "eu", "workload": "chat", "clients": 3}],
    }
    scenario = small_scenario(**own | changes)
    lines: list[str] = []
    world = World(scenario, scenario.runs[0], every_invariant=True, on_line=lines.append)
    story = world.play()
    world.check_the_end()
    return story, lines


def first_token_ns(story: Story) -> list[int]:
    return [each.first_token_ns - each.sent_ns for each in story.records if each.first_token_ns is not None]


def first_forward_ns(lines: list[str]) -> int:
    return min(int(line.split()[0]) for line in lines if " peer:us/gw" in line)


def test_a_global_balancer_costs_its_distance_on_every_way() -> None:
    at_home, _ = play()
    far, lines = play(runs=[{"system": "global_round_robin"}])
    assert min(first_token_ns(at_home)) < ROUND_TRIP_NS
    assert min(first_token_ns(far)) >= ROUND_TRIP_NS
    assert {line.split()[1] for line in lines if " arrived " in line} == {"us/gw"}
    assert {each.served_by for each in far.records} == {"us", "eu"}
    from_there = [each for each in far.records if each.served_by == "eu"]
    assert min(each.first_token_ns - each.sent_ns for each in from_there if each.first_token_ns) >= 2 * ROUND_TRIP_NS


def test_exact_prefixes_are_those_that_engines_have() -> None:
    """An engine that crashed has lost its cache, which only a look into the engine reveals."""

    def matched(**run: Any) -> int:
        """Matched blocks of the first prompt that is sent to the engine once it is back, as the gateway counts them."""
        crash = {"kind": "replica_crash", "target": "eu/0", "at": "4s", "lasts": "100ms"}
        _, lines = play(runs=[{"system": "region_local"} | run], faults=[crash])
        found = [re.match(r"(\d+) .* replica:eu/0 .* (\d+)$", line) for line in lines]
        return next(int(each[2]) for each in found if each and int(each[1]) > 4 * SECOND + ROUND_TRIP_NS)

    assert matched() > 0
    assert matched(exact_prefixes=True) == 0


def test_a_tree_is_asked_from_its_root_to_its_last_leaf() -> None:
    story, lines = play(clients=[{"region": "eu", "workload": "tree", "clients": 1}], duration="30s")
    asked, ended = ({match[2]: int(match[1]) for line in lines if (match := re.match(pattern, line))} for pattern in (
        r"(\d+) client 0:eu/0/1#(\d+) asks",
        r"(\d+) client 0:eu/0/1#(\d+) completed",
    ))  # fmt: skip
    assert len(asked) == len(ended) == 15
    for number in range(1, 15):
        assert asked[str(number)] == ended[str((number - 1) // 2)]
    assert all(each.end is RequestEnd.COMPLETED for each in story.records)


def test_a_later_turn_finds_its_history_in_the_cache() -> None:
    story, _ = play()
    assert story.prefix_tokens["eu"].hit > story.prefix_tokens["eu"].queried / 3  # type: ignore[index]


def test_open_loop_users_come_whether_or_not_they_are_answered() -> None:
    slow = {"kind": "replica_slow", "target": "eu/0", "amount": 30, "at": "0s", "lasts": "9s"}
    arrivals = [{"region": "eu", "workload": "bursts", "arrivals": {"rate": 0.5, "variation": 0}}]
    calm, _ = play(clients=arrivals, workloads={"bursts": {"bursts": {"pause_s": instant()}}})
    slowed, _ = play(clients=arrivals, workloads={"bursts": {"bursts": {"pause_s": instant()}}}, faults=[slow])
    assert len(calm.records) == len(slowed.records) == 32 * 3


def instant() -> dict[str, float]:
    return {"median": 0.01, "sigma": 0, "minimum": 0.01, "maximum": 0.01}


def test_probes_tell_what_changed_at_once_and_what_did_not_now_and_then() -> None:
    _, lines = play(
        clients=[{"region": "eu", "workload": "bursts", "clients": 1}],
        workloads={"bursts": {"bursts": {"requests": 30, "pause_s": instant()}}},
        runs=[{"placement": {"overflow": "off"}, "pushing": {"mode": "blind"}}],
        duration="2s",
    )
    probes = {
        name: [int(line.split()[0]) for line in lines if line.split()[1:3] == [f"{name}/gw", "replicas"]]
        for name in ("us", "eu")
    }
    seconds = max(probes["us"]) / SECOND
    assert len(probes["us"]) <= seconds + 2, "an idle engine is reported once a second"
    waiting = [int(line.split()[0]) for line in lines if re.search(r"eu/gw replicas eu/0:1/\d+/[1-9]", line)]
    assert waiting[0] < SECOND // 4, "a queue is noticed with the next probe"


def test_what_is_crashed_comes_back_and_is_used_again() -> None:
    faults = [
        {"kind": "gateway_crash", "target": "eu/gw", "at": "2s", "lasts": "2s"},
        {"kind": "replica_crash", "target": "eu/0", "at": "5s", "lasts": "500ms"},
    ]
    clients = [{"region": "eu", "workload": "chat", "clients": 30}]
    story, lines = play(clients=clients, faults=faults, duration="12s")
    homes = [each for each in story.records if each.served_by == "eu"]
    assert max(each.sent_ns for each in homes) > 6 * SECOND
    assert "the gateway's connection was reset" in {each.detail for each in story.records}
    meanwhile = [line for line in lines if " asks us/gw" in line and 2 * SECOND < int(line.split()[0]) < 4 * SECOND]
    assert meanwhile, "clients go to the next gateway"
    told = [line.split() for line in lines]
    assert not [words for words in told if words[1] == "eu/gw" and 2 * SECOND < int(words[0]) < 4 * SECOND]


def test_an_unreadable_policy_keeps_requests_at_home_until_it_is_read() -> None:
    fault = {"kind": "policy_unreadable", "target": "eu/gw", "at": "0s", "lasts": "5s"}
    _, lines = play(clients=[{"region": "eu", "workload": "chat", "clients": 40}], faults=[fault], duration="10s")
    assert first_forward_ns(lines) >= 5 * SECOND


def test_what_was_cut_twice_is_whole_again_when_the_last_cut_heals() -> None:
    """Holds for either order of the two regions."""
    faults = [
        {"kind": "slow_link", "target": "eu", "other": "us", "amount": 10, "at": "0s", "lasts": "3s"},
        {"kind": "slow_link", "target": "us", "other": "eu", "amount": 10, "at": "1s", "lasts": "5s"},
    ]
    _, lines = play(faults=faults, duration="10s", runs=[{"system": "global_round_robin"}])
    asked, began = (
        {match[2]: int(match[1]) for line in lines if (match := re.match(pattern, line))}
        for pattern in (r"(\d+) client (\S+) asks", r"(\d+) us/gw arrived (\S+)")
    )
    slow = [number for number, at_ns in asked.items() if 3 * SECOND < at_ns < 5 * SECOND]
    fast = [number for number, at_ns in asked.items() if at_ns > 6 * SECOND]
    assert slow
    assert fast
    assert all(began[number] - asked[number] == 5 * ROUND_TRIP_NS for number in slow)
    assert all(began[number] - asked[number] == ROUND_TRIP_NS // 2 for number in fast)


def test_a_lockdown_of_two_kinds_ends_with_the_last_of_them() -> None:
    faults = [
        {"kind": "lockdown_cut", "target": "eu/gw", "at": "0s", "lasts": "2s"},
        {"kind": "lockdown", "target": "eu/gw", "at": "1s", "lasts": "5s"},
    ]
    clients = [{"region": "eu", "workload": "chat", "clients": 40}]
    _, lines = play(clients=clients, faults=faults, duration="10s")
    assert first_forward_ns(lines) >= 6 * SECOND


def test_who_says_stop_gets_the_story_so_far() -> None:
    scenario = small_scenario(duration="60s")
    world = World(scenario, scenario.runs[0])
    story = world.play(lambda: world.progress.simulated_ns < 5 * SECOND)
    assert story.simulated_ns == 5 * SECOND
    assert 0 < len(story.records) == world.progress.requests


def test_a_stalled_gateway_does_nothing_and_its_peers_stop_asking_it() -> None:
    stall = {"kind": "gateway_stalled", "target": "us/gw", "at": "3s", "lasts": "4s"}
    clients = [{"region": each, "workload": "chat", "clients": 40} for each in ("us", "eu")]
    story, lines = play(clients=clients, faults=[stall], duration="12s")
    told = [(int(line.split()[0]), line) for line in lines]
    assert not [line for at_ns, line in told if line.split()[1] == "us/gw" and 3 * SECOND < at_ns < 7 * SECOND]
    asked = [at_ns for at_ns, line in told if " peer:us/gw" in line]
    assert [at_ns for at_ns in asked if at_ns < 3 * SECOND]
    assert not [at_ns for at_ns in asked if 3 * SECOND + NOTICED_AFTER_NS < at_ns < 7 * SECOND]
    waited = [each for each in story.records if each.sent_ns < 3 * SECOND <= (each.ended_ns or 0)]
    assert any(each.end is RequestEnd.COMPLETED and (each.ended_ns or 0) >= 7 * SECOND for each in waited)

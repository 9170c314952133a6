"""A client that knows only the DNS name: further addresses, retries after a while, and the attribution of failures."""

from __future__ import annotations

from collections import Counter
from typing import Any

from loadgen.simulator.callers import FailedBy
from loadgen.simulator.world import Story, World
from loadgen.vocabulary import RequestEnd
from tests.support.scenarios import controlled_scenario

CLIENTS = [{"region": "us", "workload": "chat", "clients": 6}]


def play(*faults: dict[str, Any], **changes: Any) -> Story:
    scenario = controlled_scenario(clients=CLIENTS, faults=list(faults), duration="12s", **changes)
    return World(scenario, scenario.runs[0], every_invariant=True).play()


def crash(*names: str, at: str = "4s", lasts: str = "20s") -> list[dict[str, Any]]:
    return [{"kind": "gateway_crash", "target": name, "at": at, "lasts": lasts} for name in names]


FURTHER = {"region": "us", "further_gateways": 1}
"""Controller whose records name a further gateway."""


def failures(story: Story) -> Counter[str]:
    return Counter(each.failed_by for each in story.records if each.end is RequestEnd.FAILED)


def test_where_nobody_is_the_next_address_is_tried_at_once() -> None:
    """A sibling lives: every request after the death is served, though the name still leads to both for a while."""
    story = play(*crash("us/gw0"))
    late = [each for each in story.records if each.sent_ns > 4_000_000_000]
    assert late
    assert all(each.end is not RequestEnd.FAILED and each.tries == 1 for each in late)


def test_where_a_whole_region_is_gone_the_further_gateway_is_tried_at_once() -> None:
    story = play(*crash("us/gw0", "us/gw1"), names={"retries": 0}, controller=FURTHER)
    late = [each for each in story.records if each.sent_ns > 4_000_000_000]
    assert late
    assert all(each.end is not RequestEnd.FAILED and each.tries == 1 for each in late)


def test_what_failed_before_it_began_is_tried_again() -> None:
    names = {"retries": 8, "resolvers": 1}
    story = play(*crash("us/gw0", "us/gw1"), names=names)
    assert any(each.tries > 2 and each.end is RequestEnd.COMPLETED for each in story.records)
    assert not failures(story)[FailedBy.CACHED_ANSWER]


def test_without_tries_left_it_is_the_caches_failure_or_the_names() -> None:
    failed = failures(play(*crash("us/gw0", "us/gw1"), names={"retries": 0}))
    assert failed[FailedBy.CACHED_ANSWER] > 0
    assert failed[FailedBy.OLD_ANSWER] > 0
    assert failed[FailedBy.UNCLASSIFIED] == 0


def test_with_no_name_server_left_there_is_no_answer() -> None:
    """Cached answers are used until they expire."""
    everybody = crash("us/gw0", "us/gw1", "eu/gw", "ap/gw")
    gone = {"kind": "controller_crash", "target": "controller", "at": "4s", "lasts": "20s"}
    story = play(*everybody, gone, controller={"region": "us", "ttl_s": 1}, names={"retries": 1})
    assert failures(story)[FailedBy.NO_ANSWER] > 0


def test_a_gateway_that_says_no_is_the_meshs_failure() -> None:
    story = play({"kind": "gateway_drain", "target": "us/gw0", "at": "4s", "lasts": "6s"}, names={"retries": 0})
    assert failures(story)[FailedBy.MESH] > 0


def test_a_client_that_leaves_is_nobody_elses_failure() -> None:
    impatient = [{**CLIENTS[0], "patience": "200ms", "impatient_share": 0.5}]
    scenario = controlled_scenario(clients=impatient, duration="8s")
    story = World(scenario, scenario.runs[0], every_invariant=True).play()
    assert set(failures(story)) == {FailedBy.CLIENT}

"""Replicas that are announced to leave: a world with many failures, and a spot host that is taken away with the usual
notice.
"""

from __future__ import annotations

from loadgen.simulator.chaos import ChaosKind, Finding, run_chaos
from loadgen.simulator.decision_digest import DecisionDigest
from loadgen.simulator.world import World
from tests.support.scenarios import small_scenario

LEAVES_S, GONE_S = 20, 50
SPOT = "replica:us/0"


def test_legs_are_moved_in_a_world_with_failures_and_nothing_is_found() -> None:
    lines: list[str] = []
    assert not isinstance(run_chaos(2, ChaosKind.LEAVING, lines.append), Finding)
    assert any("take back" in line for line in lines)
    assert any("leaves" in line and "by None" in line for line in lines)


def spot_world(lines: list[str]) -> World:
    """World in which one of a region's two replicas is gone 30 s after its notice, while streams of up to a minute and
    batch requests run there, and the other region has room."""
    long = {"conversations": {"output_tokens": {"median": 900, "sigma": 0.3, "minimum": 500, "maximum": 1500}}}
    scenario = small_scenario(
        preset="llama-3.1-8b-l4",
        duration=f"{GONE_S + 10}s",
        drain="300s",
        regions={"us": {"jurisdiction": "US", "replicas": 2}, "eu": {"jurisdiction": "EU", "replicas": 2}},
        workloads={"long": long},
        clients=[
            {"region": "us", "workload": "long", "clients": 8},
            {"region": "us", "workload": "long", "clients": 4, "service_class": "batch"},
        ],
        resumes=True,
        faults=[
            {"kind": "replica_leaves", "target": "us/0", "amount": 30.0, "at": f"{LEAVES_S}s", "lasts": "100s"},
            {"kind": "replica_crash", "target": "us/0", "at": f"{GONE_S}s", "lasts": "1000s"},
        ],
        runs=[{"name": "spot"}],
    )
    return World(scenario, scenario.runs[0], every_invariant=True, decisions=DecisionDigest(lines.append))


def told(lines: list[str], what: str) -> list[tuple[float, list[str]]]:
    """Time in seconds of each line of this kind, and its words from the request on."""
    split = [line.split(" ") for line in lines]
    return [(int(words[0]) / 1e9, words[3:]) for words in split if words[2] == what]


def test_a_notice_of_30_s_loses_nothing_and_batch_moves_first() -> None:
    lines: list[str] = []
    story = spot_world(lines).play()
    assert set(story.outcomes) == {"completed"}
    batch = {words[0] for _, words in told(lines, "arrived") if "batch" in words}
    moved = [(at_s, words[0].rpartition("/")[0]) for at_s, words in told(lines, "take_back_leg")]
    batch_s = [at_s for at_s, request_id in moved if request_id in batch]
    talk_s = [at_s for at_s, request_id in moved if request_id not in batch]
    assert (min(batch_s), min(talk_s)) == (LEAVES_S, LEAVES_S + 25)
    assert max(batch_s) < min(talk_s)
    assert max(at_s for at_s, words in told(lines, "start_leg") if words[2] == SPOT) <= LEAVES_S

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.studies.skywalker.best_hits import best_hits

SPREAD = {"median": 40, "sigma": 0.2, "minimum": 8, "maximum": 100}


def scenario(replicas: int, shared_words: int) -> Scenario:
    conversations = {
        "applications": 1,
        "system_prompt_words": shared_words,
        "profile_words": 40,
        "turns": {"median": 2, "sigma": 0.2, "minimum": 2, "maximum": 3},
        "question_words": SPREAD,
        "output_tokens": SPREAD,
        "think_s": {"median": 1, "sigma": 0.1, "minimum": 0.5, "maximum": 2},
    }
    document = {
        "name": "few",
        "duration": "10s",
        "round_trips": [],
        "regions": {"us-east-1": {"jurisdiction": "US", "replicas": replicas}},
        "workloads": {"chat": {"conversations": conversations}},
        "clients": [{"region": "us-east-1", "workload": "chat", "clients": 12}],
        "runs": [{"system": "skywalker"}],
    }
    return parse_scenario(document, Path("few.yaml"))


def test_one_replica_has_all_that_there_is() -> None:
    hits = best_hits(scenario(1, 200))
    assert 0.3 < hits.hashed == hits.best < 1


@pytest.mark.parametrize("shared_words", [200, 800])
def test_what_users_share_is_read_once_for_each_replica_that_a_key_leads_to(shared_words: int) -> None:
    hits = best_hits(scenario(6, shared_words))
    assert hits.hashed < hits.best == best_hits(scenario(1, shared_words)).best


def test_more_that_is_shared_is_more_that_hashing_reads_again() -> None:
    few, many = best_hits(scenario(6, 200)), best_hits(scenario(6, 800))
    assert many.hashed > few.hashed

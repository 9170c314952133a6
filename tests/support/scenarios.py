"""A small scenario: two regions an ocean apart, one workload and a few clients. A test says what is different in its
own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadgen.simulator.scenario import Scenario, parse_scenario


def small_document(**changes: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "duration": "10s",
        "preset": "tiny",
        "round_trips": [["eu", "us", "80ms"]],
        "regions": {"us": {"jurisdiction": "US", "replicas": 1}, "eu": {"jurisdiction": "EU", "replicas": 1}},
        "workloads": {"chat": {"conversations": {}}},
        "clients": [{"region": "us", "workload": "chat", "clients": 2}],
    } | changes


def small_scenario(**changes: Any) -> Scenario:
    return parse_scenario(small_document(**changes), Path("small.yaml"))

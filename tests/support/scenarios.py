"""A small scenario: two regions an ocean apart, one workload and a few clients. Each test states its differences."""

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


def controlled_document(**changes: Any) -> dict[str, Any]:
    """Three regions, two gateways in the first, and a controller; with durations as short as realism allows."""
    return (
        small_document(
            duration="30s",
            round_trips=[["eu", "us", "80ms"], ["eu", "ap", "200ms"], ["us", "ap", "150ms"]],
            network={"connection_timeout": "2s"},
            regions={
                "us": {"jurisdiction": "US", "gateways": 2, "replicas": 4},
                "eu": {"jurisdiction": "EU", "replicas": 2},
                "ap": {"jurisdiction": "JP", "replicas": 2},
            },
            clients=[{"region": region, "workload": "chat", "clients": 2} for region in ("us", "eu", "ap")],
            controller={"region": "us", "return_after": "2s"},
        )
        | changes
    )


def controlled_scenario(**changes: Any) -> Scenario:
    return parse_scenario(controlled_document(**changes), Path("controlled.yaml"))


def small_scenario(**changes: Any) -> Scenario:
    return parse_scenario(small_document(**changes), Path("small.yaml"))

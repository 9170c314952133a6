"""A gateway's page: its replicas, tenants and the last hour."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.app.observed_core import ObservedCore
from gateway.app.overview import GatewayOverview
from gateway.core.kernel import events
from gateway.core.vocabulary import ReplicaId, ReplicaObservation, ReplicaSpec, TenantName
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.naming.service import NameService
from mesh.page.last_hour import INTERVAL_NS
from tests.support.clock import StillClock
from tests.support.core import EU, US, forward, peer_spec, policy, profile, replica_spec
from tests.support.gateways import region_config, write_policy

ACME = TenantName("acme")


class Shown:
    """Gateway without sockets, and what its page shows."""

    def __init__(self, folder: Path) -> None:
        config = region_config("us-1", US, [], policy_file=write_policy(folder, US))
        log = make_logger(LoggingConfig(format=LogFormat.JSON), config.gateway_id, io.StringIO())
        self.clock = StillClock(now=1)
        self.state: dict[str, object] = {}
        self.desk = ObservedCore(config, self.clock, log)
        self.overview = GatewayOverview(config, self.desk, NameService(Clock(), log), lambda: self.state)
        self.desk.driver.submit(events.PolicyApplied(policy(US)))

    def serve(self, *replicas: ReplicaSpec) -> None:
        self.desk.driver.submit(events.AssignmentApplied(1, replicas, (peer_spec("gw-eu", EU),)))

    def probe(self, *observations: ReplicaObservation) -> None:
        self.desk.driver.submit(events.ReplicasObserved(observations))

    def sections(self) -> dict[str, Any]:
        return self.overview.sections()


@pytest.fixture
async def shown(tmp_path: Path) -> Any:
    made = Shown(tmp_path)
    yield made
    made.desk.close()


def region(sections: dict[str, Any], name: str) -> Any:
    (row,) = [each for each in sections["regions"] if each.region == name]
    return row


async def test_slots_and_kv_cache_stand_in_the_region_of_their_replicas(shown: Shown) -> None:
    shown.serve(replica_spec("home"), replica_spec("away", EU))
    shown.probe(
        ReplicaObservation(ReplicaId("home"), 1, True, running=3, kv_usage=0.5, slots=8),
        ReplicaObservation(ReplicaId("away"), 1, True, running=1, kv_usage=0.2, slots=4),
    )
    sections = shown.sections()
    here, there = region(sections, US.region), region(sections, EU.region)
    assert (here.slots, here.slots_used, here.kv) == (8, 3, 0.5)
    assert (there.slots, there.slots_used, there.kv) == (4, 1, 0.2)
    assert (sections["totals"]["slots"], sections["totals"]["kv"]) == (12, 0.35)


async def test_a_kv_cache_of_which_nothing_is_known_is_not_empty(shown: Shown) -> None:
    shown.serve(replica_spec("home"))
    shown.probe(ReplicaObservation(ReplicaId("home"), 1, False, detail="refused"))
    sections = shown.sections()
    assert sections["totals"]["kv"] is None
    assert region(sections, US.region).kv is None


async def test_a_dead_engine_is_said_once_and_lockdown_since_its_order(shown: Shown) -> None:
    """The problems say it; a note would say it again."""
    shown.serve(replica_spec("home"))
    shown.probe(ReplicaObservation(ReplicaId("home"), 1, False, detail="refused"))
    assert shown.sections()["state"]["notes"] == []
    order = {"active": True, "reason": "drill", "since": "2026-03-01T12:00:00.123456Z"}
    shown.state = {**shown.desk.state(), "lockdown_order": order, "certificates": {}, "peers": []}
    shown.overview.look(shown.clock.now)
    rows = shown.sections()["problems"]["rows"]
    assert [(row["kind"], row["subject"]) for row in rows] == [("no_replica_usable", "home"), ("lockdown", "")]
    assert rows[1]["since_ms"] == 1_772_366_400_123


async def test_tenants_of_forwards_are_one_and_take_no_label_of_the_metrics(shown: Shown) -> None:
    shown.serve(replica_spec("home"))
    shown.probe(ReplicaObservation(ReplicaId("home"), 1, True))
    core = shown.desk.core
    core.handle(forward("f-1"), shown.clock.now)
    core.handle(events.RequestArrived(profile("r-1", tenant=ACME), 10**12), shown.clock.now)
    assert len(core.requests) == 2
    assert {row["tenant"] for row in shown.sections()["tenants"]["rows"]} == {"acme", "(forwarded here)"}
    assert shown.desk.metrics._tenants._labels == {ACME}


async def test_a_state_that_cannot_be_judged_is_a_problem_and_the_last_hour_goes_on(shown: Shown) -> None:
    shown.state = {"replicas": "none of them"}
    for _ in range(3):
        shown.overview.look(shown.clock.now)
        shown.clock.now += INTERVAL_NS
    sections = shown.sections()
    (problem,) = sections["problems"]["rows"]
    assert problem["kind"] == "state_unreadable"
    assert "`$.replicas`" in problem["text"]
    assert len(msgspec.json.decode(sections["hour"])["times_ms"]) == 2

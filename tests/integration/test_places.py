"""False claims about places, by a gateway, a controller or a region file: an EU gateway that may send prompts only to
the EU sends none to the falsely named places.

The EU gateway's own replica is assigned elsewhere, so that each prompt would have to go to the named place.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from msgspec.structs import replace

from controller.app import ControllerHandle, serve_controller
from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.core.vocabulary import ControlVersion, GatewayId, Jurisdiction, Place, PlaceRule, RegionName, ReplicaId
from mesh.control.vocabulary import ControlSnapshot, PeerGrant, ReplicaGrant, ReplicaOwner, SnapshotTaken
from tests.fakes.attached import hello, replica_document
from tests.fakes.controller import FakeController, serve_fake_controller
from tests.fakes.engine import FakeEngine
from tests.support.controllers import plain_gateway, read_file
from tests.support.core import EU, MODEL, US
from tests.support.gateways import (
    QUICK_PEERING,
    ask,
    counted,
    free_replicas,
    knowing,
    region_config,
    region_document,
    serving_file,
    until,
    usable_peers,
    write_policy,
)

EU_1, WEST_1 = GatewayId("eu-1"), GatewayId("west-1")
WEST = Place(RegionName("us-west-2"), Jurisdiction("EU"))
"""Place that its gateway claims for itself: a region that no file of the operators names."""
RANGES = ("127.0.0.1", "127.0.0.2")
"""Ranges of replicas' addresses; `localhost` is in none of them."""
WAITED = 504
"""Status of a request that waited in vain: no replica of the EU is allowed."""
UNKNOWN = "region us-west-2 is not in the operators' table of regions"
QUICK = {"report_interval": "50ms", "silence_max": "1m", "reconnect_min": "10ms", "reconnect_max": "50ms"}
AWAY = (ReplicaOwner(ReplicaId("eu-1-r0"), EU_1, GatewayId("eu-2")),)


class EuSite:
    """An EU gateway's region file, whose prompts may go to any region of the EU."""

    def __init__(self, folder: Path, engine: FakeEngine) -> None:
        self.path = folder / "eu.yaml"
        self.folder = folder
        self.document: dict[str, Any] = region_document(
            folder,
            "eu-1",
            EU,
            replicas=[{"id": "eu-1-r0", "url": engine.url, "models": [MODEL]}],
            state={"folder": str(folder / "state")},
            probes={"interval": "20ms"},
            peering={"ping_interval": "50ms", "reconnect_min": "5ms", "reconnect_max": "50ms"},
            queue={"wait_max": "300ms"},
            audit={"folder": str(folder / "audit"), "sync": "line", "flush_interval": "5ms"},
        )
        policy = write_policy(folder, EU, ranges=RANGES)
        written = yaml.safe_load(policy.read_text())
        policy.write_text(yaml.safe_dump(written | {"process": {"jurisdictions": ["EU"]}}))

    def write(self, **more: Any) -> Path:
        self.path.write_text(yaml.safe_dump(self.document | more))
        return self.path

    def controlled(self, controller: FakeController) -> Path:
        return self.write(control={**QUICK, "controllers": [controller.address]})

    def move_range(self, *ranges: str) -> None:
        """Change the ranges of the EU's replicas in the operators' table."""
        policy = Path(self.document["policy"])
        written = yaml.safe_load(policy.read_text())
        written["regions"][EU.region]["replicas"] = list(ranges)
        policy.write_text(yaml.safe_dump(written))

    def audited(self) -> list[dict[str, Any]]:
        texts = (path.read_text() for path in sorted((self.folder / "audit").iterdir()))
        return [line for text in texts for line in map(json.loads, text.splitlines()) if line["kind"] == "request"]


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine().serving() as engine:
        yield engine


@pytest.fixture
async def stranger() -> AsyncIterator[FakeEngine]:
    """Engine where no prompt of the EU may arrive."""
    async with FakeEngine().serving() as engine:
        yield engine


@pytest.fixture
def site(tmp_path: Path, engine: FakeEngine) -> EuSite:
    return EuSite(tmp_path, engine)


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    async with serve_fake_controller() as controller:
        yield controller


@pytest.fixture
async def west(
    tmp_path: Path, stranger: FakeEngine, unused_tcp_port_factory: Callable[[], int]
) -> AsyncIterator[tuple[GatewayHandle, PeerGrant, int]]:
    """A gateway that accepts everything from the EU, and the port at which it knows the EU's gateway."""
    theirs = unused_tcp_port_factory()
    policy = write_policy(tmp_path, WEST, process=(WEST, EU))
    eu = region_config("eu-1", EU, [], policy_file=policy, peers_port=theirs)
    config = knowing(region_config("west-1", WEST, [stranger.url], policy_file=policy), eu)
    async with serve_gateway(replace(config, peering=QUICK_PEERING)) as gateway:
        await until(lambda: free_replicas(gateway) == 1)
        yield gateway, PeerGrant(WEST_1, WEST, str(gateway.peers_address)), theirs


async def status_of(gateway: GatewayHandle) -> int:
    async with aiohttp.ClientSession() as session, ask(session, gateway.http_url) as response:
        await response.read()
        return response.status


async def notes_of(gateway: GatewayHandle) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/ready") as response:
        return await response.text()


async def nothing_is_sent(gateway: GatewayHandle, stranger: FakeEngine, what: str, why: str) -> None:
    """Assert that the prompt is not sent, and that the refused place is reported."""
    assert await status_of(gateway) == WAITED
    assert stranger.received == []
    assert counted(gateway, "places_refused") == 1
    assert f"{what}: {why}" in await notes_of(gateway)


def snapshot(**more: Any) -> ControlSnapshot:
    return replace(ControlSnapshot(ControlVersion(1, 1), EU_1, away=AWAY), **more)


def grant(url: str, place: Place = EU, home: Place = EU, by: str = "eu-2") -> ReplicaGrant:
    told = {"id": "lent", "url": url, "models": [MODEL], "region": place.region, "jurisdiction": place.jurisdiction}
    return ReplicaGrant(json.dumps(told), GatewayId(by), home, PlaceRule(regions=frozenset({EU.region})))


async def test_a_gateway_in_a_region_that_nobody_named_is_not_believed_by_a_controller(tmp_path: Path) -> None:
    async with serve_controller(read_file(tmp_path)) as controller:
        address = controller.grpc_address
        async with (
            plain_gateway(address, hello("west-1", WEST)) as west,
            plain_gateway(address, hello("eu-1", EU)) as eu,
        ):
            await until(lambda: UNKNOWN in west.ended)
            await eu.until(lambda eu: eu.replica_ids == ["eu-1-r0", "eu-1-r1"])
            assert eu.newest.peers == ()
            await shown_by(controller, f"gateway west-1 says that it is in us-west-2 (EU): {UNKNOWN}")


async def shown_by(controller: ControllerHandle, why: str) -> None:
    page = controller.metrics.render().decode()
    assert "nightside_controller_places_refused 1.0" in page
    assert 'nightside_controller_streams_refused_total{reason="place"}' in page
    async with aiohttp.ClientSession() as session, session.get(f"{controller.admin_url}/admin/state") as answer:
        assert why in (await answer.json())["faults"]


async def test_a_replica_that_a_gateway_announces_elsewhere_is_adopted_by_nobody(tmp_path: Path) -> None:
    said = hello("us-1", US)
    lies = (
        replica_document("there", region=EU.region, jurisdiction=EU.jurisdiction),
        replica_document("stranger", url="http://203.0.113.9:8000"),
    )
    lying = replace(said, announcement=replace(said.announcement, replicas=lies))
    async with serve_controller(read_file(tmp_path)) as controller:
        address = controller.grpc_address
        async with plain_gateway(address, hello("eu-1", EU)) as eu:
            async with plain_gateway(address, lying) as us:
                await us.until(lambda us: bool(us.snapshots))
            await until(lambda: len(controller.manager.registry.faults) == 2)
            await eu.until(lambda eu: eu.replica_ids == ["eu-1-r0", "eu-1-r1"])
            assert not controller.manager.registry.replicas.keys() & {"there", "stranger"}


async def test_a_controller_that_names_a_peer_in_an_unknown_region_gets_it_nothing(
    site: EuSite, controller: FakeController, stranger: FakeEngine, west: tuple[GatewayHandle, PeerGrant, int]
) -> None:
    _, granted, port = west
    site.document["listen"]["peers"] = f"127.0.0.1:{port}"
    async with serving_file(site.controlled(controller)) as gateway:
        stream = await controller.stream(0)
        assert await stream.answer(snapshot(peers=(granted,))) == SnapshotTaken(ControlVersion(1, 1))
        assert usable_peers(gateway) == 0
        await nothing_is_sent(gateway, stranger, "peer west-1", UNKNOWN)


async def test_a_peer_in_an_unknown_region_gets_nothing_though_the_region_file_names_it(
    site: EuSite, controller: FakeController, stranger: FakeEngine, west: tuple[GatewayHandle, PeerGrant, int]
) -> None:
    _, granted, port = west
    site.document["listen"]["peers"] = f"127.0.0.1:{port}"
    peer = {"gateway": "west-1", "region": WEST.region, "jurisdiction": "EU", "address": granted.address}
    site.document["peers"] = [peer]
    async with serving_file(site.controlled(controller)) as gateway:
        await (await controller.stream(0)).answer(snapshot())
        await nothing_is_sent(gateway, stranger, "peer west-1", UNKNOWN)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((EU, EU, "eu-2"), "localhost is in none of the ranges of region eu-west-1"),
        ((EU, US, "us-1"), "a gateway in region us-east-1 may announce no replica in region eu-west-1"),
        ((WEST, WEST, "west-1"), UNKNOWN),
        ((EU, EU, "eu-1"), "localhost is in none of the ranges of region eu-west-1"),
    ],
    ids=["at a stranger's address", "by a gateway of another region", "in an unknown region", "as one of our own"],
)
async def test_a_controller_that_grants_a_replica_gets_it_no_prompt_where_the_table_has_it_not(
    site: EuSite, controller: FakeController, stranger: FakeEngine, said: tuple[Place, Place, str], why: str
) -> None:
    url = stranger.url.replace("127.0.0.1", "localhost") if "localhost" in why else stranger.url
    async with serving_file(site.controlled(controller)) as gateway:
        given = snapshot(replicas=(grant(url, *said),))
        assert await (await controller.stream(0)).answer(given) == SnapshotTaken(ControlVersion(1, 1))
        await nothing_is_sent(gateway, stranger, "replica lent", why)


async def test_a_controller_cannot_lead_a_replica_of_the_region_file_elsewhere(
    site: EuSite, controller: FakeController, engine: FakeEngine, stranger: FakeEngine
) -> None:
    own = json.dumps({"id": "eu-1-r0", "url": stranger.url, "models": [MODEL]})
    async with serving_file(site.controlled(controller)) as gateway:
        given = replace(snapshot(replicas=(ReplicaGrant(own, EU_1, EU),)), away=())
        await (await controller.stream(0)).answer(given)
        await until(lambda: free_replicas(gateway) == 1)
        assert await status_of(gateway) == 200
    assert (len(engine.received), stranger.received) == (1, [])


async def test_a_table_that_is_changed_counts_at_once_and_the_audit_says_whose_word_is_believed(
    site: EuSite, controller: FakeController, stranger: FakeEngine
) -> None:
    """The honest case: within the ranges, a replica is adopted and serves, until operators remove the range."""
    async with serving_file(site.controlled(controller)) as gateway:
        await (await controller.stream(0)).answer(snapshot(replicas=(grant(stranger.url),)))
        await until(lambda: free_replicas(gateway) == 1)
        assert await status_of(gateway) == 200
        assert counted(gateway, "places_refused") == 0
        site.move_range("127.0.0.2")
        await gateway.reloader.reload()
        await until(lambda: counted(gateway, "places_refused") == 1)
        assert await status_of(gateway) == WAITED
    attempts = [attempt for line in site.audited() for attempt in line.get("attempts", ())]
    assert [(each["target"], each["place_by"]) for each in attempts] == [("replica:lent", "announced_by:eu-2")]

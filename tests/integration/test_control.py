"""A gateway and its controller: messages on the control stream, their effects, and the gateway's behaviour
without it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import yaml
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle
from gateway.control.keeping import snapshot_file
from gateway.core.features.disaggregated.config import DecodePolicyName
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import (
    ControlVersion,
    GatewayId,
    Jurisdiction,
    Place,
    PlaceRule,
    PoolName,
    RegionName,
    ReplicaId,
    RequestId,
)
from gateway.features.expert_locality.files import eldr_file
from gateway.peers import codec as peer_codec
from mesh.channels import stop_at_once
from mesh.clock import Clock
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import (
    Announcement,
    ControlSnapshot,
    Hello,
    HistoriesWanted,
    PeerGrant,
    ReplicaGrant,
    ReplicaOwner,
    Report,
    SnapshotRejected,
    SnapshotTaken,
)
from mesh.naming.tree import Area, NameServer, RecordTree
from mesh.tls import ControllerTls, MeshTls
from protos.mesh.v1 import peer_pb2, peer_pb2_grpc
from tests.fakes.controller import FakeController, serve_fake_controller
from tests.fakes.engine import GOOD_STREAM, FakeEngine
from tests.fakes.liar import idle_beat, idle_report, serve_liar
from tests.fakes.peer import OwnershipContext
from tests.support.certificates import Files, controller_leaf, mesh_leaf, new_ca, roots_of
from tests.support.core import AP, EU, MODEL, US
from tests.support.gateways import ask, counted, free_replicas, region_document, serving_file, until
from tests.support.histories import history_of
from tests.support.locality import artifact_of
from tests.support.programs import nightside, started

US_1, EU_1 = GatewayId("us-1"), GatewayId("eu-1")
QUICK = {"report_interval": "50ms", "silence_max": "1m", "reconnect_min": "10ms", "reconnect_max": "50ms"}


class Site:
    """A region file that names a controller, and the engine of its one replica."""

    def __init__(self, folder: Path, controller: str, engine: FakeEngine) -> None:
        self.folder = folder
        self.path = folder / "us.yaml"
        self.document: dict[str, Any] = region_document(
            folder,
            "us-1",
            US,
            replicas=[{"id": "us-1-r0", "url": engine.url, "models": [MODEL]}],
            state={"folder": str(folder / "state")},
            control={**QUICK, "controllers": [controller], "client_addresses": ["127.0.0.1"]},
            probes={"interval": "20ms"},
        )
        self.write()

    def write(self, **more: Any) -> None:
        self.document.update(more)
        self.path.write_text(yaml.safe_dump(self.document))

    def kept(self) -> ControlSnapshot | None:
        kept = snapshot_file(self.folder / "state", US_1).read()
        return None if kept is None else kept.snapshot

    async def until_kept(self, version: ControlVersion) -> None:
        def is_kept() -> bool:
            kept = self.kept()
            return kept is not None and kept.version == version

        await until(is_kept)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine().serving() as engine:
        yield engine


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    async with serve_fake_controller() as controller:
        yield controller


@pytest.fixture
def site(tmp_path: Path, controller: FakeController, engine: FakeEngine) -> Site:
    return Site(tmp_path, controller.address, engine)


def snapshot(version: int = 1, term: int = 1, **more: Any) -> ControlSnapshot:
    return replace(ControlSnapshot(ControlVersion(term, version), US_1), **more)


def granted(name: str, engine: FakeEngine, accepts: tuple[Place, ...] = (US, EU), **more: object) -> ReplicaGrant:
    keys = {"region": EU.region, "jurisdiction": EU.jurisdiction, "models": [MODEL], "url": engine.url}
    rule = PlaceRule(regions=frozenset(each.region for each in accepts))
    return ReplicaGrant(json.dumps({"id": name, **keys, **more}), EU_1, EU, rule)


AWAY = (ReplicaOwner(ReplicaId("us-1-r0"), US_1, EU_1),)


def served(gateway: GatewayHandle) -> list[str]:
    return sorted(state.spec.replica_id for state in gateway.core.replicas)


async def state_of(gateway: GatewayHandle) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/admin/state") as answer:
        state = await answer.json()
        assert isinstance(state, dict)
        return state


async def test_a_gateway_says_who_it_is_and_what_it_hears(site: Site, controller: FakeController) -> None:
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        hello = await stream.first(Hello)
        assert (hello.gateway_id, hello.place, hello.taken) == (US_1, US, ControlVersion())
        told = hello.announcement
        assert told.client_addresses == ("127.0.0.1",)
        assert told.peer_address == str(gateway.peers_address)
        assert told.health_url == f"{gateway.http_url}/health"
        (document,) = map(json.loads, told.replicas)
        assert (document["id"], document["region"]) == ("us-1-r0", US.region)
        assert hello.policy == replace(gateway.core.policy, regions=None)
        assert (await stream.first(Report, after=3)).peers == ()


async def test_a_snapshot_is_put_in_force_whole_and_answered(
    site: Site, controller: FakeController, engine: FakeEngine
) -> None:
    async with serving_file(site.path) as gateway, FakeEngine().serving() as other:
        stream = await controller.stream(0)
        sent = snapshot(
            replicas=(granted("eu-1-r0", other),),
            peers=(PeerGrant(EU_1, EU, "127.0.0.1:9"),),
            parameters='{"queue": {"length_max": 7}}',
            away=AWAY,
        )
        assert await stream.answer(sent) == SnapshotTaken(sent.version)
        assert served(gateway) == ["eu-1-r0"], "what is away is not served, though the region file names it"
        assert gateway.core.config.queue.length_max == 7
        assert [state.spec.gateway_id for state in gateway.core.peers] == ["eu-1"]
        assert gateway.core.control == sent.version
        await until(lambda: free_replicas(gateway) == 1)
        async with aiohttp.ClientSession() as session, ask(session, gateway.http_url) as answer:
            assert await answer.read() == b"".join(GOOD_STREAM)
        assert (engine.arrived.count, other.arrived.count) == (0, 1)
        assert (await stream.answer(snapshot(2))) == SnapshotTaken(ControlVersion(1, 2))
        assert served(gateway) == ["us-1-r0"]
        assert gateway.core.config.queue.length_max == 10_000


async def test_one_that_cannot_be_served_by_changes_nothing_and_says_why(
    site: Site, controller: FakeController, engine: FakeEngine
) -> None:
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        await stream.answer(snapshot(2, parameters='{"queue": {"length_max": 7}}'))
        bad = snapshot(3, replicas=(granted("eu-1-r0", engine),), away=AWAY, parameters='{"queue": {"colour": 1}}')
        assert await stream.answer(bad) == SnapshotRejected(bad.version, "parameters: queue.colour: is not a known key")
        old = await stream.answer(snapshot(1))
        assert isinstance(old, SnapshotRejected)
        assert old.reason == "it is older than 1.2, which is in force"
        foreign = await stream.answer(snapshot(4, gateway_id=EU_1))
        assert isinstance(foreign, SnapshotRejected)
        malformed = await stream.answer(snapshot(5, gateway_id=GatewayId("not an id")))
        assert malformed == SnapshotRejected(ControlVersion(1, 5), "snapshot.gateway_id is not an id")
        assert (served(gateway), gateway.core.control) == (["us-1-r0"], ControlVersion(1, 2))
        assert gateway.core.config.queue.length_max == 7
        assert counted(gateway, "control_snapshots_total", result="rejected") == 4
        assert (await state_of(gateway))["control"]["last_rejection"] == "snapshot.gateway_id is not an id"


async def test_one_that_a_controller_drained_says_so_wherever_it_is_asked(
    site: Site, controller: FakeController
) -> None:
    async with serving_file(site.path) as gateway, aiohttp.ClientSession() as session:
        stream = await controller.stream(0)
        await stream.answer(snapshot(is_drained=True))
        status, out, _ = await nightside("gateway", "status", "--admin", gateway.admin_url)
        assert status == 3
        assert "not ready, drained at the controller: clients and replicas go to other gateways" in out
        async with session.get(f"{gateway.admin_url}/ready") as ready:
            assert ready.status == 503
        async with session.get(f"{gateway.admin_url}/admin/overview") as overview:
            shown = await overview.json()
            assert shown["state"]["drained_by_controller"]
            assert "until it is undrained there" in shown["state"]["notes"][0]["text"]
            assert [each["health"] for each in shown["regions"] if each["is_here"]] == ["closed"]
        async with ask(session, gateway.http_url) as answer:
            assert await answer.read() == b"".join(GOOD_STREAM), "who still comes by an old answer is served"
        status, _, err = await nightside("gateway", "undrain", "--admin", gateway.admin_url)
        assert (status, "nightside ctl gateways undrain" in err) == (1, True)
        await stream.answer(snapshot(2))
        async with session.get(f"{gateway.admin_url}/ready") as ready:
            assert ready.status == 200


async def test_a_policy_of_the_controllers_narrows_ours_and_ours_is_what_it_is_told(
    site: Site, controller: FakeController
) -> None:
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        own = (await stream.first(Hello)).policy
        rule = PlaceRule(regions=frozenset({US.region, EU.region}))
        narrowing = ResidencyPolicy(US, rule, rule, digest="narrow")
        await stream.answer(snapshot(narrowing=narrowing))
        assert gateway.core.policy.process.allows(EU)
        assert not gateway.core.policy.process.allows(AP)
        assert own.process.allows(AP)
        site.write(policy=None)
        await gateway.reloader.reload()
        await until(lambda: any(isinstance(each, ResidencyPolicy) for each in stream.said))
        told = [each for each in stream.said if isinstance(each, ResidencyPolicy)]
        assert told[-1].closed_reason == "no policy file is configured"
        assert gateway.core.policy.closed_reason
        await stream.answer(snapshot(2))
        assert gateway.core.policy.narrowed_by == ""


async def test_a_reload_and_a_snapshot_never_undo_each_other(
    site: Site, controller: FakeController, engine: FakeEngine
) -> None:
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        await stream.answer(
            snapshot(replicas=(granted("eu-1-r0", engine),), away=AWAY, parameters='{"queue": {"length_max": 7}}')
        )
        second = {"id": "us-1-r1", "url": engine.url, "models": [MODEL]}
        site.write(replicas=[*site.document["replicas"], second], queue={"length_max": 5, "tenant_length_max": 4})
        assert await gateway.reloader.reload() == []
        assert served(gateway) == ["eu-1-r0", "us-1-r1"]
        queue = gateway.core.config.queue
        assert (queue.length_max, queue.tenant_length_max) == (7, 4)
        assert len((await stream.first(Announcement)).replicas) == 2
        await stream.answer(snapshot(2))
        assert served(gateway) == ["us-1-r0", "us-1-r1"]
        assert gateway.core.config.queue.length_max == 5
        assert gateway.core.control == ControlVersion(1, 2)


async def test_a_peer_of_the_region_file_that_contradicts_the_table_is_none(
    site: Site, controller: FakeController
) -> None:
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        await stream.answer(snapshot(peers=(PeerGrant(EU_1, EU, "127.0.0.1:9"),)))
        wrong = {"gateway": "eu-2", "region": EU.region, "jurisdiction": "XX", "address": "127.0.0.1:8"}
        site.write(peers=[wrong])
        assert await gateway.reloader.reload() == []
        assert [state.spec.gateway_id for state in gateway.core.peers] == ["eu-1"]
        refused = (await state_of(gateway))["control"]["places_refused"]
        assert refused == {"peer eu-2": "the operators' table has region eu-west-1 in EU, not in XX"}


async def test_an_adopted_engine_that_never_answers_is_given_up_and_asked_again_later(
    site: Site, controller: FakeController, engine: FakeEngine
) -> None:
    site.write(control={**site.document["control"], "adopted_silent_max": "200ms", "adopted_retry": "300ms"})
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        both = granted("eu-1-r0", engine), granted("eu-1-r1", engine, url="http://127.0.0.1:1")
        await stream.answer(snapshot(replicas=both))
        for _ in range(2):
            await until(lambda: served(gateway) == ["eu-1-r0", "eu-1-r1", "us-1-r0"])
            await until(lambda: served(gateway) == ["eu-1-r0", "us-1-r0"])
            await until(lambda: counted(gateway, "control_replicas_left_out") == 1)


async def test_a_replica_without_its_key_is_left_out_and_told_of(
    site: Site, controller: FakeController, engine: FakeEngine
) -> None:
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        both = (granted("eu-1-r0", engine, api_key_env="NOT_HERE"), granted("eu-1-r1", engine))
        assert await stream.answer(snapshot(replicas=both)) == SnapshotTaken(ControlVersion(1, 1))
        assert served(gateway) == ["eu-1-r1", "us-1-r0"]
        assert list((await state_of(gateway))["control"]["left_out"]) == ["eu-1-r0"]
        assert counted(gateway, "control_replicas_left_out") == 1
        reported = await stream.first(Report, after=len(stream.all(Report)))
        while not reported.left_out:
            reported = await stream.first(Report, after=len(stream.all(Report)))
        (left_out,) = reported.left_out
        assert left_out.replica_id == "eu-1-r0"
        assert "NOT_HERE" in left_out.reason


async def test_an_adopted_pool_comes_with_its_policy_its_predictor_and_its_artifact(
    site: Site, controller: FakeController, engine: FakeEngine
) -> None:
    artifacts = site.folder / "artifacts"
    artifacts.mkdir()
    eldr_file(artifacts / "eldr.json").write(artifact_of([[1, 0], [0, 1]]))
    site.write(control={**site.document["control"], "artifacts": [str(artifacts)]})
    name = PoolName("chat@eu-1")
    pool = {
        "name": "chat",
        "kind": "disaggregated",
        "connector": "nixl",
        "decode_batch_max": 4,
        "decode": {"policy": "br_h_local", "balance": {"horizon_steps": 8, "refresh_tokens": 4}},
        "prediction": {"kind": "survival"},
        "expert_locality": {"artifact": str(artifacts / "eldr.json"), "look_interval": "1s"},
    }
    members = tuple(granted(each, engine, pool=pool, role=each) for each in ("prefill", "decode"))
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        abilities = (await stream.first(Hello)).announcement.abilities
        assert {"connector nixl", "connector mooncake", "decode_policy br_h", "decode_policy eldr"} <= set(abilities)
        assert await stream.answer(snapshot(replicas=members)) == SnapshotTaken(ControlVersion(1, 1))
        adopted = decode_pools_of(gateway.core).get(name)
        assert adopted is not None
        assert (adopted.config.policy, adopted.predictor.horizon) == (DecodePolicyName.BR_H_LOCAL, 8)
        await until(lambda: adopted.tier.seats.clusters == 2)
        (told,) = (await state_of(gateway))["disaggregated"]["pools"]
        assert (told["name"], told["policy_by"], told["files_not_read"]) == (name, "description", [])
        assert told["predictor"]["kind"] == "survival"
        moved = json.loads(json.dumps(pool).replace("eldr.json", "../eldr.json"))
        outside = tuple(granted(each, engine, pool=moved, role=each) for each in ("prefill", "decode"))
        assert await stream.answer(snapshot(2, replicas=outside)) == SnapshotTaken(ControlVersion(1, 2))
        await until(lambda: adopted.tier.seats.clusters == 0)
        (told,) = (await state_of(gateway))["disaggregated"]["pools"]
        assert len(told["files_not_read"]) == 1, "it is outside the folder that the operator lists"
        assert await stream.answer(snapshot(3)) == SnapshotTaken(ControlVersion(1, 3))
        assert decode_pools_of(gateway.core).get(name) is None
        assert "disaggregated" not in await state_of(gateway)


async def test_the_history_of_an_adopted_pool_comes_first_and_what_is_recorded_since_is_sent(
    site: Site, controller: FakeController, engine: FakeEngine
) -> None:
    pool = {"name": "pd", "kind": "disaggregated", "connector": "nixl", "decode_batch_max": 4}
    pool |= {"decode": {"policy": "br_h"}, "prediction": {"kind": "survival", "requests_min": 3}}
    members = tuple(granted(each, engine, pool=pool, role=each) for each in ("prefill", "decode"))
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        await stream.say(HistoriesWanted(EU))
        await stream.say(replace(history_of(1, by="eu-1", home="eu-1"), prompt_tokens=b""))
        await stream.say(history_of(50, 60, 70, by="eu-1", home="eu-1"))
        assert await stream.answer(snapshot(replicas=members)) == SnapshotTaken(ControlVersion(1, 1))
        adopted = decode_pools_of(gateway.core).get(PoolName("pd@eu-1"))
        assert adopted is not None
        await until(lambda: adopted.predictor.is_ready(Clock().now_ns()))
        assert counted(gateway, "pool_histories_total", result="refused") == 1
        assert counted(gateway, "pool_histories_total", result="taken") == 1
        facts = Facts(RequestId("r"), 10)
        facts.noted = adopted.predictor.note(facts)
        adopted.predictor.ended(facts, 80, Clock().now_ns())
        sent = await stream.first(PoolHistory)
        assert (sent.home, sent.pool, sent.recorded_by, sent.added) == ("eu-1", "pd", "us-1", 1)
        assert sent.rows() == [(10, 80, 0)], "what it was given is not its own"
        assert counted(gateway, "pool_histories_total", result="sent") == 1


async def test_no_history_is_sent_to_a_controller_where_the_policy_does_not_let_it_be(
    site: Site, controller: FakeController, engine: FakeEngine
) -> None:
    pool = {"name": "pd", "kind": "disaggregated", "connector": "nixl", "decode_batch_max": 4}
    members = tuple(granted(each, engine, pool=pool, role=each) for each in ("prefill", "decode"))
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        await stream.say(HistoriesWanted(Place(RegionName("nowhere-1"), Jurisdiction("XX"))))
        await stream.say(history_of(50, 60, 70, by="eu-1", home="eu-1"))
        assert await stream.answer(snapshot(replicas=members)) == SnapshotTaken(ControlVersion(1, 1))
        assert decode_pools_of(gateway.core).get(PoolName("pd@eu-1")) is not None
        await until(lambda: counted(gateway, "pool_histories_total", result="taken") == 1)
        reports = len(stream.all(Report))
        await stream.first(Report, after=reports + 3)
        assert stream.all(PoolHistory) == []
        withheld = (await state_of(gateway))["control"]["histories_withheld"]
        assert withheld == "region nowhere-1 is not in the operators' table of regions"


async def test_a_stream_that_breaks_is_made_again_and_says_what_is_in_force(
    site: Site, controller: FakeController
) -> None:
    async with serving_file(site.path) as gateway:
        await (await controller.stream(0)).answer(snapshot(3, away=AWAY))
        await stop_at_once(controller.server)
        await until(lambda: counted(gateway, "control_attached") == 0)
        assert served(gateway) == []
        async with serve_fake_controller(port=controller.port) as again:
            stream = await again.stream(0)
            assert (await stream.first(Hello)).taken == ControlVersion(1, 3)
            await until(lambda: counted(gateway, "control_attached") == 1)
            assert await stream.answer(snapshot(3, away=AWAY)) == SnapshotTaken(ControlVersion(1, 3))


async def test_one_that_falls_silent_or_turns_us_away_is_left_for_the_next(
    site: Site, controller: FakeController
) -> None:
    controller.is_silent = True
    async with serve_fake_controller() as second:
        site.document["control"] |= {"controllers": [controller.address, second.address], "silence_max": "200ms"}
        site.write()
        async with serving_file(site.path) as gateway:
            await controller.stream(0)
            stream = await second.stream(0)
            await until(lambda: counted(gateway, "control_attached") == 1)
            second.hangs_up = second.is_silent = True
            controller.is_silent = False
            del stream
            await until(lambda: counted(gateway, "control_attached") == 0)
            await until(lambda: counted(gateway, "control_attached") == 1)
            assert (await state_of(gateway))["control"]["controller"] == controller.address


async def test_what_was_kept_is_served_by_without_any_controller(
    site: Site, controller: FakeController, engine: FakeEngine
) -> None:
    sent = snapshot(4, replicas=(granted("eu-1-r0", engine),), away=AWAY)
    async with serving_file(site.path):
        await (await controller.stream(0)).answer(sent)
        await site.until_kept(sent.version)
    await stop_at_once(controller.server)
    async with serving_file(site.path) as gateway:
        assert (served(gateway), gateway.core.control) == (["eu-1-r0"], sent.version)
        await until(lambda: free_replicas(gateway) == 1)
        state = (await state_of(gateway))["control"]
        assert (state["attached"], state["version"], state["away"]) == (False, 4, ["us-1-r0"])
        assert state["snapshot_age_s"] >= 0


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b'{"kind":"control snapshot"'])
async def test_a_damaged_file_is_told_of_and_left_aside(site: Site, controller: FakeController, damage: bytes) -> None:
    (site.folder / "state").mkdir()
    path = snapshot_file(site.folder / "state", US_1).path
    path.write_bytes(damage)
    async with serving_file(site.path) as gateway:
        assert served(gateway) == ["us-1-r0"]
        assert "is damaged" in (await state_of(gateway))["control"]["not_kept_reason"]
        await (await controller.stream(0)).answer(snapshot())
        await until(lambda: counted(gateway, "control_snapshot_kept") == 1)
        await site.until_kept(ControlVersion(1, 1))


async def test_a_kept_one_that_the_region_file_contradicts_by_now_is_left_aside(
    site: Site, controller: FakeController
) -> None:
    site.write(insecure=True)
    async with serving_file(site.path):
        await (await controller.stream(0)).answer(snapshot(peers=(PeerGrant(EU_1, EU, "192.0.2.1:9"),)))
        await site.until_kept(ControlVersion(1, 1))
    controller.is_silent = True
    site.write(insecure=False)
    async with serving_file(site.path) as gateway:
        assert gateway.core.control == ControlVersion()
        assert "is beyond this machine" in (await state_of(gateway))["control"]["not_kept_reason"]


async def test_a_kept_one_is_held_against_the_table_as_it_is_now(site: Site, controller: FakeController) -> None:
    async with serving_file(site.path):
        await (await controller.stream(0)).answer(snapshot(peers=(PeerGrant(EU_1, EU, "127.0.0.1:9"),)))
        await site.until_kept(ControlVersion(1, 1))
    controller.is_silent = True
    policy = site.folder / f"{US.region}.policy.yaml"
    written = yaml.safe_load(policy.read_text())
    del written["regions"][EU.region]
    policy.write_text(yaml.safe_dump(written))
    async with serving_file(site.path) as gateway:
        assert gateway.core.control == ControlVersion(1, 1)
        assert list(gateway.core.peers) == []
        assert list((await state_of(gateway))["control"]["places_refused"]) == ["peer eu-1"]


async def test_a_killed_gateway_begins_with_what_it_took_last(
    site: Site, controller: FakeController, engine: FakeEngine
) -> None:
    sent = snapshot(9, replicas=(granted("eu-1-r0", engine),), away=AWAY)
    async with started("gateway", "run", site.path):
        await (await controller.stream(0)).answer(sent)
        await site.until_kept(sent.version)
    async with started("gateway", "run", site.path):
        assert (await (await controller.stream(1)).first(Hello)).taken == sent.version


async def test_names_are_answered_from_the_records_of_the_snapshot(site: Site, controller: FakeController) -> None:
    area = Area(US.region, US.jurisdiction, (US_1,), ("192.0.2.1",))
    records = RecordTree(3, 5, (area,), ("192.0.2.1",), "mesh.example.", (NameServer("ns1.mesh.example.", ()),))
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        assert await stream.answer(snapshot(1, records=records)) == SnapshotTaken(ControlVersion(1, 1))
        assert gateway.names.tree == records
        await stream.answer(snapshot(2))
        assert gateway.names.tree == records, "one that says nothing of names changes nothing there"
        await stream.answer(snapshot(3, records=records))
        await site.until_kept(ControlVersion(1, 3))
    async with serving_file(site.path) as gateway:
        assert gateway.names.tree == records


# Identity of controllers


@asynccontextmanager
async def protected(tmp_path: Path, engine: FakeEngine, tls: ControllerTls | MeshTls, files: Files) -> Any:
    async with serve_fake_controller(tls) as controller:
        site = Site(tmp_path, controller.address, engine)
        mesh = {"certificate": str(files.certificate), "key": str(files.key), "roots": str(files.roots)}
        site.write(peering={"tls": mesh})
        async with serving_file(site.path) as gateway:
            yield controller, gateway


def gateway_files(folder: Path, ca: Any, gateway_id: str, place: Place) -> Files:
    files = Files(folder / gateway_id)
    files.put(mesh_leaf(ca, gateway_id, place), roots=roots_of(ca))
    return files


async def test_a_controller_is_known_by_its_certificate(tmp_path: Path, engine: FakeEngine) -> None:
    ca = new_ca()
    files = Files(tmp_path / "controller")
    files.put(controller_leaf(ca), roots=roots_of(ca))
    ours = gateway_files(tmp_path, ca, "us-1", US)
    async with protected(tmp_path, engine, ControllerTls(files.mesh(), Clock()), ours) as (controller, gateway):
        stream = await controller.stream(0)
        assert await stream.answer(snapshot(away=AWAY)) == SnapshotTaken(ControlVersion(1, 1))
        assert served(gateway) == []


async def test_nobody_else_is_believed(tmp_path: Path, engine: FakeEngine) -> None:
    """Another gateway of the mesh is refused as a controller, too."""
    ca = new_ca()
    theirs, ours = gateway_files(tmp_path, ca, "eu-1", EU), gateway_files(tmp_path, ca, "us-1", US)
    tls = MeshTls(theirs.mesh(), EU_1, EU, Clock())
    async with protected(tmp_path, engine, tls, ours) as (controller, gateway):
        await until(lambda: "Hostname Verification" in gateway_control(gateway)["last_loss"])
        assert controller.attached == []


def gateway_control(gateway: GatewayHandle) -> dict[str, Any]:
    found = gateway.control.describe()
    assert found is not None
    return found


# Newer versions reported by peers


class TestHearsay:
    """A gateway whose controller is gone, and a peer that serves by a newer snapshot."""

    @pytest.fixture
    def detached(self, site: Site, controller: FakeController) -> Site:
        controller.hangs_up = True
        return site

    @staticmethod
    def know(site: Site, port: int) -> None:
        peer = {"gateway": "eu-1", "region": EU.region, "jurisdiction": EU.jurisdiction}
        site.write(peers=[{**peer, "address": f"127.0.0.1:{port}"}])

    async def test_what_a_newer_word_gives_to_others_is_left_to_them_until_a_controller_says_as_much(
        self, detached: Site, controller: FakeController
    ) -> None:
        async with serve_liar() as liar:
            newer = replace(idle_report(1), control=ControlVersion(2, 5))
            liar.beat = lambda number: peer_codec.load_to_pb(replace(newer, sequence=number), 0)
            asked: list[str] = []

            async def owned(question: peer_pb2.OwnershipRequest, _: OwnershipContext) -> peer_pb2.OwnershipResponse:
                asked.append(question.gateway_id)
                answer = peer_pb2.OwnershipResponse(term=2, version=5)
                answer.away.add(replica_id="us-1-r0", home_gateway_id="us-1", owner_gateway_id="eu-1")
                answer.away.add(replica_id="eu-1-r0", home_gateway_id="eu-1", owner_gateway_id="us-1")
                return answer

            liar.fake.owned = owned
            self.know(detached, liar.fake.port)
            async with serving_file(detached.path) as gateway:
                await until(lambda: served(gateway) == [])
                assert gateway.core.control == ControlVersion(), "it says no newer word of its own by that"
                assert gateway_control(gateway)["heard_of"] == {"term": 2, "version": 5}
                assert asked == ["us-1"]
                controller.hangs_up = False
                stream = await controller.stream(0)
                await stream.answer(snapshot(6))
                assert served(gateway) == [], "it knows less than the peer"
                await stream.answer(replace(snapshot(6), version=ControlVersion(2, 5)))
                await until(lambda: served(gateway) == ["us-1-r0"])
                assert gateway_control(gateway)["heard_of"] == {"term": 0, "version": 0}

    async def test_of_a_snapshot_that_was_rejected_a_peer_is_asked_though_the_controller_speaks(
        self, site: Site, controller: FakeController
    ) -> None:
        """Two gateways would otherwise send to the same replica until a newer snapshot arrives."""
        async with serve_liar() as liar:
            beats: list[ControlVersion] = []
            version = ControlVersion()

            def beat(number: int) -> Any:
                beats.append(version)
                return peer_codec.load_to_pb(replace(idle_report(number), control=version), 0)

            async def owned(_: peer_pb2.OwnershipRequest, __: OwnershipContext) -> peer_pb2.OwnershipResponse:
                answer = peer_pb2.OwnershipResponse(term=1, version=5)
                answer.away.add(replica_id="us-1-r0", home_gateway_id="us-1", owner_gateway_id="eu-1")
                return answer

            liar.beat, liar.fake.owned = beat, owned
            site.document["control"]["silence_max"] = "2m"
            self.know(site, liar.fake.port)
            async with serving_file(site.path) as gateway:
                stream = await controller.stream(0)
                await stream.answer(snapshot(4))
                version = ControlVersion(1, 5)
                await until(lambda: beats.count(version) > 20)
                assert served(gateway) == ["us-1-r0"], "the controller speaks, and would have said so itself"
                assert isinstance(await stream.answer(snapshot(5, parameters="{", away=AWAY)), SnapshotRejected)
                await until(lambda: served(gateway) == [])
                assert isinstance(await stream.answer(snapshot(6)), SnapshotTaken)
                await until(lambda: served(gateway) == ["us-1-r0"])

    async def test_a_peer_that_says_nothing_new_is_asked_no_more_for_a_while(self, detached: Site) -> None:
        async with serve_liar() as liar:
            newer = replace(idle_report(1), control=ControlVersion(2, 5))
            beats: list[int] = []

            def beat(number: int) -> Any:
                beats.append(number)
                return peer_codec.load_to_pb(replace(newer, sequence=number), 0)

            liar.beat = beat
            asked: list[str] = []

            async def owned(question: peer_pb2.OwnershipRequest, _: OwnershipContext) -> peer_pb2.OwnershipResponse:
                asked.append(question.gateway_id)
                return peer_pb2.OwnershipResponse()

            liar.fake.owned = owned
            self.know(detached, liar.fake.port)
            async with serving_file(detached.path) as gateway:
                await until(lambda: len(asked) == 1 and len(beats) > 20)
                assert len(asked) == 1
                assert served(gateway) == ["us-1-r0"]

    async def test_a_gateway_says_what_it_knows_itself(self, site: Site, controller: FakeController) -> None:
        async with serve_liar() as liar:
            liar.beat = idle_beat
            self.know(site, liar.fake.port)
            async with serving_file(site.path) as gateway:
                await (await controller.stream(0)).answer(snapshot(6, away=AWAY))
                async with grpc.aio.insecure_channel(str(gateway.peers_address)) as channel:
                    stub = peer_pb2_grpc.PeerServiceStub(channel)
                    answer = await stub.Ownership(peer_codec.ownership_request(EU_1))
                owned = peer_codec.read_ownership(answer)
                assert (owned.version, owned.away) == (ControlVersion(1, 6), AWAY)

    async def test_the_loss_of_a_peer_is_reported_at_once(self, site: Site, controller: FakeController) -> None:
        site.document["control"]["report_interval"] = "1m"
        site.document["control"]["silence_max"] = "2m"
        async with serve_liar() as liar:
            liar.beat = idle_beat
            self.know(site, liar.fake.port)
            async with serving_file(site.path) as gateway:
                stream = await controller.stream(0)
                await stream.first(Report)
                await until(lambda: any(state.observation for state in gateway.core.peers))
                await liar.fake.stop()
                (peer,) = (await stream.first(Report, after=1)).peers
                assert (peer.gateway_id, peer.is_broken) == ("eu-1", True)
                assert peer.heard_ago_ns is not None


async def test_a_newer_term_is_news_though_a_controller_speaks_which_may_have_been_deposed(
    site: Site, controller: FakeController
) -> None:
    async with serving_file(site.path) as gateway:
        stream = await controller.stream(0)
        await stream.answer(snapshot(5, term=3))
        await until(lambda: gateway.control.is_attached)
        assert not gateway.control.is_news(ControlVersion(3, 6)), "our own controller will say so itself"
        assert gateway.control.is_news(ControlVersion(4, 1))
        assert not gateway.control.is_news(ControlVersion(2, 9))

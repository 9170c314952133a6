"""Files that change while a gateway runs: accepted changes, refused changes, and that no stream is affected."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest
import yaml

from gateway.app.gateway import GatewayHandle
from gateway.app.problems import Status, problems, read_status
from gateway.core.vocabulary import GatewayId, Place
from gateway.security.keys import mint
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, FakeEngine, hang, stream, stream_until, token
from tests.support.core import EU, MODEL, US
from tests.support.gateways import (
    ask,
    counted,
    free_replicas,
    region_document,
    serving_file,
    until,
    usable_peers,
    write_policy,
)
from tests.support.processes import gateway_process, region_file

WHOLE = b"".join(GOOD_STREAM)
PAPERS_RULE = {"policy": "prefix", "peer_availability": "free_replica"}
"""Placement that sends nothing to a replica with a pending request, here or in another region."""


class Region:
    """A region file that a test edits, in a folder of its own."""

    def __init__(self, folder: Path, gateway_id: str = "us-1", place: Place = US) -> None:
        self.folder = folder
        self.path = folder / "region.yaml"
        self.document = region_document(folder, gateway_id, place, seed=1, probes={"interval": "5ms"})
        self.policy = Path(str(self.document["policy"]))

    def write(self, *engines: FakeEngine, **changes: object) -> None:
        replicas = [{"id": f"r{number}", "url": each.url, "models": [MODEL]} for number, each in enumerate(engines)]
        self.document |= {"replicas": replicas, **changes}
        self.path.write_text(yaml.safe_dump(self.document))

    def serving(self) -> AbstractAsyncContextManager[GatewayHandle]:
        return serving_file(self.path)


@dataclass
class World:
    region: Region
    one: FakeEngine
    two: FakeEngine
    session: aiohttp.ClientSession


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(FakeEngine().serving()) for _ in range(2)]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield World(Region(tmp_path), one, two, session)


async def completed(world: World, gateway: GatewayHandle) -> bytes:
    async with ask(world.session, gateway.http_url) as response:
        return await response.read()


async def test_a_replica_is_added_and_serves(world: World) -> None:
    world.region.write(world.one)
    async with world.region.serving() as gateway:
        assert await completed(world, gateway) == WHOLE
        world.region.write(world.one, world.two)
        assert await gateway.reloader.reload() == []
        assert gateway.core.assignment_version == 2
        await until(lambda: free_replicas(gateway) == 2)
        await until(lambda: world.two.probed.count > 3)


async def test_a_stream_survives_the_removal_of_its_replica(world: World) -> None:
    go_on = asyncio.Event()
    world.one.plays(stream_until(go_on, (ROLE, token("Hel")), (token("lo"), STOP, DONE)))
    world.region.write(world.one)
    async with world.region.serving() as gateway, ask(world.session, gateway.http_url) as response:
        assert await response.content.readany() == ROLE + token("Hel")
        world.region.write(world.two, queue={"wait_max": "5s"})
        assert await gateway.reloader.reload() == []
        assert gateway.core.config.queue.wait_max_ns == 5_000_000_000
        assert await completed(world, gateway) == WHOLE
        assert len(world.two.received) == 1, "what comes now goes to the new replica"
        go_on.set()
        assert await response.content.read() == token("lo") + STOP + DONE
    assert world.one.aborted.count == 0


async def test_engines_are_probed_by_the_new_numbers(world: World) -> None:
    world.region.write(world.one)
    async with world.region.serving() as gateway:
        await until(lambda: free_replicas(gateway) == 1)
        world.region.write(world.one, probes={"interval": "5ms", "timeout": "50ms", "timeouts_max": 1})
        assert await gateway.reloader.reload() == []
        world.one.probe_script = hang
        (state,) = gateway.core.replicas
        await until(lambda: not state.healthy)
        assert state.detail == "1 probes in a row took too long"


async def test_requests_that_wait_are_served_by_a_replica_that_joins(world: World) -> None:
    world.one.waiting = 1
    world.region.write(world.one, placement=PAPERS_RULE)
    async with world.region.serving() as gateway, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(completed(world, gateway))
        await until(lambda: gateway.driver.open_requests == 1)
        world.region.write(world.one, world.two)
        await gateway.reloader.reload()
    assert waiting.result() == WHOLE
    assert len(world.two.received) == 1


async def test_a_bad_file_is_refused_and_what_was_in_force_stays(world: World) -> None:
    world.region.write(world.one)
    async with world.region.serving() as gateway:
        await until(lambda: free_replicas(gateway) == 1)
        right = dict(world.region.document)
        for change in ({"colour": "blue"}, {"gateway": "us-2"}, {"limits": {"drain": "1s"}}):
            world.region.document = dict(right)
            world.region.write(world.two, **change)
            assert await gateway.reloader.reload() == ["region"]
        assert counted(gateway, "reloads_total", part="region", result="refused") == 3
        assert counted(gateway, "reload_refused", part="region") == 1
        (problem,) = problems(await status_of(world.session, gateway))
        assert (problem.kind, problem.subject, "region.yaml: line" in problem.text) == ("file_refused", "region", True)
        assert "limits.drain: cannot change while the gateway runs" in problem.text
        assert gateway.core.assignment_version == 1
        assert await completed(world, gateway) == WHOLE
        assert len(world.one.received) == 1
        world.region.document = right
        world.region.write(world.two)
        assert await gateway.reloader.reload() == []
        assert counted(gateway, "reload_refused", part="region") == 0
        assert not (await status_of(world.session, gateway)).refused_files
        assert await completed(world, gateway) == WHOLE
        assert len(world.two.received) == 1


async def status_of(session: aiohttp.ClientSession, gateway: GatewayHandle) -> Status:
    async with session.get(f"{gateway.admin_url}/admin/state") as answer:
        return read_status(await answer.read())


async def test_an_engine_s_new_key_is_used_from_the_next_request_on(world: World) -> None:
    key = world.region.folder / "key"
    key.write_text("first")
    world.region.write(world.one, reload={"watch": "10ms"})
    world.region.document["replicas"][0]["api_key_file"] = "key"  # type: ignore[index]
    world.region.path.write_text(yaml.safe_dump(world.region.document))
    async with world.region.serving() as gateway:
        await completed(world, gateway)
        key.write_text("second-key")
        await until(lambda: counted(gateway, "reloads_total", part="engine_credentials", result="applied") == 1)
        await completed(world, gateway)
    sent = [each.headers["authorization"] for each in world.one.received]
    assert sent == ["Bearer first", "Bearer second-key"]


async def test_pipes_in_place_of_all_files_keep_nobody_waiting(world: World) -> None:
    """Reading a pipe would block without end: the thread that reads it, or the whole gateway."""
    files = {name: world.region.folder / name for name in ("key", "keys.yaml", "operator")}
    secret, kept = mint("a")
    files["key"].write_text("first")
    files["operator"].write_text("operator-s")
    files["keys.yaml"].write_text(yaml.safe_dump({"keys": [{"id": "a", "hash": str(kept), "tenant": "acme"}]}))
    world.region.write(
        world.one,
        reload={"watch": "10ms", "region_file": True},
        keys="keys.yaml",
        operators={"tokens": [{"name": "o", "role": "look", "token_file": "operator"}]},
    )
    world.region.document["replicas"][0]["api_key_file"] = "key"  # type: ignore[index]
    world.region.path.write_text(yaml.safe_dump(world.region.document))
    async with world.region.serving() as gateway:
        for path in (*files.values(), world.region.path):
            path.unlink()
            os.mkfifo(path)
        parts = ("keys", "region", "engine_credentials", "operators")
        await until(lambda: all(counted(gateway, "reloads_total", part=each, result="refused") for each in parts))
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {secret}"}) as client:
            assert await completed(replace(world, session=client), gateway) == WHOLE
    assert world.one.received[-1].headers["authorization"] == "Bearer first"


@asynccontextmanager
async def serving_with_a_peer(world: World, **changes: object) -> AsyncIterator[tuple[GatewayHandle, GatewayHandle]]:
    """The gateway in front of engine one, and one abroad in front of engine two, added as its peer while it runs."""

    def known_as(gateway: GatewayHandle, gateway_id: str, place: Place) -> dict[str, object]:
        address = str(gateway.peers_address)
        return {"gateway": gateway_id, "region": place.region, "jurisdiction": place.jurisdiction, "address": address}

    folder = world.region.folder / "eu"
    folder.mkdir()
    abroad = Region(folder, "eu-1", EU)
    world.region.write(world.one, placement=PAPERS_RULE, **changes)
    async with world.region.serving() as gateway:
        abroad.write(world.two, peers=[known_as(gateway, "us-1", US)])
        async with abroad.serving() as other:
            world.region.write(world.one, peers=[known_as(other, "eu-1", EU)])
            assert await gateway.reloader.reload() == []
            await until(lambda: usable_peers(gateway) == 1)
            yield gateway, other


async def test_a_policy_that_closes_takes_effect_at_once_on_what_waits(world: World) -> None:
    """The request has an idle replica abroad, where the closed policy forbids it to go."""
    world.one.waiting = world.two.waiting = 1
    async with (
        serving_with_a_peer(world, reload={"watch": "5ms"}) as (gateway, other),
        asyncio.TaskGroup() as tasks,
    ):
        waiting = tasks.create_task(completed(world, gateway))
        await until(lambda: len(gateway.core.waiting) == 1)

        world.region.policy.unlink()
        await until(lambda: bool(gateway.core.policy.closed_reason))
        world.two.waiting = 0
        await until(lambda: free_replicas(other) == 1)
        await until(lambda: counted(gateway, "policy_closed") == 1)
        assert len(gateway.core.waiting) == 1

        write_policy(world.region.folder, US)
        assert await waiting == WHOLE
        assert len(world.two.received) == 1
        assert world.one.received == []


async def test_a_stream_from_a_peer_survives_the_peer_s_removal(world: World) -> None:
    go_on = asyncio.Event()
    world.two.plays(stream_until(go_on, (ROLE, token("Hel")), (token("lo"), STOP, DONE)), stream(*GOOD_STREAM))
    world.one.waiting = 1
    async with serving_with_a_peer(world) as (gateway, _):
        async with ask(world.session, gateway.http_url) as response:
            assert await response.content.readany() == ROLE + token("Hel")
            world.region.write(world.one, peers=[])
            assert await gateway.reloader.reload() == []
            assert gateway.core.peers.get(GatewayId("eu-1")) is None
            go_on.set()
            assert await response.content.read() == token("lo") + STOP + DONE
    assert world.two.aborted.count == 0


async def test_sighup_reads_the_files_of_a_process_again(tmp_path: Path, world: World) -> None:
    file = region_file(tmp_path, "us-1", US, world.one)
    async with gateway_process(file) as gateway:
        async with ask(world.session, gateway.http_url) as response:
            assert await response.read() == WHOLE
        document = yaml.safe_load(file.read_text())
        document["replicas"][0]["url"] = world.two.url
        file.write_text(yaml.safe_dump(document))
        gateway.signal(signal.SIGHUP)
        await gateway.until_logged("reload_applied", part="region")
        async with ask(world.session, gateway.http_url) as response:
            assert await response.read() == WHOLE
        assert (len(world.one.received), len(world.two.received)) == (1, 1)
        file.write_text(yaml.safe_dump({**document, "region": "elsewhere"}))
        gateway.signal(signal.SIGHUP)
        await gateway.until_logged("reload_rejected", part="region")
        async with ask(world.session, gateway.http_url) as response:
            assert await response.read() == WHOLE
        gateway.signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0

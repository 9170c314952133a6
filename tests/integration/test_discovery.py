"""Replicas that are found by name: a real DNS server, real lookups, whole gateways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import dns.rcode
import pytest
import yaml

from gateway.app.gateway import GatewayHandle
from tests.fakes.dns import FakeDns
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, FakeEngine, stream_until, token
from tests.fakes.kubernetes import FakeKubernetes, endpoint_slice, pod
from tests.support.core import MODEL, US
from tests.support.gateways import ask, counted, free_replicas, region_document, serving_file, until

NAME = "llama.engines.test"
WHOLE = b"".join(GOOD_STREAM)


@dataclass
class World:
    folder: Path
    dns: FakeDns
    one: FakeEngine
    two: FakeEngine
    session: aiohttp.ClientSession

    def announce(self, *engines: FakeEngine) -> None:
        ports = [urlsplit(each.url).port for each in engines]
        self.dns.set(NAME, "SRV", *(f"0 0 {port} host.engines.test." for port in ports))
        self.dns.set("host.engines.test", "A", "127.0.0.1")

    def write(self, **changes: object) -> Path:
        template = {
            "id": "llama",
            "name": NAME,
            "record": "srv",
            "nameservers": [str(self.dns.address)],
            "models": [MODEL],
        }
        path = self.folder / "us.yaml"
        document = region_document(
            self.folder,
            "us-1",
            US,
            probes={"interval": "5ms"},
            discovery={"interval_min": "10ms", "interval_max": "20ms", "misses_max": 2},
            dns_replicas=[{**template, **changes}],
        )
        path.write_text(yaml.safe_dump(document))
        return path

    @asynccontextmanager
    async def serving(self, **changes: object) -> AsyncIterator[GatewayHandle]:
        async with serving_file(self.write(**changes)) as gateway:
            yield gateway

    async def ready(self, gateway: GatewayHandle) -> str:
        async with self.session.get(f"{gateway.admin_url}/ready") as response:
            return await response.text()

    async def completed(self, gateway: GatewayHandle) -> bytes:
        async with ask(self.session, gateway.http_url) as response:
            return await response.read()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(FakeDns().serving())
        one, two = [await stack.enter_async_context(FakeEngine().serving()) for _ in range(2)]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield World(tmp_path, server, one, two, session)


def replicas(gateway: GatewayHandle) -> list[str]:
    return sorted(state.spec.replica_id for state in gateway.core.replicas)


def name_of(engine: FakeEngine) -> str:
    return f"llama-127.0.0.1-{urlsplit(engine.url).port}"


async def test_a_gateway_starts_with_what_the_name_leads_to(world: World) -> None:
    world.announce(world.one)
    async with world.serving() as gateway:
        assert gateway.core.assignment_version == 1
        assert replicas(gateway) == [name_of(world.one)]
        assert await world.completed(gateway) == WHOLE


async def test_replicas_come_and_go_with_the_name_and_streams_go_on(world: World) -> None:
    go_on = asyncio.Event()
    world.one.plays(stream_until(go_on, (ROLE, token("Hel")), (token("lo"), STOP, DONE)))
    world.announce(world.one)
    async with world.serving() as gateway, ask(world.session, gateway.http_url) as response:
        assert await response.content.readany() == ROLE + token("Hel")
        world.announce(world.two)
        await until(lambda: replicas(gateway) == sorted([name_of(world.one), name_of(world.two)]))
        await until(lambda: replicas(gateway) == [name_of(world.two)])
        assert gateway.core.assignment_version == 3
        assert await world.completed(gateway) == WHOLE
        go_on.set()
        assert await response.content.read() == token("lo") + STOP + DONE


async def test_dns_may_fail_and_nobody_notices(world: World) -> None:
    world.announce(world.one)
    async with world.serving() as gateway:
        await until(lambda: free_replicas(gateway) == 1)
        world.dns.rcode = dns.rcode.SERVFAIL
        await world.dns.asked.reaches(world.dns.asked.count + 10)
        world.dns.rcode = dns.rcode.NOERROR
        world.dns.records.clear()
        await world.dns.asked.reaches(world.dns.asked.count + 10)
        assert await world.completed(gateway) == WHOLE
        assert gateway.core.assignment_version == 1


async def test_a_gateway_starts_without_dns_and_finds_its_replicas_later(world: World) -> None:
    world.dns.rcode = dns.rcode.SERVFAIL
    async with world.serving() as gateway:
        assert replicas(gateway) == []
        world.announce(world.one)
        world.dns.rcode = dns.rcode.NOERROR
        await until(lambda: free_replicas(gateway) == 1)
        assert await world.completed(gateway) == WHOLE


async def test_what_is_found_may_tell_its_own_models(world: World) -> None:
    world.one.models = ["other", "llama"]
    world.announce(world.one)
    async with world.serving(models="auto") as gateway:
        assert sorted(gateway.core.replicas.groups.models) == ["llama", "other"]
        assert await world.completed(gateway) == WHOLE


async def test_a_reload_changes_the_template(world: World) -> None:
    world.announce(world.one)
    async with world.serving() as gateway:
        await until(lambda: free_replicas(gateway) == 1)
        state = next(iter(gateway.core.replicas))
        world.write(models=["llama", "support-de"])
        assert await gateway.reloader.reload() == []
        await until(lambda: "support-de" in gateway.core.replicas.groups.models)
        assert next(iter(gateway.core.replicas)) is state, "it keeps all that is known of it"
        world.write(name="other.engines.test", id="other")
        assert await gateway.reloader.reload() == []
        await until(lambda: replicas(gateway) == [])


class Cluster:
    """Engines as vLLM's production stack and llm-d announce them, and a gateway that selects by their labels alone."""

    def __init__(self, world: World, api: FakeKubernetes) -> None:
        self._world = world
        self.api = api

    def service(self, model: str, engine: FakeEngine, **how: bool) -> None:
        """Add a service of the production stack; the first of its many ports is the engine's."""
        ports = {"service-port": urlsplit(engine.url).port or 0, "zmq-port": 55555, "ucx-port": 9999}
        labels = {
            "environment": "test",
            "release": "test",
            "kubernetes.io/service-name": f"vllm-{model}-engine-service",
        }
        named = endpoint_slice(f"vllm-{model}-engine-service-x", "127.0.0.1", labels=labels, ports=ports, **how)
        named["endpoints"][0]["targetRef"]["name"] = f"vllm-{model}-deployment"
        self.api.put("endpointslices", named)

    def decode_pod(self, name: str, engine: FakeEngine, **metadata: Any) -> None:
        """Add a pod of llm-d's model service: a proxy beside the engine, and no Service."""
        labels = {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": "llama", "llm-d.ai/role": "decode"}
        made = pod(name, "127.0.0.1", labels=labels, **metadata)
        vllm = {"name": "vllm", "ports": [{"name": "vllm", "containerPort": urlsplit(engine.url).port}]}
        made["spec"]["containers"] = [{"name": "routing-proxy", "ports": [{"containerPort": 8000}]}, vllm]
        self.api.put("pods", made)

    def write(self, **found: object) -> Path:
        told = {
            "networks": ["127.0.0.0/8"],
            "id": "llama",
            "namespace": "engines",
            "api": self.api.url,
            "models": [MODEL],
            **found,
        }
        told = {name: value for name, value in told.items() if value is not None}
        settings = {"interval_min": "10ms", "interval_max": "20ms"}
        path = self._world.folder / "us.yaml"
        probes = {"interval": "5ms"}
        document = region_document(
            self._world.folder, "us-1", US, probes=probes, discovery=settings, kubernetes_replicas=[told]
        )
        path.write_text(yaml.safe_dump(document))
        return path

    @asynccontextmanager
    async def serving(self, **found: object) -> AsyncIterator[GatewayHandle]:
        async with serving_file(self.write(**found)) as gateway:
            yield gateway


def policy_of(region_file: Path) -> str:
    return Path(yaml.safe_load(region_file.read_text())["policy"]).read_text()


def write_policy_of(region_file: Path, text: str) -> None:
    Path(yaml.safe_load(region_file.read_text())["policy"]).write_text(text)


@pytest.fixture
async def cluster(world: World) -> AsyncIterator[Cluster]:
    async with FakeKubernetes().serving() as api:
        yield Cluster(world, api)


async def test_engines_of_vllms_production_stack_are_found_as_they_are(world: World, cluster: Cluster) -> None:
    cluster.service("one", world.one)
    async with cluster.serving(selector="environment=test,release=test", port="service-port") as gateway:
        assert replicas(gateway) == [name_of(world.one)]
        assert await world.completed(gateway) == WHOLE
        cluster.service("two", world.two, ready=False)
        cluster.service("two", world.two)
        await until(lambda: replicas(gateway) == sorted([name_of(world.one), name_of(world.two)]))


async def test_a_pod_that_goes_gets_nothing_more_and_its_streams_go_on(world: World, cluster: Cluster) -> None:
    go_on = asyncio.Event()
    world.one.plays(stream_until(go_on, (ROLE, token("Hel")), (token("lo"), STOP, DONE)))
    cluster.decode_pod("ms-llama-decode-a", world.one)
    selector = "llm-d.ai/inference-serving=true,llm-d.ai/role=decode"
    async with (
        cluster.serving(selector=selector, kind="pods", port="vllm") as gateway,
        ask(world.session, gateway.http_url) as response,
    ):
        assert await response.content.readany() == ROLE + token("Hel")
        cluster.decode_pod("ms-llama-decode-b", world.two)
        await until(lambda: len(replicas(gateway)) == 2)
        await until(lambda: free_replicas(gateway) == 2)
        cluster.decode_pod("ms-llama-decode-a", world.one, deletionTimestamp="2099-11-22T12:00:00Z")
        await until(lambda: free_replicas(gateway) == 1)
        assert len(replicas(gateway)) == 2
        assert "by 2099-11-22T12:00:00Z" in await world.ready(gateway)
        assert await world.completed(gateway) == WHOLE
        cluster.decode_pod("ms-llama-decode-a", world.one)  # another pod of this name, at the same address
        await until(lambda: free_replicas(gateway) == 2)
        cluster.api.delete("pods", "ms-llama-decode-a")
        await until(lambda: replicas(gateway) == [name_of(world.two)])
        go_on.set()
        assert await response.content.read() == token("lo") + STOP + DONE


async def test_a_cluster_names_addresses_within_the_operators_table(world: World, cluster: Cluster) -> None:
    """The operators' table places the region's replicas in 127.0.0.0/8, which a cluster cannot override, but the region
    file can.
    """
    cluster.api.put("endpointslices", endpoint_slice("a", "192.0.2.9"))
    async with cluster.serving(selector="app=vllm", port="http", networks=None) as gateway:
        assert replicas(gateway) == []
        assert "replica llama-192.0.2.9-8000: 192.0.2.9 is in none of the ranges" in await world.ready(gateway)
        cluster.api.put("endpointslices", endpoint_slice("a", "169.254.169.254"))
        await until(lambda: counted(gateway, "places_refused") == 0)
        assert replicas(gateway) == [], "no pod has a cloud's own address"
    cluster.api.put("endpointslices", endpoint_slice("a", "192.0.2.9"))
    async with cluster.serving(selector="app=vllm", port="http", networks=["192.0.2.0/24"]) as gateway:
        assert replicas(gateway) == ["llama-192.0.2.9-8000"]


async def test_without_a_usable_table_a_cluster_names_addresses_within_named_networks_alone(
    world: World, cluster: Cluster
) -> None:
    cluster.api.put("endpointslices", endpoint_slice("a", "192.0.2.9"))
    found = {"selector": "app=vllm", "port": "http"}
    path = cluster.write(**found, networks=None)
    usable = policy_of(path).replace("127.0.0.0/8", "192.0.2.0/24")
    write_policy_of(path, "version: 1")
    async with serving_file(path) as gateway:
        assert replicas(gateway) == []
        assert "replica llama-192.0.2.9-8000: this region has no usable policy" in await world.ready(gateway)
        write_policy_of(path, usable)
        await gateway.reloader.reload()
        await until(lambda: replicas(gateway) == ["llama-192.0.2.9-8000"])
    path = cluster.write(**found, networks=["192.0.2.0/24"])
    write_policy_of(path, "version: 1")
    async with serving_file(path) as gateway:
        assert gateway.core.policy.closed_reason
        assert replicas(gateway) == ["llama-192.0.2.9-8000"]


async def test_networks_that_a_reload_narrows_hold_for_what_was_found_before(cluster: Cluster) -> None:
    """The cluster's API fails after the first discovery, so that no replica is found again."""
    cluster.api.put("endpointslices", endpoint_slice("a", "192.0.2.9", "198.51.100.9"))
    found = {"selector": "app=vllm", "port": "http"}
    async with cluster.serving(**found, networks=["192.0.2.0/24", "198.51.100.0/24"]) as gateway:
        assert replicas(gateway) == ["llama-192.0.2.9-8000", "llama-198.51.100.9-8000"]
        cluster.api.failing = True
        cluster.write(**found, networks=["192.0.2.0/24"])
        assert await gateway.reloader.reload() == []
        await until(lambda: replicas(gateway) == ["llama-192.0.2.9-8000"])
        assert counted(gateway, "places_refused") == 1

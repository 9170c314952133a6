"""The fake API server on which discovery of engines is tested, compared with Kubernetes' own clients: objects that
kubectl writes are found, and kubernetes_asyncio understands its watch events.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.sections import DiscoveryConfig
from gateway.config.targets import Dialect, KubernetesApi, KubernetesKind, KubernetesReplicasConfig, ReplicaConfig
from gateway.core.vocabulary import GatewayId
from gateway.discovery.kubernetes import KubernetesSource
from mesh.config import LoggingConfig
from mesh.logs import make_logger
from tests.deploy.charts import KUBECTL, PYTHON
from tests.fakes.engine import Tally
from tests.fakes.kubernetes import FakeKubernetes, endpoint_slice, pod
from tests.support.background import in_background
from tests.support.core import MS, replica_spec

WATCHER = """
import asyncio, json, sys
from kubernetes_asyncio import client, watch

async def main(url):
    async with client.ApiClient(client.Configuration(host=url)) as api:
        slices = client.DiscoveryV1Api(api)
        listed = await slices.list_namespaced_endpoint_slice("engines", label_selector="app=vllm")
        print(json.dumps([each.metadata.name for each in listed.items]), flush=True)
        async with watch.Watch() as watching:
            async for event in watching.stream(
                slices.list_namespaced_endpoint_slice, "engines", label_selector="app=vllm",
                resource_version=listed.metadata.resource_version, timeout_seconds=60,
            ):
                told = event["object"]
                addresses = [each.addresses for each in told.endpoints or []]
                print(json.dumps([event["type"], told.metadata.name, addresses]), flush=True)
                if event["type"] == "DELETED":
                    return

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
async def cluster() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes().serving() as cluster:
        yield cluster


async def run(*command: str | Path, told: str = "", home: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"HOME": str(home), "PATH": os.defpath},
    )
    said, complained = await process.communicate(told.encode())
    assert process.returncode == 0, complained.decode()
    return said.decode()


async def test_what_kubectl_writes_is_found(cluster: FakeKubernetes, tmp_path: Path) -> None:
    async def kubectl(*arguments: str, told: str = "") -> str:
        return await run(KUBECTL, "-s", cluster.url, "-n", "engines", *arguments, told=told, home=tmp_path)

    heard, tally = list[list[str]](), Tally()

    def report(replicas: tuple[ReplicaConfig, ...]) -> None:
        heard.append([each.url for each in replicas])
        tally.add()

    async def until(*urls: str) -> None:
        while heard[-1:] != [list(urls)]:
            await tally.reaches(tally.count + 1)

    template = ReplicaConfig(replica_spec("stack"), "", Dialect.VLLM)
    config = KubernetesReplicasConfig(
        template, KubernetesKind.ENDPOINT_SLICES, KubernetesApi(cluster.url), "engines", "app=vllm", "http", "http"
    )
    log = make_logger(LoggingConfig(), GatewayId("g"), io.StringIO())
    quick = DiscoveryConfig(interval_min_ns=10 * MS, interval_max_ns=20 * MS)
    async with in_background(KubernetesSource(config, quick, log).run(report)):
        written = {**endpoint_slice("a", "10.0.0.1"), "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
        await kubectl("create", "--validate=false", "-f", "-", told=json.dumps(written))
        await until("http://10.0.0.1:8000")
        patch = {"endpoints": [{"addresses": ["10.0.0.2"], "conditions": {"ready": True}}]}
        await kubectl("patch", "endpointslice", "a", "--type=merge", "-p", json.dumps(patch))
        await until("http://10.0.0.2:8000")
        assert "10.0.0.2" in await kubectl("get", "endpointslices", "-l", "app=vllm", "-o", "json")
        assert json.loads(await kubectl("get", "endpointslices", "-l", "app=sglang", "-o", "json"))["items"] == []
        await kubectl("delete", "endpointslice", "a", "--wait=false")
        await until()
    cluster.put("pods", pod("decode-0", "10.0.0.3"))
    assert json.loads(await kubectl("get", "pods", "-o", "json"))["items"][0]["status"]["podIP"] == "10.0.0.3"


async def test_kubernetes_asyncio_hears_what_our_source_hears(cluster: FakeKubernetes, tmp_path: Path) -> None:
    cluster.put("endpointslices", endpoint_slice("a", "10.0.0.1"))
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(run(PYTHON, "-c", WATCHER, cluster.url, home=tmp_path))
        await cluster.watches.reaches(1)
        cluster.put("endpointslices", endpoint_slice("b", "10.0.0.2"))
        cluster.put("endpointslices", endpoint_slice("other", "10.0.0.9", labels={"app": "router"}))
        cluster.put("endpointslices", endpoint_slice("a", "10.0.0.1", "10.0.0.3"))
        cluster.delete("endpointslices", "b")
    assert [json.loads(line) for line in watching.result().splitlines()] == [
        ["a"],
        ["ADDED", "b", [["10.0.0.2"]]],
        ["MODIFIED", "a", [["10.0.0.1"], ["10.0.0.3"]]],
        ["DELETED", "b", [["10.0.0.2"]]],
    ]

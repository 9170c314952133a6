from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from ipaddress import ip_network
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config.sections import DiscoveryConfig
from gateway.config.targets import (
    Dialect,
    EngineTlsConfig,
    KubernetesApi,
    KubernetesKind,
    KubernetesReplicasConfig,
    ReplicaConfig,
)
from gateway.core.vocabulary import GatewayId
from gateway.discovery import kubernetes
from gateway.discovery.kubernetes import KubernetesSource
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.fakes.engine import Tally
from tests.fakes.kubernetes import FakeKubernetes, endpoint_slice, pod
from tests.support.background import in_background
from tests.support.core import MS, replica_spec

TEMPLATE = ReplicaConfig(replica_spec("stack"), "", Dialect.VLLM, "secret")
QUICK = DiscoveryConfig(interval_min_ns=5 * MS, interval_max_ns=20 * MS, replicas_max=3)
SLICES, PODS = "endpointslices", "pods"
DELETED = "2026-11-22T12:00:30Z"
DELETED_S = datetime.fromisoformat(DELETED).timestamp()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "_WATCH_PAUSE_S", 0.005)


class Heard:
    def __init__(self, source: KubernetesSource, stream: io.StringIO) -> None:
        self.source = source
        self.sets: list[list[str]] = []
        self.leaving: dict[str, float] = {}
        """Ends that were told last, by address."""
        self.tally = Tally()
        self._stream = stream

    def report(self, replicas: tuple[ReplicaConfig, ...]) -> None:
        self.sets.append([each.url for each in replicas])
        self.leaving = {each.url: each.leaves_at_s for each in replicas if each.leaves_at_s is not None}
        self.tally.add()

    async def until(self, *urls: str) -> None:
        while not self.sets or sorted(self.sets[-1]) != sorted(f"http://{url}" for url in urls):
            await self.tally.reaches(self.tally.count + 1)

    def logged(self) -> list[str]:
        return [json.loads(line)["event"] for line in self._stream.getvalue().splitlines()]


@asynccontextmanager
async def finding(
    cluster: FakeKubernetes,
    kind: KubernetesKind = KubernetesKind.ENDPOINT_SLICES,
    port: int | str = "http",
    selector: str = "app=vllm",
    *,
    token_file: Path | None = None,
    networks: tuple[str, ...] = (),
) -> AsyncIterator[Heard]:
    stream = io.StringIO()
    log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("g"), stream)
    api = KubernetesApi(cluster.url, token_file)
    config = KubernetesReplicasConfig(
        TEMPLATE, kind, api, "engines", selector, "http", port, tuple(map(ip_network, networks))
    )
    heard = Heard(KubernetesSource(config, QUICK, log), stream)
    async with in_background(heard.source.run(heard.report)):
        yield heard


@pytest.fixture
async def cluster() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes().serving() as cluster:
        yield cluster


async def test_what_is_there_is_found_and_what_comes_and_goes_is_told_at_once(cluster: FakeKubernetes) -> None:
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
    cluster.put(SLICES, endpoint_slice("others", "10.0.0.9", labels={"app": "router"}))
    async with finding(cluster) as heard:
        await heard.source.first_look()
        assert heard.sets[0] == ["http://10.0.0.1:8000"]
        cluster.put(SLICES, endpoint_slice("a", "10.0.0.1", "10.0.0.2"))
        await heard.until("10.0.0.1:8000", "10.0.0.2:8000")
        cluster.put(SLICES, endpoint_slice("b", "10.0.0.3"))
        cluster.delete(SLICES, "a")
        await heard.until("10.0.0.3:8000")
        assert cluster.lists.count == 1, "all else came by the watch"


async def test_nobody_at_all_is_believed_once_several_lists_have_said_so(cluster: FakeKubernetes) -> None:
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
    async with finding(cluster) as heard:
        await heard.until("10.0.0.1:8000")
        cluster.delete(SLICES, "a")
        await heard.until()
        assert cluster.lists.count == 1 + QUICK.misses_max
        assert heard.logged().count("kubernetes_replicas_all_gone") == 1


async def test_everybody_may_go_at_once_where_each_is_seen_to_go(cluster: FakeKubernetes) -> None:
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
    async with finding(cluster) as heard:
        await heard.until("10.0.0.1:8000")
        cluster.put(SLICES, endpoint_slice("a", "10.0.0.1", terminating=True))
        await heard.until()
        assert cluster.lists.count == 1


async def test_a_watch_that_tells_nothing_is_not_believed_for_long(
    cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "_WATCHES_PER_LIST", 2)
    async with finding(cluster) as heard:
        await heard.source.first_look()
        for number in (1, 2):
            await cluster.watches.reaches(number)
            cluster.end_watches()
        await cluster.lists.reaches(2)


async def test_addresses_are_kept_to_the_networks_that_are_named(cluster: FakeKubernetes) -> None:
    cluster.put(SLICES, endpoint_slice("a", "127.0.0.1", "10.0.0.1"))
    async with finding(cluster, networks=("127.0.0.0/8",)) as heard:
        await heard.source.first_look()
        assert heard.sets == [["http://127.0.0.1:8000"]]


async def test_labels_that_are_taken_away_take_an_engine_away(cluster: FakeKubernetes) -> None:
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
    async with finding(cluster) as heard:
        await heard.until("10.0.0.1:8000")
        cluster.put(SLICES, endpoint_slice("a", "10.0.0.1", labels={"app": "retired"}))
        await heard.until()


async def test_an_engine_is_taken_up_once_it_is_ready_and_stays_when_it_is_too_busy_to_say_so(
    cluster: FakeKubernetes,
) -> None:
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1", ready=False))
    async with finding(cluster) as heard:
        await heard.source.first_look()
        assert heard.sets == [[]]
        cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
        await heard.until("10.0.0.1:8000")
        cluster.put(SLICES, endpoint_slice("a", "10.0.0.1", ready=False))
        cluster.put(SLICES, endpoint_slice("b", "10.0.0.2"))
        await heard.until("10.0.0.1:8000", "10.0.0.2:8000")
        cluster.put(SLICES, endpoint_slice("a", "10.0.0.1", ready=False, terminating=True))
        await heard.until("10.0.0.2:8000")


async def test_a_pod_that_several_services_stand_for_with_two_addresses_is_one_engine(cluster: FakeKubernetes) -> None:
    both = endpoint_slice("v6", "2001:db8::1")
    both["endpoints"][0]["targetRef"]["name"] = "pod-10.0.0.1"
    cluster.put(SLICES, both)
    cluster.put(SLICES, endpoint_slice("v4", "10.0.0.1"))
    cluster.put(SLICES, endpoint_slice("again", "10.0.0.1"))
    async with finding(cluster) as heard:
        await heard.source.first_look()
        assert heard.sets == [["http://10.0.0.1:8000"]]


@pytest.mark.parametrize(("port", "found"), [("http", 8000), ("metrics", 9100), (8200, 8200)])
async def test_pods_are_found_without_a_service(cluster: FakeKubernetes, port: int | str, found: int) -> None:
    cluster.put(PODS, pod("decode-0", "10.0.0.1"))
    cluster.put(PODS, pod("decode-1", "10.0.0.2", ready=False))
    cluster.put(PODS, pod("decode-2", None))
    async with finding(cluster, KubernetesKind.PODS, port) as heard:
        await heard.until(f"10.0.0.1:{found}")
        cluster.put(PODS, pod("decode-1", "10.0.0.2"))
        await heard.until(f"10.0.0.1:{found}", f"10.0.0.2:{found}")
        cluster.delete(PODS, "decode-0")
        await heard.until(f"10.0.0.2:{found}")


async def test_a_pod_that_is_deleted_stays_with_its_end_until_it_is_gone(cluster: FakeKubernetes) -> None:
    cluster.put(PODS, pod("decode-0", "10.0.0.1"))
    async with finding(cluster, KubernetesKind.PODS) as heard:
        await heard.until("10.0.0.1:8000")
        for ready in (True, False):
            cluster.put(PODS, pod("decode-0", "10.0.0.1", ready=ready, deletionTimestamp=DELETED))
        await heard.tally.reaches(2)
        assert heard.leaving == {"http://10.0.0.1:8000": DELETED_S}
        cluster.put(PODS, pod("decode-1", "10.0.0.2", deletionTimestamp=DELETED))
        cluster.put(PODS, pod("decode-2", "10.0.0.3"))
        await heard.until("10.0.0.1:8000", "10.0.0.3:8000")
        assert heard.leaving == {"http://10.0.0.1:8000": DELETED_S}
        cluster.delete(PODS, "decode-0")
        await heard.until("10.0.0.3:8000")


async def test_all_pods_that_were_deleted_are_gone_at_once(cluster: FakeKubernetes) -> None:
    cluster.put(PODS, pod("decode-0", "10.0.0.1"))
    async with finding(cluster, KubernetesKind.PODS) as heard:
        await heard.until("10.0.0.1:8000")
        cluster.put(PODS, pod("decode-0", "10.0.0.1", deletionTimestamp=DELETED))
        await heard.tally.reaches(2)
        cluster.delete(PODS, "decode-0")
        await heard.until()
        assert cluster.lists.count == 1


async def test_a_pod_whose_end_cannot_be_read_goes_at_once(cluster: FakeKubernetes) -> None:
    cluster.put(PODS, pod("decode-0", "10.0.0.1"))
    cluster.put(PODS, pod("decode-1", "10.0.0.2"))
    async with finding(cluster, KubernetesKind.PODS) as heard:
        await heard.until("10.0.0.1:8000", "10.0.0.2:8000")
        cluster.put(PODS, pod("decode-0", "10.0.0.1", deletionTimestamp="soon"))
        await heard.until("10.0.0.2:8000")


async def test_a_port_that_nobody_has_finds_nobody(cluster: FakeKubernetes) -> None:
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
    async with finding(cluster, port="grpc") as heard:
        await heard.source.first_look()
        assert heard.sets == [[]]


async def test_a_long_list_comes_in_pages(cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.discovery.kubernetes_api._PAGE", 2)
    for number in range(3):
        cluster.put(SLICES, endpoint_slice(f"s{number}", f"10.0.0.{number + 1}"))
    async with finding(cluster) as heard:
        await heard.until("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
        assert cluster.lists.count == 2


async def test_the_number_of_replicas_is_bounded_and_known_ones_stay(cluster: FakeKubernetes) -> None:
    cluster.put(SLICES, endpoint_slice("z", "10.0.0.9"))
    async with finding(cluster) as heard:
        await heard.until("10.0.0.9:8000")
        cluster.put(SLICES, endpoint_slice("a", *(f"10.0.0.{number}" for number in range(1, 9))))
        await heard.until("10.0.0.9:8000", "10.0.0.1:8000", "10.0.0.2:8000")
        assert heard.logged().count("discovered_replicas_over_limit") == 1


async def test_a_watch_that_ends_goes_on_where_it_ended(cluster: FakeKubernetes) -> None:
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
    async with finding(cluster) as heard:
        await heard.until("10.0.0.1:8000")
        await cluster.watches.reaches(1)
        cluster.end_watches()
        cluster.put(SLICES, endpoint_slice("a", "10.0.0.2"))
        await heard.until("10.0.0.2:8000")
        assert cluster.lists.count == 1


async def test_a_cluster_that_has_forgotten_is_asked_for_everything(cluster: FakeKubernetes) -> None:
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
    async with finding(cluster) as heard:
        await heard.until("10.0.0.1:8000")
        await cluster.watches.reaches(1)
        cluster.put(SLICES, endpoint_slice("b", "10.0.0.2"))
        await heard.until("10.0.0.1:8000", "10.0.0.2:8000")
        cluster.failing = True
        cluster.end_watches()
        cluster.delete(SLICES, "a")
        cluster.forget()
        cluster.failing = False
        await heard.until("10.0.0.2:8000")


@pytest.mark.parametrize("trouble", ["failing", "forbidden"])
async def test_a_cluster_that_cannot_be_asked_takes_nothing_away_and_is_told_of_once(
    cluster: FakeKubernetes, trouble: str
) -> None:
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
    async with finding(cluster) as heard:
        await heard.until("10.0.0.1:8000")
        await cluster.watches.reaches(1)
        setattr(cluster, trouble, True)
        cluster.end_watches()
        cluster.delete(SLICES, "a")
        await cluster.asked.reaches(cluster.asked.count + 4)
        assert heard.sets == [["http://10.0.0.1:8000"]]
        failed = "kubernetes_discovery_failed"
        assert heard.logged().count(failed) == 1
        setattr(cluster, trouble, False)
        cluster.put(SLICES, endpoint_slice("c", "10.0.0.3"))
        await heard.until("10.0.0.3:8000")


async def test_nobody_there_is_a_first_look_too(tmp_path: Path) -> None:
    cluster = FakeKubernetes(url="http://127.0.0.1:1")
    async with finding(cluster) as heard:
        await heard.source.first_look()
        assert heard.sets == []


async def test_a_token_is_read_for_each_call(cluster: FakeKubernetes, tmp_path: Path) -> None:
    """Clusters exchange tokens within the hour."""
    cluster.token = "first"
    token_file = tmp_path / "token"
    token_file.write_text("first\n")
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
    async with finding(cluster, token_file=token_file) as heard:
        await heard.until("10.0.0.1:8000")
        cluster.token = "second"
        token_file.write_text("second\n")
        cluster.end_watches()
        cluster.put(SLICES, endpoint_slice("a", "10.0.0.2"))
        await heard.until("10.0.0.2:8000")
        assert cluster.tokens == {"first", "second"}


async def test_all_else_comes_from_the_template(cluster: FakeKubernetes) -> None:
    source = KubernetesSource(
        KubernetesReplicasConfig(
            replace(TEMPLATE, ranks=2, tls=EngineTlsConfig(server_name="stack.test")),
            KubernetesKind.ENDPOINT_SLICES,
            KubernetesApi(cluster.url),
            "engines",
            "app=vllm",
            "https",
            "http",
        ),
        QUICK,
        make_logger(LoggingConfig(), GatewayId("g"), io.StringIO()),
    )
    found: list[ReplicaConfig] = []
    cluster.put(SLICES, endpoint_slice("a", "10.0.0.1"))
    async with in_background(source.run(found.extend)):
        await source.first_look()
    assert [each.spec.replica_id for each in found] == ["stack-10.0.0.1-8000@0", "stack-10.0.0.1-8000@1"]
    assert {each.url for each in found} == {"https://10.0.0.1:8000"}
    assert {each.tls.server_name for each in found if each.tls} == {"stack.test"}

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from gateway.config.tracing import CollectorTlsConfig, Protocol, TracingConfig
from gateway.core.vocabulary import GatewayId
from gateway.request.trace_context import RequestTrace
from gateway.tracing.exporter import OtlpExporter
from gateway.tracing.spans import FinishedRequest
from mesh.faults import ConfigError
from tests.fakes.collector import FakeCollector
from tests.support.certificates import clients_leaf, new_ca, roots_of
from tests.support.core import MS, US
from tests.support.traced import OWN, PARENT, TRACE, WALL_NS, Traced, server_of, trace

GATEWAY = GatewayId("us-1")
LONG_NS = 60_000_000_000


def finished(made: RequestTrace | None = None) -> FinishedRequest:
    traced = Traced()
    traced.ask("r-1")
    traced.desk.now_ns += 250 * MS
    traced.first_token("r-1")
    traced.end("r-1")
    traced.finish("r-1", trace=made or trace(state="a=1"))
    return traced.kept[0]


def exporter(url: str, headers: Mapping[str, str] | None = None, **changes: object) -> OtlpExporter:
    config = replace(TracingConfig(endpoint=url, timeout_ns=LONG_NS), **changes)
    return OtlpExporter(config, headers or {}, GATEWAY, US, server_of)


async def exported(made: OtlpExporter, *requests: FinishedRequest) -> bool:
    try:
        return await asyncio.to_thread(made.export, list(requests))
    finally:
        made.close()


async def test_a_number_that_no_span_can_hold_costs_the_others_of_its_batch_nothing() -> None:
    odd = finished()
    odd = replace(odd, profile=replace(odd.profile, output_tokens_max=2**64 - 1))
    async with FakeCollector().serving() as collector:
        assert await exported(exporter(collector.grpc_url), odd, finished())
        told = [each.attributes.get("gen_ai.request.max_tokens") for each in collector.spans]
    assert told[0] == 2**63 - 1
    assert len(told) == 8, "both are there whole"


@pytest.mark.parametrize("protocol", Protocol)
async def test_spans_arrive_as_they_were_told(protocol: Protocol) -> None:
    async with FakeCollector().serving() as collector:
        url = collector.grpc_url if protocol is Protocol.GRPC else collector.http_url
        assert await exported(exporter(url, {"x-api-key": "s3cr3t"}, protocol=protocol), finished())
        whole, placement, leg, first = collector.spans
        assert collector.headers[0]["x-api-key"] == "s3cr3t"
    assert {each.trace_id for each in (whole, placement, leg, first)} == {TRACE}
    assert (whole.span_id, whole.parent_id, whole.span.trace_state) == (OWN, PARENT, "a=1")
    assert (leg.parent_id, first.parent_id) == (OWN, leg.span_id)
    assert whole.resource["service.name"] == "nightside"
    assert whole.gateway == "us-1"
    assert whole.resource["nightside.region"] == "us-east-1"
    assert [each.span.flags for each in (whole, leg)] == [0x301, 0x101], "sampled; and whose parent is remote"
    assert whole.span.end_time_unix_nano == WALL_NS
    assert leg.span.end_time_unix_nano - leg.span.start_time_unix_nano == 250 * MS
    assert whole.attributes["gen_ai.request.stream"] is True
    assert [each.name for each in placement.span.events] == ["candidate"] * 2


async def test_a_caller_who_is_not_trusted_is_linked_to() -> None:
    async with FakeCollector().serving() as collector:
        assert await exported(exporter(collector.grpc_url), finished(trace(parent=False, cause=True)))
        whole = collector.spans[0]
    assert whole.parent_id == ""
    (link,) = whole.span.links
    assert (link.trace_id.hex(), link.span_id.hex()) == (TRACE, PARENT)


async def test_over_tls_the_collector_is_looked_at(tmp_path: Path) -> None:
    authority = new_ca()
    (tmp_path / "ca.pem").write_bytes(roots_of(authority))
    shown = clients_leaf(authority)
    credentials = grpc.ssl_server_credentials([(shown.key_pem, shown.certificate_pem)])
    async with FakeCollector().serving(credentials) as collector:
        trusting = CollectorTlsConfig(ca_file=tmp_path / "ca.pem")
        assert await exported(exporter(collector.grpc_url, tls=trusting), finished())
        assert not await exported(exporter(collector.grpc_url, timeout_ns=200 * MS), finished())
        assert len(collector.raw) == 1


def test_a_certificate_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    missing = CollectorTlsConfig(ca_file=tmp_path / "none.pem")
    with pytest.raises(ConfigError, match=r"tracing.tls: .*none.pem cannot be read"):
        exporter("https://localhost:4317", tls=missing)


@pytest.mark.parametrize("protocol", Protocol)
async def test_a_collector_that_is_not_there_is_a_reason_and_no_noise(
    protocol: Protocol, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = "" if protocol is Protocol.GRPC else "/v1/traces"
    made = exporter(f"http://127.0.0.1:{unused_tcp_port}{path}", protocol=protocol, timeout_ns=200 * MS)
    with caplog.at_level(logging.DEBUG, logger="opentelemetry.exporter"):
        assert not await exported(made, finished())
    assert made.problem
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_what_a_library_raises_is_a_reason_too() -> None:
    made = exporter("http://127.0.0.1:4317")
    assert not await exported(made, replace(finished(), wall_offset_ns=-(2**70)))
    assert made.problem.startswith("ValueError")

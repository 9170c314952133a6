from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.app.memory import describe_memory, memory_max
from gateway.config.sections import AuditConfig, GatewayConfig, LimitsConfig, ListenConfig, PeeringConfig
from gateway.config.tracing import TracingConfig
from gateway.core.config import PlacementConfig, PlacementPolicy
from gateway.ground.config import DnsConfig, ListenTlsConfig
from gateway.ground.values import MEBIBYTE
from tests.support.core import EU, LAYERED, US, under
from tests.support.gateways import ANY_PORT, knowing, region_config

ALONE = region_config("us-1", US, [], policy_file=Path("policy.yaml"))


def total(config: GatewayConfig) -> int:
    return sum(memory_max(config).values())


def test_every_limit_that_holds_memory_is_in_the_sum() -> None:
    larger = [
        replace(ALONE, limits=LimitsConfig(bodies_held_max_bytes=1024 * MEBIBYTE)),
        replace(ALONE, limits=LimitsConfig(body_max_bytes=32 * MEBIBYTE)),
        replace(ALONE, limits=LimitsConfig(connections_max=40_000)),
        replace(ALONE, limits=LimitsConfig(headers_max_bytes=MEBIBYTE)),
        replace(ALONE, limits=LimitsConfig(requests_max=20_000)),
        replace(ALONE, peering=PeeringConfig(forwards_held_max_bytes=1024 * MEBIBYTE)),
        replace(ALONE, peering=PeeringConfig(forwards_max=10_000)),
        replace(ALONE, peering=PeeringConfig(message_max_bytes=64 * MEBIBYTE)),
        replace(ALONE, audit=AuditConfig(folder=Path("audit"))),
        replace(ALONE, listen=ListenConfig(tls=ListenTlsConfig(Path("c"), Path("k")))),
        replace(ALONE, dns=DnsConfig(listen=(ANY_PORT,))),
        replace(ALONE, tracing=TracingConfig(endpoint="http://127.0.0.1:4317")),
        knowing(ALONE, region_config("eu-1", EU, [], policy_file=Path("policy.yaml"))),
    ]
    for config in larger:
        assert total(config) > total(ALONE)


def test_each_index_of_prefixes_is_in_the_sum() -> None:
    layered = memory_max(replace(ALONE, core=under(LAYERED)))["placement"]
    by_cost = memory_max(replace(ALONE, core=under(PlacementPolicy.COST)))["placement"]
    index_bytes = PlacementConfig().prefix_index_bytes_max
    assert by_cost - layered == index_bytes
    assert layered > 2 * index_bytes


def test_it_is_told_whole_and_by_part() -> None:
    line = describe_memory(ALONE)
    assert line.startswith("memory: at most ")
    assert all(f"{name} " in line for name in memory_max(ALONE))

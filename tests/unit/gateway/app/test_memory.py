from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.app.memory import MEMORY_SHARE, describe_memory, fitted, memory_max
from gateway.config.reading import read_region_file
from gateway.config.region_file import RegionFile
from gateway.config.sections import AuditConfig, GatewayConfig, LimitsConfig, ListenConfig, PeeringConfig
from gateway.config.tracing import TracingConfig
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy
from mesh.allocator import describe_allocator
from mesh.config import DnsConfig, ListenTlsConfig
from mesh.values import MEBIBYTE
from tests.support.core import EU, LAYERED, US, under
from tests.support.gateways import ANY_PORT, knowing, region_config
from tests.support.region_files import PEER, SMALLEST, region_at

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


def test_what_the_allocator_is_set_to_is_told_with_it() -> None:
    assert describe_allocator() in describe_memory(ALONE)


def test_what_there_is_is_told_beside_it() -> None:
    assert "GiB of 64.0GiB with" in describe_memory(ALONE, 64 * GIBIBYTE)
    assert "lower the limit" not in describe_memory(ALONE, 64 * GIBIBYTE)
    assert "more than there is: lower the limit of the largest part" in describe_memory(ALONE, GIBIBYTE)


GIBIBYTE = 1024 * MEBIBYTE


def read(folder: Path, more: str = "") -> RegionFile:
    return read_region_file(region_at(folder, SMALLEST + more), environ={})


@pytest.mark.parametrize("gibibytes", [2, 4, 16, 23])
@pytest.mark.parametrize("peers", ["", PEER.replace("ADDRESS", "127.0.0.1:7071")])
def test_the_limits_of_a_file_that_names_none_fit_the_memory_there_is(
    tmp_path: Path, gibibytes: int, peers: str
) -> None:
    fit = fitted(read(tmp_path, peers), gibibytes * GIBIBYTE)
    budget = MEMORY_SHARE * gibibytes * GIBIBYTE
    assert total(fit.as_config()) <= budget
    assert gibibytes < 4 or total(fit.as_config()) > 0.9 * budget
    assert fit.as_document()["limits"]["requests_max"] == fit.as_config().limits.requests_max


def test_where_there_is_plenty_or_none_is_told_the_defaults_hold(tmp_path: Path) -> None:
    file = read(tmp_path)
    assert fitted(file, None).as_config() == fitted(file, 64 * GIBIBYTE).as_config() == file.as_config()


def test_what_the_file_names_is_kept_and_the_rest_gives_way(tmp_path: Path) -> None:
    named = "limits: {requests_max: 3000, body_max: 24MiB}\npeering: {forwards_held_peer_max: 100MiB}\n"
    config = fitted(read(tmp_path, named), 6 * GIBIBYTE).as_config()
    assert config.limits.requests_max == 3000
    assert config.peering.forwards_held_peer_max_bytes == 100 * MEBIBYTE
    assert config.peering.forwards_held_max_bytes >= 100 * MEBIBYTE
    assert 256 <= config.limits.connections_max < 5_000
    assert total(config) <= MEMORY_SHARE * 6 * GIBIBYTE


def test_the_smallest_machine_has_a_gateway_that_can_still_serve(tmp_path: Path) -> None:
    """A machine with less than this memory is reported by `nightside gateway check`."""
    config = fitted(read(tmp_path), 128 * MEBIBYTE).as_config()
    assert (config.limits.connections_max, config.limits.requests_max, config.peering.forwards_max) == (256, 128, 64)
    assert config.limits.bodies_held_max_bytes >= config.limits.body_max_bytes
    assert config.peering.forwards_held_max_bytes >= config.peering.forwards_held_peer_max_bytes
    assert config.peering.forwards_held_peer_max_bytes >= config.peering.message_max_bytes

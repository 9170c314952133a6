"""Nightside's relays in the bench, how each is configured and started, and the list of all relays that it compares.

All get the same engines and requests, on one core; settings are listed in `what`, which is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from loadgen.bench.relay import wire
from loadgen.bench.relay.envoy import ENVOY, ENVOY_TO_ENVOY
from loadgen.bench.relay.processes import Command
from loadgen.bench.relay.rivals import LITELLM, PORTKEY, SGLANG_ROUTER, SMG, VLLM_ROUTER
from loadgen.bench.relay.setting import (
    HOST,
    REGIONS,
    TRUST_DOMAIN,
    ReadyRelay,
    Relay,
    RelaySetting,
    nightside,
    run_nightside,
)
from loadgen.demo.region_files import free_ports

_CONTROLLER = "controller-1"
_TABLE = dict.fromkeys(REGIONS.values(), "US")
_UNREACHED = "1000000000"
"""Limit that is enforced and counted, but never reached by the bench."""


def _add_key(folder: Path) -> str:
    limits = [f"--{name}={_UNREACHED}" for name in ("concurrency", "requests-per-minute", "tokens-per-minute")]
    text = run_nightside("keys", "add", str(folder / "keys.yaml"), "--id=bench", "--tenant=bench", *limits, "--json")
    return str(json.loads(text)["key"])


def _write_policy(folder: Path, region: str, table: Mapping[str, str]) -> None:
    rules = {name: {"jurisdictions": ["US"]} for name in ("process", "accept")}
    policy = {"version": 1, "region": region, "jurisdiction": "US", "regions": dict(table), **rules}
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
        run_nightside("dev-certs", str(folder / "certs"), f"--trust-domain={TRUST_DOMAIN}", *names)
    for gateway, file in files.items():
        _write_policy(folder, gateway.region, _TABLE | {each.region: "US" for each in files})
        (folder / f"{gateway.name}.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    return [
        Command(each.name, nightside("gateway", "run", str(folder / f"{each.name}.yaml")), each.core) for each in files
    ]


def _prepare_nightside(setting: RelaySetting, **sections: object) -> ReadyRelay:
    (gateway,) = _gateways(setting, {"gateway": REGIONS["near"]}, [setting.core])
    file = _region_file(gateway, [], setting.engines) | sections
    return ReadyRelay(_commands(setting.folder, {gateway: file}), gateway.http, _add_key(setting.folder))


def _prepare_attached(setting: RelaySetting) -> ReadyRelay:
    """One gateway whose assignment comes from a controller on the load's core."""
    (gateway,) = _gateways(setting, {"gateway": REGIONS["near"]}, [setting.core])
    grpc, admin = free_ports(2, setting.rng)
    certs = setting.folder / "certs"
    name = f"--gateway={gateway.name}:{gateway.region}"
    run_nightside("dev-certs", str(certs), f"--trust-domain={TRUST_DOMAIN}", name, f"--controller={_CONTROLLER}")
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
        beside=[Command(_CONTROLLER, nightside("controller", "run", str(file)), setting.second_core)],
        attached_at=f"http://{HOST}:{gateway.admin}",
    )


def _prepare_forward(setting: RelaySetting) -> ReadyRelay:
    """Two gateways: clients send to a region without engines, which forwards everything to one that has them."""
    near, far = both = _gateways(setting, REGIONS, [setting.core, setting.core])
    files = {
        far: _region_file(far, both, setting.engines),
        near: _region_file(near, both, []),
    }
    return ReadyRelay(_commands(setting.folder, files), near.http, _add_key(setting.folder))


def _prepare_mesh(setting: RelaySetting, *, regions: int) -> ReadyRelay:
    """Gateways of so many regions that all have the same engines and each other as peers; clients know the first."""
    places = {f"gateway-{number}": f"us-central-{number}" for number in range(regions)}
    gateways = _gateways(setting, places, [setting.core] * regions)
    files = {each: _region_file(each, gateways, setting.engines) for each in gateways}
    return ReadyRelay(_commands(setting.folder, files), gateways[0].http, _add_key(setting.folder))


def mesh_of(regions: int) -> Relay:
    """Gateways of the study of capacity, which the bench itself does not measure: `gateway-0` to the last."""
    what = f"gateways of {regions} regions on one core, mutual TLS between them, each with all engines"
    return Relay(f"nightside mesh of {regions}", what, partial(_prepare_mesh, regions=regions))


def _prepare_traced(setting: RelaySetting, *, share: float) -> ReadyRelay:
    """One gateway that exports traces to a collector that discards them."""
    (gateway,) = _gateways(setting, {"gateway": REGIONS["near"]}, [setting.core])
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
    places = {"gateway-a": REGIONS["near"], "gateway-b": REGIONS["near"]}
    one, other = _gateways(setting, places, [setting.core, setting.second_core])
    other = _Gateway(other.name, other.region, one.http, other.peers, other.admin, other.core)
    both = [one, other]
    files = {each: _region_file(each, both, setting.engines, reuse_port=True) for each in both}
    return ReadyRelay(_commands(setting.folder, files), one.http, _add_key(setting.folder))


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
BATCHES = Relay(
    "nightside with batches",
    "the same gateway with `batches.folder`, for files of up to 1 GiB and 1,000,000 lines",
    partial(_prepare_nightside, batches={"folder": "batches", "file_max": "1GiB", "lines_max": 1_000_000}),
)
"""Gateway of the study of batches, which the bench itself does not measure."""
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
SET_OTHERWISE = (*TRACED, UNRESUMED, TOKEN_IDS)
"""Variants of the plain gateway with another setting: only their cost per request is measured."""
IN_PAIRS = (NIGHTSIDE, FORWARD, ENVOY_TO_ENVOY)
"""Relays also measured with the worst neighbours: clients that read nothing, and bodies of 32 MB."""
RELAYS = (
    NIGHTSIDE,
    ATTACHED,
    FORWARD,
    ENVOY_TO_ENVOY,
    ENVOY,
    SMG,
    SGLANG_ROUTER,
    VLLM_ROUTER,
    LITELLM,
    PORTKEY,
)

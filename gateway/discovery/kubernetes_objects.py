"""Reads from EndpointSlices and pods where each engine is, and whether it is usable. Unexpected content is skipped; no
function fails. Only the members that are used are decoded.

Objects are plain JSON, as the API sends them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from enum import Enum, auto
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, TypedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.config.targets import KubernetesKind
from gateway.discovery.templates import ReplicaLocation, is_one_servers

Networks = tuple[IPv4Network | IPv6Network, ...]

_ENDPOINTS_MAX = 1000
"""Most endpoints of one slice; clusters have the same limit."""
_METADATA = frozenset({ip_address("fd00:ec2::254"), ip_address("100.100.100.200"), ip_address("168.63.129.16")})
"""Metadata services of clouds outside the link-local networks."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")


class _Conditions(TypedDict, total=False):
    ready: bool | None
    terminating: bool | None


class _Named(TypedDict, total=False):
    name: str | None


class _Endpoint(TypedDict, total=False):
    addresses: list[str] | None
    conditions: _Conditions | None
    targetRef: _Named | None


class _Port(TypedDict, total=False):
    name: str | None
    port: int | None
    containerPort: int | None


class _Container(TypedDict, total=False):
    ports: list[_Port] | None


class _Spec(TypedDict, total=False):
    containers: list[_Container] | None


class _Condition(TypedDict, total=False):
    type: str
    status: str


class _Status(TypedDict, total=False):
    phase: str
    podIP: str
    conditions: list[_Condition] | None


class _Metadata(TypedDict, total=False):
    name: str
    resourceVersion: str
    deletionTimestamp: str | None


class _Object(TypedDict, total=False):
    kind: str
    metadata: _Metadata
    endpoints: list[_Endpoint] | None
    ports: list[_Port] | None
    spec: _Spec
    status: _Status


OBJECTS: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(_Object)
"""Decoder of either kind of object."""


class EngineCondition(Enum):
    """Condition of an engine, as its object tells it."""

    READY = auto()
    UNREADY = auto()
    """The engine does not answer its own probe: it may be loading, or be too busy."""
    LEAVING = auto()
    """The pod is being deleted: its engine ends within the grace that is left."""
    GOING = auto()


class SeenEngine(Struct, frozen=True):
    who: str
    """Name that tells engines apart: a pod's port that two Services expose, at two addresses, is one engine."""
    location: ReplicaLocation
    condition: EngineCondition
    leaves_at_s: float | None = None
    """Time, in seconds since 1970, at which the grace of a pod that is being deleted ends."""


def path_of(kind: KubernetesKind, namespace: str) -> str:
    match kind:
        case KubernetesKind.ENDPOINT_SLICES:
            return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        case KubernetesKind.PODS:
            return f"/api/v1/namespaces/{namespace}/pods"


def kind_of(kind: KubernetesKind) -> str:
    """Kind of the objects, as the API names it."""
    match kind:
        case KubernetesKind.ENDPOINT_SLICES:
            return "EndpointSlice"
        case KubernetesKind.PODS:
            return "Pod"


def name_of(item: dict[str, Any]) -> str:
    """Name of the object; empty where it has none that a cluster would give."""
    return _name(_dict(item, "metadata").get("name"))


def seen_in(
    kind: KubernetesKind, item: dict[str, Any], port: int | str, networks: Networks = ()
) -> Iterator[SeenEngine]:
    """Yield the engines of an object whose addresses are in `networks`, or, with no networks given, wherever pods can
    be. An object with no name yields none."""
    if name_of(item):
        found = _in_slice(item, port) if kind is KubernetesKind.ENDPOINT_SLICES else _in_pod(item, port)
        yield from (each for each in found if _is_pods(each.location.address, networks))


def _is_pods(address: IPv4Address | IPv6Address, networks: Networks) -> bool:
    """Return whether a pod can have the address. Clusters give no pod an address of the machine itself or of its link,
    where clouds answer with credentials, nor one that can be written in two ways."""
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address.ipv4_mapped is not None):
        return False
    if networks:
        return any(address in each for each in networks)
    return not (address.is_loopback or address.is_link_local or address in _METADATA)


def _in_slice(item: dict[str, Any], port: int | str) -> Iterator[SeenEngine]:
    number = port if isinstance(port, int) else _named(_dicts(item, "ports"), port, "port")
    for endpoint in _dicts(item, "endpoints")[:_ENDPOINTS_MAX]:
        conditions = _dict(endpoint, "conditions")
        addresses = endpoint.get("addresses")
        if conditions.get("terminating") is True:
            condition = EngineCondition.GOING
        else:  # readiness defaults to true
            condition = EngineCondition.UNREADY if conditions.get("ready") is False else EngineCondition.READY
        target = _name(_dict(endpoint, "targetRef").get("name"))
        for address in addresses[:1] if isinstance(addresses, list) else ():  # a second address has no meaning
            yield from _seen(target, address, number, condition)


def _in_pod(item: dict[str, Any], port: int | str) -> Iterator[SeenEngine]:
    spec, status, name = _dict(item, "spec"), _dict(item, "status"), name_of(item)
    ports = [each for container in _dicts(spec, "containers") for each in _dicts(container, "ports")]
    number = port if isinstance(port, int) else _named(ports, port, "containerPort")
    deleted = _dict(item, "metadata").get("deletionTimestamp")
    leaves_at_s = _time(deleted) if deleted else None
    if status.get("phase") in ("Succeeded", "Failed") or (deleted and leaves_at_s is None):
        condition = EngineCondition.GOING
    elif leaves_at_s is not None:
        condition = EngineCondition.LEAVING
    else:
        condition = EngineCondition.READY if _is_ready(status) else EngineCondition.UNREADY
    for seen in _seen(name, status.get("podIP"), number, condition):
        yield replace(seen, leaves_at_s=leaves_at_s)


def _is_ready(status: dict[str, Any]) -> bool:
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in _dicts(status, "conditions"))


def _seen(target: str, address: object, port: object, condition: EngineCondition) -> Iterator[SeenEngine]:
    if not isinstance(address, str) or type(port) is not int or not 0 < port < 65536:
        return
    try:
        location = ReplicaLocation(ip_address(address), port, target)
    except ValueError:
        return  # host names in the slice, not addresses
    if is_one_servers(location):
        yield SeenEngine(f"{target or address}:{port}", location, condition)


def _time(told: object) -> float | None:
    """Time in seconds since 1970 of a timestamp as clusters write it; None where it is none."""
    try:
        return datetime.fromisoformat(told).timestamp() if isinstance(told, str) else None
    except (ValueError, OverflowError):
        return None


def _name(told: object) -> str:
    return told if isinstance(told, str) and _NAME.fullmatch(told) else ""


def _named(ports: list[dict[str, Any]], name: str, key: str) -> object:
    return next((each.get(key) for each in ports if each.get("name") == name), None)


def _dict(item: dict[str, Any], key: str) -> dict[str, Any]:
    part = item.get(key)
    return part if isinstance(part, dict) else {}


def _dicts(item: dict[str, Any], key: str) -> list[dict[str, Any]]:
    part = item.get(key)
    return [each for each in part if isinstance(each, dict)] if isinstance(part, list) else []

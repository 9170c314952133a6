"""A small real server for as much of Kubernetes' API as discovery of engines uses: discovery documents, lists in pages,
watches with bookmarks and 410, and creating, replacing, patching and deleting.

It is a model of an API server: tests/deploy compares it with kubectl and kubernetes_asyncio.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import web

from tests.fakes.engine import Tally

KINDS = {
    ("discovery.k8s.io/v1", "endpointslices"): "EndpointSlice",
    ("v1", "pods"): "Pod",
    ("v1", "services"): "Service",
}
_TIMEOUT_MAX_S = 3600.0


@dataclass
class FakeKubernetes:
    token: str = ""
    """Token that callers must present; empty if none is needed."""
    url: str = ""
    forbidden: bool = False
    """True if every known caller is refused with 403."""
    failing: bool = False
    history_max: int = 1000
    """Number of changes kept; a watch from an older version is answered with 410."""
    lists: Tally = field(default_factory=Tally)
    watches: Tally = field(default_factory=Tally)
    watching: int = 0
    asked: Tally = field(default_factory=Tally)
    tokens: set[str] = field(default_factory=set)
    """Tokens that callers have presented."""

    def __post_init__(self) -> None:
        self._versions = count(1)
        self.version = 0
        self._objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._changes: list[tuple[int, str, tuple[str, str, str], dict[str, Any]]] = []
        self._forgotten = 0
        self._changed = asyncio.Event()
        self._cut = asyncio.Event()

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeKubernetes]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
        try:
            yield self
        finally:
            self.end_watches()
            await runner.cleanup()

    # Changes of the cluster's objects

    def put(self, resource: str, item: dict[str, Any], namespace: str = "engines") -> None:
        key = (resource, namespace, item["metadata"]["name"])
        kind = "MODIFIED" if key in self._objects else "ADDED"
        group = next(group for group, name in KINDS if name == resource)
        item = {**deepcopy(item), "apiVersion": group, "kind": KINDS[group, resource]}
        item["metadata"] |= {"namespace": namespace, "uid": f"uid-{item['metadata']['name']}"}
        self._objects[key] = item
        self._note(kind, key, item)

    def delete(self, resource: str, name: str, namespace: str = "engines") -> None:
        key = (resource, namespace, name)
        self._note("DELETED", key, self._objects.pop(key))

    def forget(self) -> None:
        """Forget every change so far: a watch from an older version must list everything again."""
        self._forgotten = self.version
        self._changes.clear()

    def end_watches(self) -> None:
        """End the watches that are open."""
        self._cut.set()
        self._cut = asyncio.Event()

    def _note(self, kind: str, key: tuple[str, str, str], item: dict[str, Any]) -> None:
        self.version = next(self._versions)
        item["metadata"]["resourceVersion"] = str(self.version)
        self._changes.append((self.version, kind, key, deepcopy(item)))
        if len(self._changes) > self.history_max:
            self._forgotten = self._changes[-self.history_max - 1][0]
            del self._changes[: -self.history_max]
        self._changed.set()
        self._changed = asyncio.Event()

    # Answers

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.tokens.add(shown)
        self.asked.add()
        if self.failing:
            return _status(500, "InternalError", "etcd is on holiday")
        if self.token and shown != self.token:
            return _status(401, "Unauthorized", "Unauthorized")
        if self.forbidden:
            return _status(403, "Forbidden", "endpointslices is forbidden: no list here")
        parts = request.path.strip("/").split("/")
        if (document := _discovery(parts)) is not None:
            return web.json_response(document)
        try:
            group, namespace, resource, name = _place(parts)
            kind = KINDS[group, resource]
        except (KeyError, ValueError):
            return _status(404, "NotFound", "the server could not find the requested resource")
        if request.method == "GET" and not name:
            if request.query.get("watch", "").lower() in ("1", "true"):
                return await self._watch(request, resource, namespace)
            return self._list(request, group, kind, resource, namespace)
        return await self._one(request, resource, namespace, name)

    def _list(self, request: web.Request, group: str, kind: str, resource: str, namespace: str) -> web.Response:
        self.lists.add()
        found = [
            item
            for key, item in sorted(self._objects.items())
            if _is_asked_for(key, resource, namespace) and _matches(item, request.query.get("labelSelector", ""))
        ]
        start, limit = int(request.query.get("continue", "0")), int(request.query.get("limit", "0")) or len(found)
        metadata = {"resourceVersion": str(self.version)}
        if start + limit < len(found):
            metadata["continue"] = str(start + limit)
        page = found[start : start + limit]
        return web.json_response({"kind": f"{kind}List", "apiVersion": group, "metadata": metadata, "items": page})

    async def _watch(self, request: web.Request, resource: str, namespace: str) -> web.StreamResponse:
        self.watches.add()
        query = request.query
        seen = int(query.get("resourceVersion") or 0)
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        if seen < self._forgotten:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old resource version: {seen}"}
            await response.write(_line("ERROR", gone))
            return response
        cut = self._cut
        self.watching += 1
        try:
            async with asyncio.timeout(min(float(query.get("timeoutSeconds") or 300), _TIMEOUT_MAX_S)):
                while not cut.is_set():
                    changed = self._changed
                    for version, kind, key, item in list(self._changes):
                        if version > seen and _is_asked_for(key, resource, namespace):
                            if _matches(item, query.get("labelSelector", "")):
                                await response.write(_line(kind, item))
                            elif kind != "ADDED":  # the object may have matched the labels before
                                await response.write(_line("DELETED", item))
                        seen = max(seen, version)
                    if query.get("allowWatchBookmarks", "").lower() in ("1", "true"):
                        await response.write(_line("BOOKMARK", {"metadata": {"resourceVersion": str(seen)}}))
                    await _first_of(changed, cut)
        except TimeoutError:
            pass
        finally:
            self.watching -= 1
        return response

    async def _one(self, request: web.Request, resource: str, namespace: str, name: str) -> web.Response:
        sent = json.loads(await request.read() or b"{}")
        if request.method == "POST":
            name = sent["metadata"]["name"]
            if (resource, namespace, name) in self._objects:
                return _status(409, "AlreadyExists", f'{resource} "{name}" already exists')
            self.put(resource, sent, namespace)
            return web.json_response(self._objects[resource, namespace, name], status=201)
        held = self._objects.get((resource, namespace, name))
        if held is None:
            return _status(404, "NotFound", f'{resource} "{name}" not found')
        if request.method == "GET":
            return web.json_response(held)
        if request.method == "DELETE":
            self.delete(resource, name, namespace)
            return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        known = sent.get("metadata", {}).get("resourceVersion", held["metadata"]["resourceVersion"])
        if known != held["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", "the object has been modified")
        self.put(resource, _merged(held, sent) if request.method == "PATCH" else sent, namespace)
        return web.json_response(self._objects[resource, namespace, name])


async def _first_of(*events: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        waits = [tasks.create_task(each.wait()) for each in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()


def _is_asked_for(key: tuple[str, str, str], resource: str, namespace: str) -> bool:
    return key[0] == resource and namespace in ("", key[1])


def _place(parts: list[str]) -> tuple[str, str, str, str]:
    """Group with version, namespace, resource and name, each empty if absent. Raises ValueError."""
    group, rest = (parts[1], parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    if len(rest) not in (1, 2):
        raise ValueError
    return group, namespace, rest[0], rest[1] if len(rest) == 2 else ""


def _discovery(parts: list[str]) -> dict[str, Any] | None:
    """Discovery documents, which kubectl requests before anything else."""
    match parts:
        case ["version"]:
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            versions = [{"groupVersion": "discovery.k8s.io/v1", "version": "v1"}]
            group = {"name": "discovery.k8s.io", "versions": versions, "preferredVersion": versions[0]}
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
        case ["api", "v1"] | ["apis", "discovery.k8s.io", "v1"]:
            group_version = "/".join(parts[1:])
            verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
            resources = [
                {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": verbs}
                for (group, name), kind in KINDS.items()
                if group == group_version
            ]
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": group_version,
                "resources": resources,
            }
        case _:
            return None


def _matches(item: dict[str, Any], selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        name, _, value = term.replace("==", "=").partition("=")
        if (labels.get(name.rstrip("!")) == value) is name.endswith("!"):
            return False
    return True


def _merged(held: Any, patch: Any) -> Any:
    """Merge patch of RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(held) if isinstance(held, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def _line(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _status(code: int, reason: str, message: str) -> web.Response:
    told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return web.json_response({**told, "reason": reason, "message": message}, status=code)


# Objects, as clusters make them


def endpoint_slice(
    name: str, *addresses: str, labels: dict[str, str] | None = None, ports: dict[str, int] | None = None, **how: Any
) -> dict[str, Any]:
    """Slice of pods named after their addresses, all ready unless `how` says otherwise."""
    conditions = {"ready": True, "serving": True, "terminating": False, **how}
    return {
        "metadata": {"name": name, "labels": labels or {"app": "vllm"}},
        "addressType": "IPv6" if addresses and ":" in addresses[0] else "IPv4",
        "endpoints": [
            {"addresses": [each], "conditions": conditions, "targetRef": {"kind": "Pod", "name": f"pod-{each}"}}
            for each in addresses
        ],
        "ports": [
            {"name": port, "port": number, "protocol": "TCP"} for port, number in (ports or {"http": 8000}).items()
        ],
    }


def pod(
    name: str, address: str | None, *, labels: dict[str, str] | None = None, ready: bool = True, **metadata: Any
) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": "Running" if address else "Pending"}
    status["conditions"] = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": name, "labels": labels or {"app": "vllm"}, **metadata},
        "spec": {
            "containers": [
                {"name": "metrics", "image": "metrics", "ports": [{"name": "metrics", "containerPort": 9100}]},
                {"name": "vllm", "image": "vllm", "ports": [{"name": "http", "containerPort": 8000}]},
            ]
        },
        "status": status | ({"podIP": address} if address else {}),
    }

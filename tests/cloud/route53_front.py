"""Route53 as strict as the real one: a front for an emulator that accepts nearly everything.

Requests that AWS refuses are refused, calls are throttled as by AWS, and failures of the API can be provoked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import aiohttp
from aiohttp import web

from mesh.clock import Clock
from tests.cloud.route53_rules import Changes, faults_of_batch, faults_of_check
from tests.support.listening import serving_http

_NS = "{https://route53.amazonaws.com/doc/2013-04-01/}"
_XMLNS = 'xmlns="https://route53.amazonaws.com/doc/2013-04-01/"'
_SECOND_NS = 1_000_000_000
CALLS_PER_S = 5
"""Rate limit of Route53's API for one account."""


class StrictRoute53:
    """Front of an emulated Route53; tests may change its public attributes while it serves."""

    def __init__(self, emulator_url: str, zone: str, zone_id: str) -> None:
        self.zone, self.zone_id = zone, zone_id
        self.calls: Counter[str] = Counter()
        """Calls that were not throttled, by name."""
        self.refusals: list[str] = []
        self.throttled = 0
        self.calls_per_s: float = CALLS_PER_S
        self.sync_calls = 2
        """Number of `get_change` calls that a change is reported as PENDING before INSYNC."""
        self.losing = 0
        """Number of answers to writes to lose, together with their connections."""
        self.failing: tuple[int, str, str] | None = None
        """Status, code and message with which every call is answered."""
        self.is_lenient = False
        """True if batches are left to the emulator's own checks."""
        self.arrived = asyncio.Event()
        """Set once a batch has arrived."""
        self.held: asyncio.Event | None = None
        """Event for which the next batch is held back, as if delayed in the network."""
        self._emulator_url = emulator_url
        self._asked_after: Counter[str] = Counter()
        self._references: set[str] = set()
        self._clock = Clock()
        self._tokens, self._filled_ns = float(CALLS_PER_S), self._clock.now_ns()
        self._changing = False
        self._rejecting: list[str] = []
        """Reasons for which the next batches are rejected; an empty reason accepts one."""
        self._called = asyncio.Condition()
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{rest:.*}", self._answer)
        runner = web.AppRunner(app, handler_cancellation=False, shutdown_timeout=1.0)
        async with aiohttp.ClientSession(auto_decompress=False) as self._session, serving_http(runner) as port:
            yield f"http://127.0.0.1:{port}"

    def take_all(self) -> None:
        """Use up the account's rate limit, as another user of the account would."""
        self._tokens = 0

    def reject_next(self, why: str, *, times: int = 1, after: int = 0) -> None:
        self._rejecting = [""] * after + [why] * times

    async def until_refused(self) -> None:
        async with self._called:
            await self._called.wait_for(lambda: bool(self.refusals))

    async def until_called(self, name: str, times: int) -> None:
        async with self._called:
            await self._called.wait_for(lambda: self.calls[name] >= times)

    async def records(self) -> list[dict[str, Any]]:
        """Records as the emulator has them; these calls count against no limit."""
        found: list[dict[str, Any]] = []
        query: dict[str, str] = {}
        while True:
            text = await self._ask("GET", f"/2013-04-01/hostedzone/{self.zone_id}/rrset", params=query)
            root = ET.fromstring(text)
            found += [record_set_of(each) for each in root.iter(f"{_NS}ResourceRecordSet")]
            if root.findtext(f"{_NS}IsTruncated") != "true":
                return found
            words = {"Name": "name", "Type": "type", "Identifier": "identifier"}
            query = {word: text for key, word in words.items() if (text := root.findtext(f"{_NS}NextRecord{key}", ""))}

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        name = _name_of(request)
        if not self._may_come():
            self.throttled += 1
            return _error(400, "Throttling", "Rate exceeded")
        async with self._called:
            self.calls[name] += 1
            self._called.notify_all()
        if self.failing is not None:
            return _error(*self.failing)
        if name == "change_record_sets":
            return await self._change(request, body)
        if name == "create_health_check":
            return await self._create_check(request, body)
        answer = await self._pass_on(request, body)
        if name == "get_change":
            change_id = request.path.rpartition("/")[2]
            self._asked_after[change_id] += 1
            word = b"PENDING" if self._asked_after[change_id] <= self.sync_calls else b"INSYNC"
            assert answer.body is not None
            text = bytes(answer.body)  # type: ignore[arg-type]
            for other in (b"PENDING", b"INSYNC"):
                text = text.replace(b"<Status>" + other, b"<Status>" + word)
            return web.Response(body=text, status=answer.status, content_type="text/xml")
        return answer

    async def _change(self, request: web.Request, body: bytes) -> web.StreamResponse:
        self.arrived.set()
        if self.held is not None:
            held, self.held = self.held, None
            await asyncio.shield(held.wait())  # also if its sender has given up: a delayed batch still arrives
        if self._changing:
            return _error(400, "PriorRequestNotComplete", "The request was rejected because another is in progress")
        self._changing = True
        try:
            if why := (self._rejecting.pop(0) if self._rejecting else ""):
                return _invalid_batch([why])
            before = [] if self.is_lenient else await self.records()
            faults = faults_of_batch(self.zone, self.zone_id, before, changes_in(body), await self._check_ids())
            if faults and not self.is_lenient:
                async with self._called:
                    self.refusals += faults
                    self._called.notify_all()
                return _invalid_batch(faults)
            answer = await self._pass_on(request, body)
        finally:
            self._changing = False
        return self._perhaps_lost(request, answer)

    async def _create_check(self, request: web.Request, body: bytes) -> web.StreamResponse:
        root = ET.fromstring(body)
        reference = root.findtext(f"{_NS}CallerReference", "")
        said = root.find(f"{_NS}HealthCheckConfig")
        assert said is not None
        config = {each.tag.removeprefix(_NS): each.text or "" for each in said}
        faults = faults_of_check(reference, config, self._references)
        if faults:
            self.refusals += faults
            return _error(400, "InvalidInput", "; ".join(faults))
        self._references.add(reference)
        return self._perhaps_lost(request, await self._pass_on(request, body))

    def _perhaps_lost(self, request: web.Request, answer: web.Response) -> web.StreamResponse:
        if self.losing and request.transport is not None:
            self.losing -= 1
            request.transport.close()
        return answer

    async def _check_ids(self) -> list[str]:
        root = ET.fromstring(await self._ask("GET", "/2013-04-01/healthcheck", params={"maxitems": "1000"}))
        return [each.findtext(f"{_NS}Id", "") for each in root.iter(f"{_NS}HealthCheck")]

    async def _pass_on(self, request: web.Request, body: bytes) -> web.Response:
        assert self._session is not None
        headers = {key: text for key, text in request.headers.items() if key.lower() != "host"}
        url = self._emulator_url + request.path_qs
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            return web.Response(body=await answer.read(), status=answer.status, content_type="text/xml")

    async def _ask(self, method: str, path: str, *, params: Mapping[str, str]) -> str:
        assert self._session is not None
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/route53/aws4_request"}
        url = self._emulator_url + path
        async with self._session.request(method, url, params=params, headers=signed) as answer:
            return await answer.text()

    def _may_come(self) -> bool:
        now_ns = self._clock.now_ns()
        more = (now_ns - self._filled_ns) / _SECOND_NS * self.calls_per_s
        self._tokens, self._filled_ns = min(self.calls_per_s, self._tokens + more), now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def changes_in(body: bytes) -> Changes:
    found = []
    for change in ET.fromstring(body).iter(f"{_NS}Change"):
        said = change.find(f"{_NS}ResourceRecordSet")
        assert said is not None
        found.append((change.findtext(f"{_NS}Action", ""), record_set_of(said)))
    return found


def record_set_of(element: ET.Element) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in element:
        key = each.tag.removeprefix(_NS)
        if key == "ResourceRecords":
            found[key] = [value.text or "" for value in each.iter(f"{_NS}Value")]
        elif len(each):
            found[key] = {inner.tag.removeprefix(_NS): inner.text or "" for inner in each}
        else:
            found[key] = each.text or ""
    return found


def _name_of(request: web.Request) -> str:
    path, method = request.path, request.method
    if path.endswith(("/rrset", "/rrset/")):
        return "change_record_sets" if method == "POST" else "list_record_sets"
    if "/change/" in path:
        return "get_change"
    if "/healthcheck" in path:
        return {"POST": "create_health_check", "DELETE": "delete_health_check"}.get(method, "list_health_checks")
    return f"{method} {path}"


def _invalid_batch(faults: Iterable[str]) -> web.Response:
    return _error(400, "InvalidChangeBatch", f"[{', '.join(faults)}]")


def _error(status: int, code: str, words: str) -> web.Response:
    said = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(words)}</Message></Error>"
    text = f'<?xml version="1.0"?><ErrorResponse {_XMLNS}>{said}<RequestId>{uuid4()}</RequestId></ErrorResponse>'
    return web.Response(text=text, status=status, content_type="text/xml")

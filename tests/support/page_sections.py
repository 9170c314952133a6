"""Sections of a gateway's and of a controller's page with something in every part, and a process that serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from mesh.operators_config import Role
from mesh.page.last_hour import INTERVAL_NS, SERIES
from mesh.page.rows import ColumnShown, DecisionMark, DecisionShown, TableShown, joined, shown_at
from mesh.page.serving import add_page

Sections = dict[str, Any]

AT_MS = 1_790_000_000_000
"""Time of what is shown: 2026-09-21 14:13:20 UTC."""


def problem(kind: str, text: str, runbook: str = "", subject: str = "") -> dict[str, object]:
    return {"text": text, "kind": kind, "subject": subject, "runbook": runbook, "since_ms": AT_MS}


def hour(*regions: str, samples: int = 40) -> dict[str, object]:
    """Series of the last minutes, a different level for each region."""
    times = [AT_MS - (samples - index) * INTERVAL_NS // 1_000_000 for index in range(samples)]
    series = {
        region: {name: [float(level + index % 5) for index in range(samples)] for name in SERIES}
        for level, region in enumerate(regions)
    }
    return {"times_ms": times, "regions": series}


def decision(gateway: str, request: str, *marks: DecisionMark, **more: Any) -> DecisionShown:
    known: dict[str, Any] = {"model": "m", "outcome": "completed", "region": "us-east-1", "marks": list(marks)}
    return DecisionShown(gateway, request, 0, **{**known, **more})


def region(name: str, **more: object) -> dict[str, object]:
    figures = {
        "replicas": 4,
        "free": 3,
        "down": 0,
        "running": 21,
        "waiting": 2,
        "slots": 48,
        "slots_used": 41,
        "kv": 0.63,
    }
    about = {
        "jurisdiction": "US",
        "is_here": False,
        "health": "healthy",
        "why": "",
        "latitude": None,
        "longitude": None,
    }
    return {"region": name, "gateways": ["us-1"], **about, **figures, **more}


DECISIONS = joined(
    [
        decision("us-1", "r-plain", waited_ms=1.0, first_token_ms=180.0, words="It ran in us-east-1."),
        decision(
            "us-1", "r-away", DecisionMark.FORWARDED, target="eu-1", words="It was sent to eu-1.", region="eu-west-1"
        ),
        decision(
            "eu-1", "r-away", DecisionMark.SLOW, DecisionMark.FORWARDED, origin="us-1", words="It ran on eu-1-r0."
        ),
        decision("us-1", "r-failed", DecisionMark.FAILED, outcome="failed_midstream", words="The engine died."),
        decision("us-1", "r-refused", DecisionMark.REFUSED, outcome="rejected_queue_full", words="The queue was full."),
        decision("us-1", "r-resumed", DecisionMark.RESUMED, first_token_ms=90.0, words="It went on elsewhere."),
        decision("us-1", "r-later", waited_ms=30.0, first_token_ms=2_100.0, words="It ran in us-east-1."),
    ]
)


def shared_sections() -> Sections:
    policy = {"region": "us-east-1", "jurisdiction": "US", "digest": "abc", "closed_reason": ""}
    return {
        "totals": {
            "requests": 132, "waiting": 3, "replicas": 8, "free": 6, "gateways": 2, "gateways_up": 2,
            "slots": 96, "slots_used": 82, "kv": 0.5,
        },
        "regions": [
            region("us-east-1", is_here=True),
            region("eu-west-1", health="degraded", why="a fault", running=4),
        ],
        "forwards": [{"origin": "us-east-1", "target": "eu-west-1", "per_minute": 120.0, "running": 4}],
        "hour": hour("us-east-1", "eu-west-1"),
        "names": {
            "zone": "mesh.example.", "ttl_s": 5,
            "areas": [{"region": "us-east-1", "gateways": ["us-1"], "addresses": ["192.0.2.1"], "why": ""}],
        },
        "policies": [{**policy, "words": ["Requests may be sent to eu-west-1 (EU): `process` names it."]}],
        "decisions": [shown_at(each, AT_MS - index * 1000) for index, each in enumerate(DECISIONS)],
    }  # fmt: skip


def gateway_sections() -> Sections:
    def replica(number: int, **more: object) -> dict[str, object]:
        about = {"region": "us-east-1", "pool": "default", "role": "unified", "models": ["m"], "health": "healthy"}
        figures = {"running": number, "pending": 0, "in_flight": number, "slots": 12, "kv": number / 10}
        return {"id": f"r{number}", "standing": "available", "detail": "", **about, **figures, **more}

    replicas = [replica(number) for number in (3, 1, 7, 5, 2, 6)]
    replicas.append(replica(4, health="down", standing="unhealthy", detail="refused"))
    peer = {
        "id": "eu-1", "region": "eu-west-1", "jurisdiction": "EU", "health": "busy", "standing": "busy",
        "detail": "", "rtt_ms": 80.0, "in_flight": 4, "free": 2, "waiting": 1,
    }  # fmt: skip
    tenants = [
        {"tenant": "acme", "class": "interactive", "waiting": 2, "running": 20, "oldest_ms": AT_MS},
        {"tenant": "acme", "class": "batch", "waiting": 0, "running": 3, "oldest_ms": None},
    ]
    problems = [
        problem("not_ready", "not ready: no engine answers", "NightsideNotReady"),
        problem("replica_unusable", "replica r4 is unhealthy: refused", "NightsideReplicaDown", "r4"),
        problem("scaling_webhook_failing", "calls of the scaling webhook fail: 500"),
    ]
    return {
        **shared_sections(),
        "who": {"kind": "gateway", "name": "us-1", "region": "us-east-1", "jurisdiction": "US"},
        "state": {
            "notes": [{"level": "warn", "text": "engines: one is new"}], "draining": False,
            "drained_by_controller": False, "lockdown": False, "lockdown_reason": "", "not_ready_reason": "",
        },
        "problems": {"rows": problems, "left_out": 2},
        "queue": [["m", 3], ["n", 1]],
        "tenants": {"rows": tenants, "left_out": 0},
        "replicas": {"rows": replicas, "left_out": 0},
        "peers": {"rows": [peer], "left_out": 0},
        "tables": [
            TableShown(
                "jobs", "Jobs", "No job runs.",
                [ColumnShown("Job"), ColumnShown("Lines", "number"), ColumnShown("Expected end (UTC)", "time")],
                [("j1", 12_000, AT_MS), ("j2", 7, None)], 3,
            ),
            TableShown("none", "Nothing", "Nothing runs.", [ColumnShown("Name")], []),
        ],
    }  # fmt: skip


def controller_sections() -> Sections:
    gateway = {
        "id": "us-1", "region": "us-east-1", "jurisdiction": "US", "health": "healthy", "condition": "up", "detail": "",
        "drained": False, "locked_down": False, "draining": False, "attached": True, "requests": 40, "replicas": 4,
        "free": 3, "waiting": 2, "slots": 48, "slots_used": 41, "kv": 0.63, "addresses": [], "rejected": "",
    }  # fmt: skip
    owner = {"home": "us-1", "owner": "eu-1", "count": 2, "names": ["r0", "r1"], "why": ""}
    event = {"event": "failover_frozen", "level": "error", "meaning": "It is frozen.", "details": {"reason": "drill"}}
    order = {"by": "ops", "address": "192.0.2.9", "order": {"order": "freeze"}, "result": "done"}
    problems = [problem("gateway_down", "gateway eu-1 is down: no answer", "NightsideMeshGatewayDown", "eu-1")]
    return {
        **shared_sections(),
        "who": {"kind": "controller", "name": "ctl-1", "region": "", "jurisdiction": ""},
        "state": {
            "notes": [], "frozen": "", "freeze_ordered": False, "not_ready_reason": "", "leads": True,
            "term": 3, "version": 9,
        },
        "problems": {"rows": problems, "left_out": 0},
        "gateways": {"rows": [gateway, {**gateway, "id": "eu-1", "health": "down", "attached": False}], "left_out": 0},
        "owners": {"rows": [owner, {**owner, "owner": "", "why": "no gateway lives"}], "left_out": 0},
        "events": [{**event, "time": "2026-09-21T14:13:20Z"}],
        "orders": [{**order, "time": "2026-09-21T14:13:20Z"}],
    }  # fmt: skip


@asynccontextmanager
async def shown_page(sections: Sections) -> AsyncIterator[str]:
    """URL of a process whose page shows these sections to an operator who may change all."""

    async def whoami(_: web.Request) -> web.Response:
        return web.json_response({"operator": "ops", "role": Role.CHANGE})

    async def explain(_: web.Request) -> web.Response:
        candidate = {"id": "r1", "kind": "replica", "region": "us-east-1", "standing": "available", "load": 2}
        considered = [{**candidate, "matched_blocks": 3, "costs": {"score": 12.5}}]
        placement = {"attempt": 1, "reason": "local_prefix", "prompt_blocks": 9, "considered": considered}
        here = {"gateway": "us-1", "placements": [placement]}
        return web.json_response({"here": here, "words": ["It ran in us-east-1."], "there": []})

    app = web.Application()
    add_page(app, lambda: sections)
    app.router.add_get("/admin/whoami", whoami)
    app.router.add_get("/admin/explain/{id}", explain)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")

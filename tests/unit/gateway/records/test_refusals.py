from __future__ import annotations

import io
import json
from typing import Any

from msgspec.structs import replace

from gateway.app.wording import headline, sentence
from gateway.core.kernel import events
from gateway.core.kernel.residency import LoggingRule
from gateway.core.vocabulary import GatewayId, RequestId, TenantName
from gateway.records.refusals import REMEMBERED_MAX, Refusal, Refusals
from gateway.request.callers import KeyId
from mesh.config import LogFormat, LoggingConfig
from mesh.gateway_log_events import GATEWAY
from mesh.logs import make_logger
from mesh.page.rows import DecisionMark
from tests.support.clock import StillClock
from tests.support.core import MS, SECOND, US, desk, policy
from tests.support.log_calls import fields_of, registered_fields

NOBODY = Refusal("invalid_api_key", 401, "The API key is missing or not valid.", RequestId("r1"))
KNOWN = Refusal("token_rate_exceeded", 429, "Used up.", RequestId("r2"), TenantName("acme"), KeyId("k1"))


class Door:
    def __init__(self) -> None:
        self.clock = StillClock()
        self.counts: list[tuple[str, str | None]] = []
        self.stream = io.StringIO()
        self.core = desk().core
        self.refusals = Refusals(
            GatewayId("us-1"),
            US,
            self.core,
            count=lambda reason, tenant: self.counts.append((reason, tenant)),
            clock=self.clock,
            log=make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), self.stream),
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def test_each_is_counted_and_told_once_a_second_for_its_reason() -> None:
    door = Door()
    for _ in range(3):
        door.refusals.take(NOBODY)
    door.refusals.take(KNOWN)
    door.clock.now = SECOND
    door.refusals.take(NOBODY)
    assert door.counts == [("invalid_api_key", None)] * 3 + [("token_rate_exceeded", "acme"), ("invalid_api_key", None)]
    assert [(line["reason"], line["count"]) for line in door.lines] == [
        ("invalid_api_key", 1),
        ("token_rate_exceeded", 1),
        ("invalid_api_key", 3),
    ]
    known = door.lines[1]
    assert (known["status"], known["request_id"], known["tenant"], known["key"]) == (429, "r2", "acme", "k1")
    assert "tenant" not in door.lines[0]
    assert fields_of(known) == registered_fields("refused", GATEWAY)


def test_what_is_not_the_client_s_fault_warns() -> None:
    door = Door()
    door.refusals.take(Refusal("gateway_full", 503, "Full."))
    door.refusals.take(NOBODY)
    assert [line["level"] for line in door.lines] == ["warning", "info"]


def test_neither_tenant_nor_key_is_told_where_the_policy_keeps_tenants_out_of_logs() -> None:
    door = Door()
    door.core.handle(events.PolicyApplied(replace(policy(US), logging=LoggingRule(tenant=False))), 0)
    door.refusals.take(KNOWN)
    assert not {"tenant", "key"} & door.lines[0].keys()


def test_it_is_explained_by_its_id() -> None:
    door = Door()
    door.refusals.take(KNOWN)
    door.clock.now = 5 * MS
    explained = door.refusals.explain("r2")
    assert explained is not None
    assert explained.age_ms == 5
    assert headline(explained) == (
        "Request r2, from a client, at us-1 in us-east-1 (US): ended as refused (429 token_rate_exceeded)."
    )
    assert sentence(explained) == "It was turned away as token_rate_exceeded: Used up."
    assert door.refusals.explain("r3") is None


def test_those_remembered_are_bounded_and_the_oldest_goes_first() -> None:
    door = Door()
    for number in range(REMEMBERED_MAX + 1):
        door.refusals.take(replace(NOBODY, request_id=RequestId(f"r{number}")))
    door.refusals.take(replace(NOBODY, request_id=None))
    assert len(door.refusals) == REMEMBERED_MAX
    assert door.refusals.explain("r0") is None
    assert door.refusals.explain("r1") is not None


def test_the_latest_come_newest_first_and_are_marked() -> None:
    door = Door()
    door.refusals.take(NOBODY)
    door.clock.now = SECOND
    door.refusals.take(KNOWN)
    found = door.refusals.latest(5)
    assert [(each.request.request_id, each.arrived_ns, each.marks) for each in found] == [
        ("r2", SECOND, [DecisionMark.REFUSED]),
        ("r1", 0, [DecisionMark.REFUSED]),
    ]
    assert [each.request.request_id for each in door.refusals.latest(1)] == ["r2"]

"""Leaving in a running gateway: the operators' routes, announcements of clusters, and what is shown of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Struct
from prometheus_client import CollectorRegistry

from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.config.targets import ReplicaConfig
from gateway.core.features.leaving.events import ReplicaLeaves
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import ReplicaId
from gateway.door.admin import GIVEN_AWAY
from gateway.features.extension import Extension, Host
from gateway.features.leaving.metrics import LeavingSeries
from gateway.features.leaving.status import LeavingReplica, LeavingView, page_table
from mesh.admin_server import OPERATOR, as_json, fault, needs
from mesh.operators import ANY_OPERATOR, Operator, told_of
from mesh.operators_config import Role
from mesh.page.rows import TableShown

NOTICE_MAX_S = 24 * 3600
"""Longest notice: a replica that leaves takes no requests, however late it does."""
_PATH = "/admin/replicas/{id}/leave-by"
_ORCHESTRATOR = "kubernetes"
_SECOND_NS = 1_000_000_000
_MILLISECOND_NS = 1_000_000


class LeaveByOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /admin/replicas/ID/leave-by`: one of the two times."""

    seconds: float | None = None
    """Time left, in seconds."""
    at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """Wall time, as RFC 3339 writes it."""


class _Notice(Struct, frozen=True):
    """Announcement in force."""

    at_ns: int
    """Wall time in nanoseconds since 1970."""
    by: str


class LeavingExtension(Extension):
    """Takes announcements, and shows which replicas leave."""

    name = "leaving"
    is_live = True

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:  # noqa: ARG002
        self._host = host
        self._described: frozenset[str] = frozenset()
        """Ids of the region file's replicas, which another gateway may serve at present."""
        self._notices: dict[ReplicaId, _Notice] = {}
        series = LeavingSeries(host.metrics.registry, lambda: sum(each.is_overdue for each in self._replicas()))
        host.finished.hand_to(series.on_finished)

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:  # noqa: ARG004
        LeavingSeries(registry)

    def apply(self, config: GatewayConfig, orders: Orders, /) -> None:  # noqa: ARG002
        self._described = frozenset(_names(each.spec.replica_id for each in config.replicas))

    def follow(self, replicas: Sequence[ReplicaConfig], /) -> None:
        """Take in which replicas the orchestrator ends, and which not any more."""
        for each in replicas:
            name, at_s = each.spec.replica_id, each.leaves_at_s
            if at_s is not None:
                self._leaves(name, round(at_s * _SECOND_NS), _ORCHESTRATOR)
            elif name in self._notices and self._notices[name].by == _ORCHESTRATOR:
                self._stays(name)

    # State for operators

    def describe(self) -> LeavingView:
        return LeavingView(list(self._replicas()))

    def page_table(self) -> TableShown | None:
        view = self.describe()
        return page_table(view, {name: each.at_ns // _MILLISECOND_NS for name, each in self._notices.items()})

    def notes(self) -> dict[str, str]:
        told = [f"{each.replica} by {each.leave_by}" for each in self._replicas()]
        return {"leaving": ", ".join(told)} if told else {}

    def _replicas(self) -> Iterator[LeavingReplica]:
        """Replicas whose announcements are in force. The core ends an announcement when the replica has left."""
        states = {state.spec.replica_id: state for state in self._host.core.replicas if state.leave_by_ns is not None}
        self._notices = {name: each for name, each in self._notices.items() if name in states}
        now_ns = self._host.clock.now_ns()
        for name, notice in self._notices.items():
            state = states[name]
            is_over = state.leave_by_ns is not None and now_ns >= state.leave_by_ns
            yield LeavingReplica(name, _in_words(notice.at_ns), notice.by, state.in_flight, is_over and state.healthy)

    # Announcements

    def add_routes(self, admin: web.Application, /) -> None:
        admin.router.add_post(_PATH, self._announce)
        admin.router.add_delete(_PATH, self._withdraw)

    @needs(Role.DRAIN)
    async def _announce(self, request: web.Request) -> web.Response:
        """Require JSON: a page in an operator's browser cannot send this content type without permission (CSRF)."""
        if request.content_type != "application/json":
            return fault(415, "send application/json")
        try:
            order = msgspec.json.decode(await request.read(), type=LeaveByOrder)
            at_ns = self._end_of(order)
        except (msgspec.DecodeError, ValueError) as error:
            return fault(400, str(error))
        found = self._named(request.match_info["id"])
        if refusal := self._refusal(request.match_info["id"], found):
            return refusal
        for name in found:
            self._leaves(name, at_ns, request[OPERATOR].name, request[OPERATOR])
        return as_json({"leaving": [{"replica": name, "leave_by": _in_words(at_ns)} for name in found]})

    @needs(Role.DRAIN)
    async def _withdraw(self, request: web.Request) -> web.Response:
        """Withdraw an announcement. A browser asks before it sends this method for a page of another origin (CSRF)."""
        found = self._named(request.match_info["id"])
        if refusal := self._refusal(request.match_info["id"], found):
            return refusal
        leaving = {each.replica for each in self._replicas()}
        for name in found:
            self._stays(name, request[OPERATOR])
        return as_json({"withdrawn": [name for name in found if name in leaving]})

    def _end_of(self, order: LeaveByOrder) -> int:
        """Wall time of an order, in nanoseconds. Raises ValueError where it has none that can be meant."""
        if (order.seconds is None) == (order.at is None):
            raise ValueError("give one of `seconds` and `at`")
        now_ns = self._host.clock.wall_ns()
        left_s = order.seconds if order.at is None else order.at.timestamp() - now_ns / _SECOND_NS
        assert left_s is not None, "one of them is given"
        if not 0 < left_s <= NOTICE_MAX_S:
            far = f"is more than {NOTICE_MAX_S // 3600} hours away"
            raise ValueError(f"the time {'has passed' if left_s <= 0 else far}")
        return now_ns + round(left_s * _SECOND_NS)

    def _named(self, wanted: str) -> list[ReplicaId]:
        """Replicas of this gateway with this id, or of the engine of which they are ranks."""
        ids = [state.spec.replica_id for state in self._host.core.replicas]
        return [each for each in ids if wanted in _names([each])]

    def _refusal(self, wanted: str, found: Sequence[ReplicaId]) -> web.Response | None:
        if self._host.is_given_away:
            return fault(409, GIVEN_AWAY)
        if found:
            return None
        if wanted in self._described:
            return fault(409, f"replica {wanted} is served by another gateway at present: announce it there")
        return fault(404, f"there is no replica {wanted} here")

    def _leaves(self, name: ReplicaId, at_ns: int, by: str, operator: Operator = ANY_OPERATOR) -> None:
        """Put an announcement in force. One that is repeated is not logged again."""
        notice = _Notice(at_ns, by)
        left_ns, told = at_ns - self._host.clock.wall_ns(), _in_words(at_ns)
        if self._notices.get(name) != notice:
            left_s = round(left_ns / _SECOND_NS, 1)
            self._host.log.warning("replica_leaving", replica=name, leave_by=told, left_s=left_s, **told_of(operator))
        self._notices[name] = notice
        self._host.submit(ReplicaLeaves(name, self._host.clock.now_ns() + left_ns))

    def _stays(self, name: ReplicaId, operator: Operator = ANY_OPERATOR) -> None:
        if self._notices.pop(name, None) is not None:
            self._host.log.info("replica_stays", replica=name, **told_of(operator))
            self._host.submit(ReplicaLeaves(name, None))


def _names(ids: Iterable[str]) -> Iterator[str]:
    """Each id, and that of the engine of which it is a rank."""
    for each in ids:
        yield from dict.fromkeys((each, each.rpartition("@")[0] or each))


def _in_words(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // _SECOND_NS, UTC):%Y-%m-%dT%H:%M:%SZ}"

"""Leaving in a running gateway: the operators' routes, announcements of clusters, and what is shown of both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from gateway.records.finished import TakeFinished
from mesh.admin_server import OPERATOR, as_json, fault, needs
from mesh.operators import ANY_OPERATOR, Operator, told_of
from mesh.operators_config import Role
from mesh.page.rows import TableShown

NOTICE_MAX_S = 24 * 3600
"""Longest notice: a replica that leaves takes no requests, however late it does."""
_PATH = "/admin/replicas/{id}/leave-by"
_ORCHESTRATOR = None
"""Source of what the orchestrator announces; any other source is an operator, whatever the name."""
_Source = Operator | None
_SAME_MS = 1000
"""Change in ms below which an announcement counts as repeated: one in seconds comes a little later each time."""
_SECOND_NS = 1_000_000_000
_MILLISECOND_NS = 1_000_000


class LeaveByOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /admin/replicas/ID/leave-by`: one of the two times."""

    seconds: float | None = None
    """Time left, in seconds."""
    at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """Wall time, as RFC 3339 writes it."""


class LeavingExtension(Extension):
    """Takes announcements, and shows which replicas leave."""

    name = "leaving"
    is_live = True

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:  # noqa: ARG002
        self._host = host
        self._described: frozenset[str] = frozenset()
        """Ids of the region file's replicas, which another gateway may serve at present."""
        self._notices: dict[ReplicaId, dict[_Source, int]] = {}
        """Announcements, each with its end in ms since 1970. The earliest is in force."""
        series = LeavingSeries(host.metrics.registry, lambda: sum(each.is_overdue for each in self._replicas()))
        self._count_moved: TakeFinished | None = series.on_finished
        """Counter of moved attempts, until it is handed finished requests: from the first announcement on."""

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:  # noqa: ARG004
        LeavingSeries(registry)

    def apply(self, config: GatewayConfig, orders: Orders, /) -> None:  # noqa: ARG002
        self._described = frozenset(_names(each.spec.replica_id for each in config.replicas))

    def follow(self, replicas: Sequence[ReplicaConfig], /) -> None:
        """Take in which replicas the orchestrator ends, and which not any more."""
        self._forget_ended()
        told = {each.spec.replica_id: each.leaves_at_s for each in replicas}
        self._notices = {name: notices for name, notices in self._notices.items() if name in told}
        for name, at_s in told.items():
            if at_s is not None:
                self._leaves(name, round(at_s * 1000), _ORCHESTRATOR)
            elif _ORCHESTRATOR in self._notices.get(name, ()):
                self._stays(name, {_ORCHESTRATOR})

    def assigned(self) -> None:
        """Announce the orchestrator's ends again: the core knows of replicas now that it did not know in `follow`."""
        for name, notices in self._notices.items():
            if _ORCHESTRATOR in notices:
                self._submit(name)

    # State for operators

    def describe(self) -> LeavingView:
        return LeavingView(list(self._replicas()))

    def page_table(self) -> TableShown | None:
        view = self.describe()
        return page_table(view, {name: min(notices.values()) for name, notices in self._notices.items()})

    def notes(self) -> dict[str, str]:
        told = [f"{each.replica} by {each.leave_by}" for each in self._replicas()]
        return {"leaving": ", ".join(told)} if told else {}

    def _replicas(self) -> Iterator[LeavingReplica]:
        """Replicas whose announcements are in force."""
        self._forget_ended()
        now_ns = self._host.clock.now_ns()
        for state in self._host.core.replicas:
            name = state.spec.replica_id
            if (notices := self._notices.get(name)) and state.leave_by_ns is not None:
                at_ms, by = _first_of(notices)
                is_overdue = now_ns >= state.leave_by_ns and state.healthy
                yield LeavingReplica(name, _in_words(at_ms), by, state.in_flight, is_overdue)

    def _forget_ended(self) -> None:
        """Forget the announcements that the core has ended, as their replicas have left."""
        for state in self._host.core.replicas:
            if state.leave_by_ns is None:
                self._notices.pop(state.spec.replica_id, None)

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
            at_ms = self._end_of(order)
        except (msgspec.DecodeError, ValueError) as error:
            return fault(400, str(error))
        found = self._named(request.match_info["id"])
        if refusal := self._refusal(request.match_info["id"], found):
            return refusal
        self._forget_ended()
        for name in found:
            self._leaves(name, at_ms, request[OPERATOR])
        ends = {name: _in_words(min(self._notices[name].values())) for name in found}
        return as_json({"leaving": [{"replica": name, "leave_by": told} for name, told in ends.items()]})

    @needs(Role.DRAIN)
    async def _withdraw(self, request: web.Request) -> web.Response:
        """Withdraw operators' announcements. A browser asks before it sends this method for a page of another origin
        (CSRF)."""
        found = self._named(request.match_info["id"])
        if refusal := self._refusal(request.match_info["id"], found):
            return refusal
        self._forget_ended()
        leaving = [name for name in found if name in self._notices]
        for name in leaving:
            self._stays(name, self._notices[name].keys() - {_ORCHESTRATOR}, request[OPERATOR])
        if kept := [name for name in leaving if name in self._notices]:
            return fault(409, f"Kubernetes ends the pod of {', '.join(kept)}: this cannot be withdrawn here")
        return as_json({"withdrawn": leaving})

    def _end_of(self, order: LeaveByOrder) -> int:
        """Wall time of an order, in ms since 1970. Raises ValueError where it has none that can be meant."""
        if (order.seconds is None) == (order.at is None):
            raise ValueError("give one of `seconds` and `at`")
        now_s = self._host.clock.wall_ns() / _SECOND_NS
        left_s = order.seconds if order.at is None else order.at.timestamp() - now_s
        assert left_s is not None, "one of them is given"
        if not 0 < left_s <= NOTICE_MAX_S:
            far = f"is more than {NOTICE_MAX_S // 3600} hours away"
            raise ValueError(f"the time {'has passed' if left_s <= 0 else far}")
        return round((now_s + left_s) * 1000)

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

    def _leaves(self, name: ReplicaId, at_ms: int, by: _Source) -> None:
        """Put an announcement in force, unless another source's is earlier. One that is repeated is not logged
        again."""
        notices = self._notices.setdefault(name, {})
        before_ms = notices.get(by)
        notices[by] = at_ms
        if before_ms is None or abs(at_ms - before_ms) >= _SAME_MS:
            left_s = round(at_ms / 1000 - self._host.clock.wall_ns() / _SECOND_NS, 1)
            told = told_of(by or ANY_OPERATOR)
            self._host.log.warning("replica_leaving", replica=name, leave_by=_in_words(at_ms), left_s=left_s, **told)
        self._submit(name)

    def _stays(self, name: ReplicaId, sources: Collection[_Source], operator: Operator = ANY_OPERATOR) -> None:
        """Withdraw the announcements of some sources."""
        notices = self._notices.get(name, {})
        if left := {by: at_ms for by, at_ms in notices.items() if by not in sources}:
            self._notices[name] = left
            self._submit(name)
        elif notices:
            del self._notices[name]
            self._host.log.info("replica_stays", replica=name, **told_of(operator))
            self._host.submit(ReplicaLeaves(name, None))

    def _submit(self, name: ReplicaId) -> None:
        """Tell the core the end that is in force."""
        if self._count_moved is not None:
            self._host.finished.hand_to(self._count_moved)
            self._count_moved = None
        clock, at_ms = self._host.clock, min(self._notices[name].values())
        left_ns = at_ms * _MILLISECOND_NS - clock.wall_ns()
        self._host.submit(ReplicaLeaves(name, clock.now_ns() + left_ns))


def _first_of(notices: Mapping[_Source, int]) -> tuple[int, str]:
    """Earliest end, and the name of its source."""
    by, at_ms = min(notices.items(), key=lambda each: each[1])
    return at_ms, "kubernetes" if by is _ORCHESTRATOR else by.name


def _names(ids: Iterable[str]) -> Iterator[str]:
    """Each id, and that of the engine of which it is a rank."""
    for each in ids:
        yield from dict.fromkeys((each, each.rpartition("@")[0] or each))


def _in_words(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"

"""Requests that were refused before they reached the core: counted, logged at a limited rate, and remembered by request
id for explanations. It holds nothing that a client wrote except the request's id."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.core.kernel.state import GatewayState
from gateway.core.vocabulary import GatewayId, Place, RequestId, TenantName
from gateway.records.decisions import REFUSED, ExplainedRefusal, ExplainedRequest, Latest
from gateway.request.callers import KeyId
from mesh.clock import Clock
from mesh.page.rows import DecisionMark

REMEMBERED_MAX = 1024
"""Maximum of remembered refusals. They are kept apart from decisions, so that clients without a key cannot push
decisions out."""

_LINE_EVERY_NS = 1_000_000_000
_MILLISECOND_NS = 1_000_000


class Refusal(Struct, frozen=True):
    """Refusal of one request at admission."""

    reason: str
    """Code sent to the client, one of a closed set."""
    status: int
    message: str
    """Text of the code; it contains none of the client's text."""
    request_id: RequestId | None = None
    """Unset where no whole request was received."""
    tenant: TenantName | None = None
    key_id: KeyId | None = None


OnRefused = Callable[[Refusal], None]


class Refusals:
    """Refusals of one gateway. `take` is cheap enough for a flood of them."""

    def __init__(
        self,
        gateway_id: GatewayId,
        place: Place,
        core: GatewayState,
        *,
        count: Callable[[str, TenantName | None], None],
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self._gateway_id = gateway_id
        self._place = place
        self._core = core
        self._count = count
        self._clock = clock
        self._lines = _Lines(log)
        self._latest: dict[RequestId, tuple[Refusal, int]] = {}
        """Latest refusals with the time of each."""

    def __len__(self) -> int:
        return len(self._latest)

    def take(self, refusal: Refusal) -> None:
        now_ns = self._clock.now_ns()
        self._count(refusal.reason, refusal.tenant)
        self._lines.write(refusal, now_ns, names_tenant=self._core.policy.logging.tenant)
        if refusal.request_id is not None:
            self._latest.pop(refusal.request_id, None)
            self._latest[refusal.request_id] = refusal, now_ns
            if len(self._latest) > REMEMBERED_MAX:
                del self._latest[next(iter(self._latest))]

    def latest(self, count: int) -> list[Latest]:
        """Latest refused requests, newest first."""
        found = [(self._latest[each][1], self.explain(each)) for each in islice(reversed(self._latest), count)]
        return [Latest(at_ns, each, [DecisionMark.REFUSED]) for at_ns, each in found if each is not None]

    def explain(self, wanted: str) -> ExplainedRequest | None:
        """Explanation of a refused request; None if it was not refused, or is forgotten."""
        found = self._latest.get(RequestId(wanted))
        if found is None:
            return None
        refusal, at_ns = found
        return ExplainedRequest(
            gateway=self._gateway_id,
            region=self._place.region,
            jurisdiction=self._place.jurisdiction,
            request_id=wanted,
            model="",
            origin="",
            age_ms=(self._clock.now_ns() - at_ns) / _MILLISECOND_NS,
            refusals=(ExplainedRefusal(refusal.reason, refusal.message.rstrip(".")),),
            outcome=REFUSED,
            detail=f"{refusal.status} {refusal.reason}",
        )


class _Lines:
    """Log lines: at most one per reason and second, with the number of refusals that it stands for."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._due_ns: dict[str, int] = {}
        self._unlogged: dict[str, int] = {}

    def write(self, refusal: Refusal, now_ns: int, *, names_tenant: bool) -> None:
        reason = refusal.reason
        count = self._unlogged.get(reason, 0) + 1
        due_ns = self._due_ns.get(reason)
        if due_ns is not None and now_ns < due_ns:
            self._unlogged[reason] = count
            return
        self._due_ns[reason], self._unlogged[reason] = now_ns + _LINE_EVERY_NS, 0
        fields: dict[str, object | None] = {
            "reason": reason,
            "status": refusal.status,
            "request_id": refusal.request_id,
            "tenant": refusal.tenant if names_tenant else None,
            "key": refusal.key_id if names_tenant else None,
            "count": count,
        }
        line = {name: told for name, told in fields.items() if told is not None}
        if refusal.status >= 500:
            self._log.warning("refused", **line)
        else:
            self._log.info("refused", **line)

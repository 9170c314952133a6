"""The lasting record of where each request ran, under which policy, and which regions saw its plaintext. No content.

One line per finished request at each gateway that had it. What cannot be written is held, then counted as lost, loudly;
whether requests are served meanwhile is for the region file to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from gateway.config.sections import AuditConfig, AuditSync
from gateway.core.effects import Effect, EndRequest, RefuseForward, StartLeg
from gateway.core.events import (
    AssignmentApplied,
    Event,
    ForwardArrived,
    LegEnded,
    PolicyApplied,
    RequestArrived,
)
from gateway.core.residency import ResidencyPolicy, closed_policy, may_accept, may_enter, may_process
from gateway.core.vocabulary import (
    GatewayId,
    Hops,
    Outcome,
    Place,
    PlaceRule,
    RefusalReason,
    RequestId,
    RequestProfile,
    Target,
    TenantName,
    peer_target,
    replica_target,
)
from gateway.ground.clock import Clock
from gateway.ground.threads import finish_in_thread
from gateway.records.audit_files import ChainedFiles, ChainSettings
from gateway.request.legs import RanAt, RequestSummary

UNAVAILABLE = "the audit record cannot be written"
REFUSED_PREFIX = "refused_"
"""Begins the outcome of a forward that was turned away: its reason follows."""

_UNKNOWN_MODEL = frozenset({Outcome.REJECTED_UNKNOWN_MODEL, f"{REFUSED_PREFIX}{RefusalReason.UNKNOWN_MODEL}"})
_SECOND_NS = 1_000_000_000


class AuditPlace(msgspec.Struct, frozen=True):
    region: str
    jurisdiction: str


class AuditAttempt(msgspec.Struct, frozen=True):
    """A target that was sent the request, or may have been, whatever became of it."""

    target: str
    region: str
    jurisdiction: str
    policy: str
    """Digest of the origin's policy at that moment."""
    rule: str
    """Why it allowed the target, in short words."""
    result: str


class AuditProcessed(msgspec.Struct, frozen=True):
    """Where the answer came from."""

    replica: str
    region: str
    jurisdiction: str


class AuditLine(msgspec.Struct, frozen=True, tag="request", tag_field="kind", omit_defaults=True):
    """One request as one gateway saw it."""

    time: str
    gateway: str
    region: str
    jurisdiction: str
    request: str
    origin: AuditPlace
    """Where a client handed it in."""
    policy: str
    """Digest of this region's own policy when it arrived."""
    rule: str
    """Why that policy let it in, or did not."""
    outcome: str
    origin_gateway: str = ""
    """The gateway that forwarded it here; empty for a client's request."""
    hops_in_region: int = 0
    hops_cross_region: int = 0
    tenant: str | None = None
    """Only if the policy lets logs name it."""
    model: str = ""
    """Empty where nobody knows such a model: then it is only what a client wrote."""
    attempts: tuple[AuditAttempt, ...] = ()
    processed: AuditProcessed | None = None


class LostLines(msgspec.Struct, frozen=True, tag="lost", tag_field="kind"):
    """Stands where lines are missing that could be neither written nor held."""

    time: str
    gateway: str
    lines: int


AuditRecord = AuditLine | LostLines


@dataclass(slots=True)
class _Trail:
    """One request until it is finished."""

    tenant: TenantName
    origin: Place
    origin_gateway_id: GatewayId | None
    hops: Hops
    policy: ResidencyPolicy
    """Ours, when it arrived."""
    rule: str
    sent_under: ResidencyPolicy | None = None
    """For a forward: the origin's policy as far as its stamp tells. None: ours of the moment."""
    narrowed: bool = False
    """The client's key allows less than the policy."""
    attempts: dict[int, AuditAttempt] = field(default_factory=dict)


class Audit:
    """An observer of the driver, and told of each finished request. `run` does the writing, in a thread."""

    def __init__(
        self, config: AuditConfig, gateway_id: GatewayId, place: Place, clock: Clock, log: FilteringBoundLogger
    ) -> None:
        """Raises OSError when the folder cannot be written: that is better known at the start."""
        assert config.folder is not None, "the audit is off without a folder"
        self.is_failing = False
        self.lines_lost = 0
        self.lines = 0
        self._config = config
        self._gateway_id = gateway_id
        self._place = place
        self._clock = clock
        self._log = log
        self._policy = closed_policy(place, "no policy applied yet")
        self._places: dict[Target, Place] = {}
        self._trails: dict[int, _Trail] = {}
        """By identity of the profile: an id can come again while the last answer to it is still on its way out."""
        self._running: dict[RequestId, _Trail] = {}
        self._fresh: list[bytes] = []
        self._fresh_bytes = 0
        self._lost_untold = 0
        self._is_over = asyncio.Event()
        settings = ChainSettings(
            config.folder, config.file_max_bytes, config.files_max, syncs=config.sync is not AuditSync.NONE
        )
        self._files = ChainedFiles(
            settings, gateway_id, place, wall_time=clock.wall_time, on_deleted=self._say_what_was_deleted
        )

    @property
    def unwritten_bytes(self) -> int:
        return self._fresh_bytes + self._files.unwritten_bytes

    @property
    def refusal(self) -> str:
        """Why nothing new may be taken; empty when it may."""
        return UNAVAILABLE if self.is_failing and self._config.required else ""

    # What it sees

    def on_step(self, _: int, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, RequestArrived):
            self._client_came(event)
        elif isinstance(event, ForwardArrived):
            self._forward_came(event, effects)
        elif isinstance(event, LegEnded):
            self._attempt_ended(event)
        elif isinstance(event, PolicyApplied):
            self._policy = event.policy
        elif isinstance(event, AssignmentApplied):
            self._places = {replica_target(each.replica_id): each.place for each in event.replicas}
            self._places |= {peer_target(each.gateway_id): each.place for each in event.peers}
        for effect in effects:
            if isinstance(effect, StartLeg):
                self._attempt_started(effect)

    def on_finished(self, profile: RequestProfile, end: EndRequest, summary: RequestSummary) -> None:
        """Called once by each request's owner. What came after a crash of the core went nowhere, and has no trail."""
        trail = self._trails.pop(id(profile), None)
        if trail is None:
            return
        if self._running.get(profile.request_id) is trail:
            del self._running[profile.request_id]
        self._keep(self._line(profile, trail, end.outcome, summary.ran_at))

    def _client_came(self, event: RequestArrived) -> None:
        tenant = event.profile.tenant
        rule = may_enter(self._policy, tenant, event.profile.process).why
        narrowed = event.profile.process is not None
        self._follow(event.profile, _Trail(tenant, self._place, None, Hops(), self._policy, rule, narrowed=narrowed))

    def _forward_came(self, event: ForwardArrived, effects: list[Effect]) -> None:
        """One that is refused was seen here too, and is finished at once."""
        stamp = event.stamp
        sent_under = ResidencyPolicy(stamp.origin, stamp.rule, PlaceRule(), digest=stamp.policy_digest)
        rule = may_accept(self._policy, stamp.origin).why
        trail = _Trail(stamp.tenant, stamp.origin, event.origin_gateway_id, event.hops, self._policy, rule, sent_under)
        refusal = next((each for each in effects if isinstance(each, RefuseForward)), None)
        if refusal is None:
            self._follow(event.profile, trail)
        else:
            self._keep(self._line(event.profile, trail, f"{REFUSED_PREFIX}{refusal.reason}", None))

    def _follow(self, profile: RequestProfile, trail: _Trail) -> None:
        self._trails[id(profile)] = trail
        self._running[profile.request_id] = trail

    def _attempt_started(self, order: StartLeg) -> None:
        trail = self._running.get(order.request_id)
        place = self._places.get(order.target)
        if trail is None or place is None:
            return
        policy = trail.sent_under or self._policy
        why = may_process(policy, trail.tenant, place).why
        trail.attempts[order.attempt] = AuditAttempt(
            target=str(order.target),
            region=place.region,
            jurisdiction=place.jurisdiction,
            policy=policy.digest,
            rule=f"{why}, and the key's rule allows it" if trail.narrowed else why,
            result="open",
        )

    def _attempt_ended(self, event: LegEnded) -> None:
        trail = self._running.get(event.request_id)
        attempt = None if trail is None else trail.attempts.get(event.attempt)
        if trail is not None and attempt is not None:
            trail.attempts[event.attempt] = msgspec.structs.replace(attempt, result=str(event.result))

    def _line(self, profile: RequestProfile, trail: _Trail, outcome: str, ran_at: RanAt | None) -> AuditLine:
        return AuditLine(
            time=self._clock.wall_time(),
            gateway=self._gateway_id,
            region=self._place.region,
            jurisdiction=self._place.jurisdiction,
            request=profile.request_id,
            origin=AuditPlace(trail.origin.region, trail.origin.jurisdiction),
            policy=trail.policy.digest,
            rule=trail.rule,
            outcome=str(outcome),
            origin_gateway=trail.origin_gateway_id or "",
            hops_in_region=trail.hops.in_region,
            hops_cross_region=trail.hops.cross_region,
            tenant=profile.tenant if trail.policy.logging.tenant else None,
            model="" if outcome in _UNKNOWN_MODEL else profile.model,
            attempts=tuple(trail.attempts.values()),
            processed=None if ran_at is None else _processed(ran_at),
        )

    # Writing

    async def run(self) -> None:
        """Write what has gathered, again and again, until cancelled; call `close` afterwards."""
        while True:
            if self._config.sync is AuditSync.LINE and not self.is_failing:
                await self._is_over.wait()
            else:
                await asyncio.sleep(self._config.flush_interval_ns / _SECOND_NS)
            await self.flush()

    async def flush(self) -> None:
        lines = self._take()
        try:
            await finish_in_thread(self._files.write, lines)
        except OSError as error:
            self._failed(str(error))
        except asyncio.CancelledError as cancelled:
            if cancelled.__cause__ is not None:
                self._failed(str(cancelled.__cause__))
            raise
        else:
            self._succeeded()

    def close(self) -> None:
        """Write what is left, and how much was lost until now. What cannot be written any more is lost as well."""
        try:
            self._files.write(self._take())
            self._succeeded()
            self._files.write(self._take())
        except OSError as error:
            self._failed(str(error))
        if self._files.unwritten_bytes:
            self._log.critical("audit lines were lost at the end", bytes=self._files.unwritten_bytes)
        self._files.close()

    def _keep(self, record: AuditRecord) -> None:
        line = msgspec.json.encode(record)
        if self.unwritten_bytes + len(line) > self._config.unwritten_max_bytes:
            self.lines_lost += 1
            self._lost_untold += 1
            self._failed("more lines wait to be written than may be held")
            return
        self.lines += 1
        self._fresh.append(line)
        self._fresh_bytes += len(line)
        self._is_over.set()

    def _take(self) -> list[bytes]:
        self._is_over.clear()
        lines, self._fresh, self._fresh_bytes = self._fresh, [], 0
        return lines

    def _failed(self, reason: str) -> None:
        if not self.is_failing:
            self.is_failing = True
            doing = "no new request is taken" if self._config.required else "requests are served without it"
            self._log.critical("the audit record cannot be written", reason=reason, doing=doing)

    def _succeeded(self) -> None:
        if self.is_failing:
            self.is_failing = False
            self._log.warning("the audit record is written again", lines_lost=self._lost_untold)
        if self._lost_untold:
            lost, self._lost_untold = self._lost_untold, 0
            self._keep(LostLines(self._clock.wall_time(), self._gateway_id, lost))

    def _say_what_was_deleted(self, path: object) -> None:
        self._log.warning("the oldest audit file was deleted, as audit.files_max says", path=str(path))


class AuditLevels(Collector):
    """The audit's own metrics, asked for at each scrape."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        audit = self._audit
        yield GaugeMetricFamily(
            "nightside_audit_failing", "1 while the audit record cannot be written.", value=audit.is_failing
        )
        yield GaugeMetricFamily(
            "nightside_audit_unwritten_bytes", "Audit lines not yet in a file.", value=audit.unwritten_bytes
        )
        yield CounterMetricFamily("nightside_audit_lines", "Audit lines taken on.", value=audit.lines)
        yield CounterMetricFamily(
            "nightside_audit_lines_lost", "Audit lines that could be neither written nor held.", value=audit.lines_lost
        )


def _processed(ran_at: RanAt) -> AuditProcessed:
    return AuditProcessed(ran_at.replica_id, ran_at.place.region, ran_at.place.jurisdiction)

"""Audit log: the lasting record of where each request ran, under which policy, and which regions saw its plaintext. It
holds no content.

Each gateway that had a request writes one line when it is finished. Lines that cannot be written are held, and beyond a
bound counted as lost, with a critical log line; the region file says whether requests are served meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, takewhile
from pathlib import Path

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from gateway.config.sections import AuditConfig, AuditSync
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.requests import LegState, RequestRecord
from gateway.core.kernel.residency import may_accept, may_enter
from gateway.core.vocabulary import GatewayId, Place, RequestId, RequestProfile
from gateway.records.audit_files import ChainedFiles, ChainSettings
from gateway.records.audit_heads import Head, HeadSigner
from gateway.records.finished import ServesModel, names_served_model, rule_applied
from gateway.request.legs import RanAt, RequestSummary
from gateway.request.usage import tokens_used
from mesh.clock import Clock
from mesh.threads import finish_in_thread

UNAVAILABLE = "the audit record cannot be written"
REFUSED_PREFIX = "refused_"
"""Prefix of the outcome of a refused forward; its reason follows."""

_TOLD_AT_ONCE_MAX = 1000
"""Maximum of lines in one message to another process."""
_TOLD_AT_ONCE_BYTES = 4 << 20
"""Maximum of the bytes of these lines together; a message takes at least one line, however long. Quoting adds less than
twice this."""
_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000


class AuditPlace(msgspec.Struct, frozen=True):
    region: str
    jurisdiction: str


class AuditAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """Target that the request was sent to, or may have been, whatever the result."""

    target: str
    region: str
    jurisdiction: str
    policy: str
    """Digest of the origin's policy at that moment."""
    rule: str
    """Reason why the policy allowed the target, in a few words."""
    result: str
    leg: int | None = None
    """Number of the leg, from 1 in each attempt; only where the attempt has several."""
    resume: int | None = None
    """Number of the resume, from 1; only where the leg continues a broken answer, whose earlier part its engine saw."""
    place_by: str = ""
    """Source of the stated place: this gateway's region file, a controller, or the gateway that announced the replica.
    The operators' table confirms each of them."""
    ran_ms: int | None = None
    """Milliseconds from the start of the leg to its end; unset while it runs, and in lines of gateways that do not
    record it."""


class AuditProcessed(msgspec.Struct, frozen=True):
    """Replica and place that the answer came from."""

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
    """Place at which a client sent it."""
    policy: str
    """Digest of this region's own policy when it arrived."""
    rule: str
    """Reason why that policy admitted it, or did not."""
    outcome: str
    origin_gateway: str = ""
    """The gateway that forwarded it here; empty for a client's request."""
    hops_in_region: int = 0
    hops_cross_region: int = 0
    tenant: str | None = None
    """Set only if the policy lets logs name the tenant."""
    model: str = ""
    """Empty for a model that no gateway serves, which is only text that a client wrote."""
    attempts: tuple[AuditAttempt, ...] = ()
    processed: AuditProcessed | None = None
    prompt_bytes: int = 0
    """Bytes of the request as it was sent to the target that answered."""
    prompt_tokens: int | None = None
    """Tokens as the engine counted them, or as the gateway estimated where it did not; unset where no answer was
    generated."""
    output_tokens: int | None = None
    streamed: bool = False


class LostAuditLines(msgspec.Struct, frozen=True, tag="lost", tag_field="kind"):
    """Marker in place of lines that could be neither written nor held."""

    time: str
    gateway: str
    lines: int


class ForbiddenPlace(msgspec.Struct, frozen=True, tag="violation", tag_field="kind"):
    """Answer of a peer that says it ran in a place where the request must not run; the request's own line follows."""

    time: str
    gateway: str
    request: str
    peer: str
    processed: AuditProcessed
    """Replica and place as the peer states them."""


AuditRecord = AuditLine | ForbiddenPlace | LostAuditLines


class Audit:
    """Consumer of finished requests and refused forwards. `run` writes the lines in a thread."""

    def __init__(
        self,
        config: AuditConfig,
        gateway_id: GatewayId,
        place: Place,
        *,
        serves: ServesModel,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        """Raises ConfigError when the signing key cannot be used, so that the gateway does not start."""
        assert config.folder is not None, "the audit is off without a folder"
        self.is_failing = False
        self.fault = ""
        """Reason why the log cannot be written, while that is so."""
        self.lines_lost = 0
        self.lines = 0
        self._config = config
        self._gateway_id = gateway_id
        self._place = place
        self._serves = serves
        self._clock = clock
        self._log = log
        self._fresh: list[bytes] = []
        self._fresh_bytes = 0
        self._lost_untold = 0
        self._is_over = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        """Lock of flushes and the release: the chain ends after the last flush, and lines keep their order."""
        self._head_due_ns = 0
        self._settings = ChainSettings(
            config.folder, config.file_max_bytes, config.files_max, syncs=config.sync is not AuditSync.NONE
        )
        self._signer = head_signer(config)
        self._files: ChainedFiles | None = None
        """Unset while the chain does not belong to this process."""
        self._tell: Callable[[list[bytes]], None] | None = None
        """Sender of lines to the process that owns the chain."""
        self._has_ended: Callable[[], bool] = lambda: False
        """Predicate: that process has ended."""
        self._is_owner = False
        """True if the chain is to belong to this process, even if it could not be begun yet."""

    def begin(self) -> None:
        """Continue the chain. Raises OSError when the folder cannot be written. A full disk counts as a log that cannot
        be written yet."""
        self._tell, self._is_owner = None, True
        self._files = ChainedFiles(
            self._settings,
            self._gateway_id,
            self._place,
            wall_time=self._clock.wall_time,
            on_deleted=self._say_what_was_deleted,
            signer=self._signer,
        )
        if self._files.fault:
            self._failed(self._files.fault)

    @property
    def folder(self) -> Path:
        return self._settings.folder

    @property
    def is_released(self) -> bool:
        """True if the chain belongs to another process or is not begun."""
        return self._files is None

    @property
    def unwritten_bytes(self) -> int:
        return self._fresh_bytes + (0 if self._files is None else self._files.unwritten_bytes)

    # Hand-over to another process

    async def release(self) -> None:
        """Write all lines and end the chain, so that another process can continue it. Further lines are held until
        `tell` or `take_back` is called. It may be called again after `take_back`."""
        async with self._one_at_a_time:
            await self._flush()
            files, self._files, self._is_owner = self._files, None, False
            if files is not None:
                self._hold(files.left())
                self._say_where_it_stands(await finish_in_thread(files.close))

    def take_back(self) -> None:
        """Continue the chain after `release`, when the other process is gone. If the folder cannot be written, the
        failure is logged, and each flush tries again."""
        if self._files is not None:
            return
        try:
            self.begin()
        except OSError as error:
            self._failed(str(error))

    def tell(self, tell: Callable[[list[bytes]], None], has_ended: Callable[[], bool]) -> None:
        """Send lines to the process that owns the chain, after `release`. Where `tell` raises OSError, lines are held,
        and the chain is taken back only once that process has ended."""
        self._tell, self._has_ended = tell, has_ended

    def take_over(self, lines: list[bytes]) -> None:
        """Take the lines of requests that ended in the predecessor process."""
        self.lines += len(lines)
        self._hold(lines)
        self._is_over.set()

    def _hold(self, lines: list[bytes]) -> None:
        self._fresh.extend(lines)
        self._fresh_bytes += sum(map(len, lines))

    async def _flush_elsewhere(self) -> None:
        while self._tell is not None and self._fresh:
            lines = self._take_some()
            try:
                await finish_in_thread(self._tell, lines)
            except OSError as error:
                self._not_told(lines, error)
                return
            except asyncio.CancelledError as cancelled:
                if isinstance(cancelled.__cause__, OSError):
                    self._not_told(lines, cancelled.__cause__)
                raise
            self._succeeded()

    def _tell_the_last(self) -> None:
        while self._tell is not None and self._fresh:
            lines = self._take_some()
            try:
                self._tell(lines)
            except OSError as error:
                self._not_told(lines, error)
                return

    def _take_some(self) -> list[bytes]:
        lines = self._take()
        count = _count_within(lines, _TOLD_AT_ONCE_BYTES)
        self._hold(lines[count:])
        return lines[:count]

    def _not_told(self, lines: list[bytes], error: OSError) -> None:
        """Hold lines that were not sent. Two writing processes would fork the chain, so it is taken back only from a
        process that has ended."""
        later = self._take()
        self._hold([*lines, *later])
        if self._has_ended():
            self.take_back()
        else:
            self._failed(str(error))

    @property
    def refusal(self) -> str:
        """Reason why new requests are refused; empty while they are not."""
        return UNAVAILABLE if self.is_failing and self._config.required else ""

    # Requests

    def on_refused(self, profile: RequestProfile, record: RequestRecord) -> None:
        """Write the line of a forward that was refused: this gateway saw it too, and it ends at once."""
        if record.refusal is not None:
            self._keep(self._line(profile, record, f"{REFUSED_PREFIX}{record.refusal.reason}", None))

    def on_finished(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Write the line of a finished request. A request without a record came after a crash of the core, and was sent
        nowhere."""
        if record is not None:
            self._keep(self._line(profile, record, end.outcome, summary))

    def on_violation(self, peer: GatewayId, request_id: RequestId, ran_at: RanAt) -> None:
        """Write a line about the violation, however the request ends."""
        self._keep(ForbiddenPlace(self._clock.wall_time(), self._gateway_id, request_id, peer, _processed(ran_at)))

    def _line(
        self, profile: RequestProfile, record: RequestRecord, outcome: str, summary: RequestSummary | None
    ) -> AuditLine:
        policy, origin = record.policy, record.origin
        ran_at = None if summary is None else summary.ran_at
        used = None if summary is None or ran_at is None else tokens_used(profile, summary)
        if origin is None:
            place, rule = self._place, may_enter(policy, profile.tenant, profile.process).why
        else:
            place, rule = origin.place, may_accept(policy, origin.place).why
        return AuditLine(
            time=self._clock.wall_time(),
            gateway=self._gateway_id,
            region=self._place.region,
            jurisdiction=self._place.jurisdiction,
            request=profile.request_id,
            origin=AuditPlace(place.region, place.jurisdiction),
            policy=policy.digest,
            rule=rule,
            outcome=str(outcome),
            origin_gateway="" if origin is None else origin.gateway_id,
            hops_in_region=0 if origin is None else origin.hops.in_region,
            hops_cross_region=0 if origin is None else origin.hops.cross_region,
            tenant=profile.tenant if policy.logging.tenant else None,
            model=profile.model if names_served_model(profile, record, self._serves) else "",
            attempts=tuple([_attempt(profile, record, leg) for leg in record.legs]),
            processed=None if ran_at is None else _processed(ran_at),
            prompt_bytes=profile.bytes_to_send if used is not None else 0,
            prompt_tokens=None if used is None else used.prompt,
            output_tokens=None if used is None else used.output,
            streamed=summary is not None and summary.is_event_stream,
        )

    # Writing

    async def run(self) -> None:
        """Write the held lines periodically until cancelled; call `close` afterwards."""
        while True:
            if self._config.sync is AuditSync.LINE and not self.is_failing:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._config.head_interval_ns / _SECOND_NS):
                        await self._is_over.wait()
            else:
                await asyncio.sleep(self._config.flush_interval_ns / _SECOND_NS)
            await self.flush()

    async def flush(self) -> None:
        async with self._one_at_a_time:
            await self._flush()

    async def _flush(self) -> None:
        if self._files is None and self._is_owner:
            self.take_back()
        files = self._files
        if files is None:
            await self._flush_elsewhere()
            return
        lines = self._take()
        try:
            self._say_where_it_stands(await finish_in_thread(self._write, files, lines))
        except OSError as error:
            self._failed(str(error))
        except asyncio.CancelledError as cancelled:
            if cancelled.__cause__ is not None:
                self._failed(str(cancelled.__cause__))
            raise
        else:
            self._succeeded()

    def _write(self, files: ChainedFiles, lines: list[bytes]) -> Head | None:
        files.write(lines)
        now_ns = self._clock.now_ns()
        if now_ns < self._head_due_ns:
            return None
        head = files.seal()
        if head is not None:
            self._head_due_ns = now_ns + self._config.head_interval_ns
        return head

    def _say_where_it_stands(self, head: Head | None) -> None:
        """Log the head of the chain. Logs are kept elsewhere, so files can be checked against them for a cut-off
        end."""
        if head is not None:
            self._log.info("audit_head_sealed", file=head.file, line=head.line, head=head.head)

    def close(self) -> None:
        """Write the remaining lines and the number of lost ones, and end the chain. Lines that cannot be written are
        lost."""
        if self._files is None:
            self._tell_the_last()
        if self._files is None and self._is_owner:
            self.take_back()
        if self._files is None:
            if self._fresh:
                self._log.critical("audit_lines_lost", bytes=self._fresh_bytes)
            return
        try:
            self._files.write(self._take())
            self._succeeded()
            self._files.write(self._take())
        except OSError as error:
            self._failed(str(error))
        if self._files.unwritten_bytes:
            self._log.critical("audit_lines_lost", bytes=self._files.unwritten_bytes)
        self._say_where_it_stands(self._files.close())

    def _keep(self, record: AuditRecord) -> None:
        line = msgspec.json.encode(record)
        if self.unwritten_bytes + len(line) > self._config.unwritten_max_bytes:
            self._lose("more lines wait to be written than may be held")
            return
        self.lines += 1
        self._fresh.append(line)
        self._fresh_bytes += len(line)
        self._is_over.set()

    def _lose(self, reason: str) -> None:
        self.lines_lost += 1
        self._lost_untold += 1
        self._failed(reason)

    def _take(self) -> list[bytes]:
        self._is_over.clear()
        lines, self._fresh, self._fresh_bytes = self._fresh, [], 0
        return lines

    def _failed(self, reason: str) -> None:
        if not self.is_failing:
            self.is_failing, self.fault = True, reason
            self._log.critical("audit_write_failed", reason=reason, audit_required=self._config.required)

    def _succeeded(self) -> None:
        if self.is_failing:
            self.is_failing, self.fault = False, ""
            self._log.warning("audit_write_recovered", lines_lost=self._lost_untold)
        if self._lost_untold:
            lost, self._lost_untold = self._lost_untold, 0
            self._keep(LostAuditLines(self._clock.wall_time(), self._gateway_id, lost))

    def _say_what_was_deleted(self, path: object) -> None:
        self._log.warning("audit_file_deleted", path=str(path))


def head_signer(config: AuditConfig) -> HeadSigner | None:
    """Signer of the configured key; None without one. Raises ConfigError."""
    if config.signing_key is None:
        return None
    return HeadSigner.read(config.signing_key, config.head_interval_ns / _SECOND_NS)


class AuditLevels(Collector):
    """Metrics of the audit log, read at each scrape. Without an audit log the series appear without values."""

    def __init__(self, audit: Audit | None) -> None:
        self._audit = audit

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        audit = self._audit
        failing = GaugeMetricFamily("nightside_audit_failing", "1 while the audit log cannot be written.", labels=())
        unwritten = GaugeMetricFamily(
            "nightside_audit_unwritten_bytes", "Size of audit lines in memory that are not yet written.", labels=()
        )
        lines = CounterMetricFamily("nightside_audit_lines", "Audit lines accepted for writing.", labels=())
        lost = CounterMetricFamily(
            "nightside_audit_lines_lost",
            "Audit lines lost because the disk failed and the memory for unwritten lines was full.",
            labels=(),
        )
        if audit is not None:
            failing.add_metric((), audit.is_failing)
            unwritten.add_metric((), audit.unwritten_bytes)
            lines.add_metric((), audit.lines)
            lost.add_metric((), audit.lines_lost)
        yield from (failing, unwritten, lines, lost)


def _count_within(lines: list[bytes], bytes_max: int) -> int:
    sizes = accumulate(map(len, lines[:_TOLD_AT_ONCE_MAX]))
    return max(1, sum(1 for _ in takewhile(lambda size: size <= bytes_max, sizes)))


def _attempt(profile: RequestProfile, record: RequestRecord, leg: LegState) -> AuditAttempt:
    policy, why = rule_applied(profile, record, leg)
    place, result = leg.place, leg.result
    return AuditAttempt(
        target=str(leg.target),
        region=place.region,
        jurisdiction=place.jurisdiction,
        policy=policy.digest,
        rule=why,
        result="open" if result is None else str(result),
        leg=record.number_of(leg),
        resume=leg.segment or None,
        place_by=leg.spec.place_by,
        ran_ms=None if leg.ended_ns is None else (leg.ended_ns - leg.started_ns) // _MILLISECOND_NS,
    )


def _processed(ran_at: RanAt) -> AuditProcessed:
    return AuditProcessed(ran_at.replica_id, ran_at.place.region, ran_at.place.jurisdiction)

"""Core of one gateway with its observers: metrics, logs, decisions, audit, journal."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from structlog.typing import FilteringBoundLogger

from gateway.app.readiness import Readiness, engines_note
from gateway.app.reload import PolicyPart
from gateway.config.orders import Orders
from gateway.config.placement_plug_ins import find_policy
from gateway.config.sections import GatewayConfig
from gateway.config.targets import ReplicaConfig
from gateway.core.events import ConfigApplied, Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.description import describe, gauges_of, sharing_of
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.events import AssignmentApplied, PolicyApplied, TokensSettled
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import GatewayId, ModelName, PlaceRule, RequestId, RequestProfile, TenantName
from gateway.features.catalogue import extensions_of
from gateway.peers.load_publisher import LoadPublisher
from gateway.peers.trust import Tell, Trust
from gateway.records.audit import Audit, AuditLevels
from gateway.records.decisions import DecisionLog, ExplainedRequest
from gateway.records.finished import FinishedRequests, ServesModel
from gateway.records.forward_rates import ForwardRates
from gateway.records.journal import GatewayJournal, GatewayJournalHeader, new_header
from gateway.records.logs import RequestLog
from gateway.records.metrics import GatewayMetrics
from gateway.records.refusals import Refusals
from gateway.records.replica_log import ReplicaLog
from gateway.request.driver import Driver, GatewayCrash, GatewayObserver
from gateway.request.legs import RequestSummary
from gateway.request.usage import tokens_used
from mesh.clock import Clock
from mesh.descriptors import DescriptorWatch
from mesh.journal import JournalSettings
from mesh.journal_lines import write_tail
from mesh.line_writer import LostLines

_SECOND_NS = 1_000_000_000
_LOOP_CHECK_NS = 100_000_000
_PLACES_TOLD_MAX = 8
LAST_BYTES_S = 2.0
"""Seconds for which an answer may still be sent after the last request has ended."""

DRAINED = "drained at the controller: clients and replicas go to other gateways"


class ObservedCore:
    """Core of one gateway with its observers."""

    is_drained = False
    """An operator drained this gateway at the controller."""
    is_ending = False
    """The process drains before it exits; this drain cannot be lifted."""
    is_given_away = False
    """Another process takes over or has taken over: operators' orders are for that process."""

    def __init__(
        self,
        config: GatewayConfig,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        lines_lost: Callable[[], int] = lambda: 0,
    ) -> None:
        """`lines_lost` is the number of log lines that were dropped so far. Raises OSError when the journal cannot be
        written, and ConfigError when a feature's file cannot be read."""
        self.clock = clock
        self.log = log
        self.board = LoadPublisher()
        seed = secrets.randbits(63) if config.seed is None else config.seed
        self.core = GatewayCore(config.gateway_id, config.place, seed=seed, plug_ins=find_policy)
        self.finished = FinishedRequests()
        requests: dict[RequestId, RequestRecord] = {}
        self.metrics = GatewayMetrics(lambda: gauges_of(self.core, clock.now_ns()), self.core, requests)
        self.features = extensions_of(config, self)
        self.forward_rates = ForwardRates(self.metrics.forwards_so_far, clock.now_ns())
        self._journal_fault = ""
        self._journal = _journal(config, _journal_header(config, clock, seed), self._journal_stopped)
        self.decisions = DecisionLog(
            config.gateway_id, config.place, config.decisions, self.core, log, requests=requests
        )
        self.refusals = Refusals(
            config.gateway_id, config.place, self.core, count=self.metrics.refused, clock=clock, log=log
        )
        self.audit = _audit(config, clock, log, self.serves)
        self._descriptors = DescriptorWatch(clock, log, self.metrics.descriptors_exhausted)
        self._lost_lines = LostLines(lines_lost, self.metrics.log_lines_lost, clock, log)
        self._misplaced: Mapping[str, str] = {}
        self._misplaced_found: Mapping[str, str] = {}
        self._idle = asyncio.Event()
        counted = self.metrics
        for taker in (
            RequestLog(log, config.gateway_id, self.core, self.serves).on_finished,
            counted.on_finished,
            counted.usage.on_finished,
            self.decisions.on_finished,
        ):
            self.finished.hand_to(taker)
        if self.audit is not None:
            self.finished.hand_to(self.audit.on_finished)
        self._readiness = Readiness(self.core, config.readiness.unserved_max_ns, clock.now_ns())
        replica_log = ReplicaLog(self.core.replicas, log)
        observers: list[GatewayObserver] = [self.metrics, self.decisions, replica_log]
        self._show_levels()
        if self._journal is not None:
            observers.append(self._journal)
        self.driver = Driver(self.core, clock, observers=observers, on_crash=self._on_crash, requests=requests)
        self.driver.on_publish(lambda report: self.board.post(report, clock.now_ns()))
        self.policy = PolicyPart(
            config.policy_file, config.place, lambda policy: self.driver.submit(PolicyApplied(policy)), log
        )
        alarms: list[Tell] = [self.metrics.residency_broken, *([] if self.audit is None else [self.audit.on_violation])]
        self.trust = Trust(self.driver.submit, log, *alarms)

    def place(self, orders: Orders) -> None:
        """Log each refused place once per reason."""
        for name, why in orders.misplaced.items():
            if self._misplaced.get(name) != why:
                self.log.error("place_refused", target=name, reason=why)
        self._misplaced = orders.misplaced

    def place_found(self, misplaced: Mapping[str, str]) -> None:
        """Log replicas that a cluster reports out of place: one line per change, for any number of them."""
        if fresh := [name for name in misplaced if name not in self._misplaced_found]:
            self.log.error("place_refused", target=fresh[0], reason=misplaced[fresh[0]], further=len(fresh) - 1)
        self._misplaced_found = misplaced

    def follow(self, replicas: Sequence[ReplicaConfig]) -> None:
        """Tell features of the replicas that this gateway serves, before the core learns of them."""
        for each in self.features:
            each.follow(replicas)

    @property
    def _out_of_place(self) -> dict[str, str]:
        return {**self._misplaced, **self._misplaced_found}

    def submit(self, event: Event) -> None:
        """Submit an event to the core, and tell features of an assignment once the core has it."""
        self.driver.submit(event)
        if isinstance(event, AssignmentApplied):
            for each in self.features:
                each.assigned()

    def _show_levels(self) -> None:
        """Register the figures of the core and the audit log that are read at each scrape."""
        core, clock, registry = self.core, self.clock, self.metrics.registry
        registry.register(AuditLevels(self.audit))
        self.metrics.follow_readiness(lambda: not self.readiness())
        self.metrics.follow_places(lambda: len(self._out_of_place))
        self.metrics.follow_sharing(lambda: sharing_of(core, clock.now_ns()))

    @property
    def journal(self) -> GatewayJournal | None:
        return self._journal

    def apply(self, config: GatewayConfig, orders: Orders) -> None:
        """Configure the core before it learns of replicas and peers."""
        self.driver.submit(ConfigApplied(orders.core))
        self.is_drained = orders.is_drained
        self.apply_to_features(config, orders)
        self.policy.narrow(orders.narrowing)
        self.policy.start()
        self.restore_orders()

    def restore_orders(self) -> None:
        """Put operators' stored orders in force; a later call takes over what another process of this gateway stored
        meanwhile."""
        for each in self.features:
            each.restore()

    def apply_to_features(self, config: GatewayConfig, orders: Orders) -> None:
        for each in self.features:
            each.apply(config, orders)

    def models(self, tenant: TenantName, process: PlaceRule | None) -> Sequence[ModelName]:
        return self.core.models_for(tenant, process)

    def serves(self, model: ModelName) -> bool:
        return self.core.replicas.groups.serves(model) or self.core.peers.serves(model)

    def readiness(self) -> str:
        """Reason why the gateway wants no traffic; empty when it does. Engines count only where the region file says
        so."""
        if self.driver.crash is not None:
            return "this gateway met an error of its own and restarts"
        if self.core.draining:
            return "draining"
        if self.is_drained:
            return DRAINED
        return self.why_closed() or self._readiness.why_not(self.clock.now_ns())

    def why_closed(self) -> str:
        """Reason why new requests are refused although the core would take them; empty when they are not."""
        return "" if self.audit is None else self.audit.refusal

    def has_audit(self) -> bool:
        return not self.why_closed()

    def may_enter(self, tenant: TenantName, rule: PlaceRule | None) -> bool:
        """True if the policy in force lets the tenant's requests enter this region."""
        return self.core.may_enter(tenant, rule)

    def notes(self) -> dict[str, str]:
        """Warnings for operators while the gateway is ready."""
        notes = {"engines": engines_note(self.core)}
        for each in self.features:
            notes.update(each.notes())
        if self._out_of_place:
            notes["places_refused"] = _in_words(self._out_of_place)
        return {name: note for name, note in (notes | self.trust.notes()).items() if note}

    def metrics_page(self) -> bytes:
        self.driver.tell_observers()
        return self.metrics.render()

    def state(self) -> dict[str, object]:
        self.driver.tell_observers()
        state = {**describe(self.core, self.clock.now_ns()), **self.decisions.describe()}
        return {
            **state,
            "not_ready_reason": self.readiness(),
            "journal_fault": self._journal_fault,
            "audit_fault": "" if self.audit is None else self.audit.fault,
        }

    def explain_to(self, peer: GatewayId, request_id: RequestId) -> ExplainedRequest | None:
        self.driver.tell_observers()
        return self.decisions.explain_to(peer, request_id, self.clock.now_ns())

    def on_refused(self, profile: RequestProfile, record: RequestRecord) -> None:
        """Hand a refused forward to those that keep it. One that fails stops the gateway."""
        try:
            self.decisions.on_refused(profile, record)
            if self.audit is not None:
                self.audit.on_refused(profile, record)
        except Exception as error:  # noqa: BLE001 - any fault here stops this gateway
            self.driver.fail(error)

    def on_finished(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        """Hand a finished request to its consumers. A consumer that fails stops the gateway, since its records cannot
        be trusted afterwards."""
        try:
            self.finished.on_finished(profile, end, summary, record)
            if end.is_charged:
                self.driver.submit(TokensSettled(profile.request_id, tokens_used(profile, summary).total))
        except Exception as error:  # noqa: BLE001 - any fault here stops this gateway
            self.driver.fail(error)
        finally:
            if self.driver.open_requests == 0:
                self._idle.set()

    async def until_idle(self) -> None:
        while self.driver.open_requests > 0:
            self._idle.clear()
            await self._idle.wait()

    async def until_peers_are_told(self) -> None:
        """Wait until a heartbeat is posted that says that this gateway accepts no requests; the core owes it within its
        publish interval."""
        newest = self.board.newest
        while not self.board.closed and (newest is None or newest.report.accepting):
            newest = await self.board.newer_than(newest, wait_max_s=LAST_BYTES_S)

    async def watch_loop(self) -> None:
        """Measure the event loop's delay, which every request feels, and check if a request could be served and a file
        descriptor opened."""
        while True:
            asked_ns = self.clock.now_ns() + _LOOP_CHECK_NS
            await asyncio.sleep(_LOOP_CHECK_NS / _SECOND_NS)
            self.metrics.loop_delayed(self.clock.now_ns() - asked_ns)
            self._readiness.look(self.clock.now_ns())
            self._descriptors.look()
            self._lost_lines.look()
            self.forward_rates.look(self.clock.now_ns())

    def loop_failed(self, name: str, error: Exception) -> None:
        self.log.error("background_task_failed", loop=name, exc_info=error)
        self.metrics.restarted(name)

    def handler_failed(self, error: BaseException) -> None:
        self.log.error("http_handler_failed", exc_info=error)

    def request_failed(self, error: BaseException) -> None:
        self.log.error("request_internal_error", exc_info=error)

    def close(self) -> None:
        self.driver.close()
        if self._journal is not None:
            self._journal.close()
        if self.audit is not None:
            self.audit.close()

    def _on_crash(self, crash: GatewayCrash) -> None:
        self.log.critical("core_crashed", exc_info=crash.error)
        if self._journal is None:
            return
        last = crash.tail[-1]
        if last.effects is None:
            self._journal.on_crash(last.now_ns, last.event)
        self._keep_tail(self._journal, crash)

    def _keep_tail(self, journal: GatewayJournal, crash: GatewayCrash) -> None:
        """Write the steps before a crash. A disk that cannot take them must not keep the process from ending in
        order."""
        path = journal.folder / f"{journal.header.story}.crash"
        try:
            write_tail(path, journal.header, map(journal.told, crash.tail))
        except OSError as error:
            self.log.critical("crash_record_write_failed", path=str(path), reason=str(error))
        else:
            self.log.critical("crash_record_written", path=str(path))

    def _journal_stopped(self, reason: str) -> None:
        self.log.error("journal_stopped", reason=reason)
        self._journal_fault = reason
        self.metrics.journal_stopped()


def _in_words(misplaced: Mapping[str, str]) -> str:
    told = "; ".join(f"{name}: {why}" for name, why in islice(misplaced.items(), _PLACES_TOLD_MAX))
    more = len(misplaced) - _PLACES_TOLD_MAX
    return f"{told}; and {more} more" if more > 0 else told


def _journal_header(config: GatewayConfig, clock: Clock, seed: int) -> GatewayJournalHeader:
    started = "".join(character for character in clock.wall_time() if character.isalnum())
    story = f"{config.gateway_id}-{started}"
    return new_header(config.gateway_id, config.place, config.core.placement, seed=seed, story=story)


def _journal(
    config: GatewayConfig, header: GatewayJournalHeader, on_stopped: Callable[[str], None]
) -> GatewayJournal | None:
    if config.journal.folder is None:
        return None
    settings = JournalSettings(
        config.journal.folder, file_bytes_max=config.journal.file_max_bytes, files_max=config.journal.files_max
    )
    return GatewayJournal(settings, header, on_stopped=on_stopped)


def _audit(config: GatewayConfig, clock: Clock, log: FilteringBoundLogger, serves: ServesModel) -> Audit | None:
    if config.audit.folder is None:
        return None
    return Audit(config.audit, config.gateway_id, config.place, serves=serves, clock=clock, log=log)

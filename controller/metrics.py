"""Metrics of the controller for Prometheus: its events, decisions and snapshots. It decides nothing.

No label names a gateway or a replica: values that grow with the mesh are on the page of its state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from controller.core.effects import KeepOwners, TellCondition
from controller.core.vocabulary import Condition
from controller.driver import ControllerStep, ControllerSubscriptions
from controller.history_exchange import HistoryWatch
from controller.server import ServerWatch
from controller.state_manager import StateManager
from mesh.series import CounterSeries, Described, Distribution, Level, described

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "nightside_controller_"
_WAITS = (1, 2, 5, 10, 20, 60, 120, 300)
_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)

_READ_AT_SCRAPE = {
    "gateways_attached": "Gateways connected to this controller.",
    "replicas": "Registered replicas.",
    "replicas_away": "Replicas assigned to another gateway than their home gateway.",
    "replicas_orphaned": "Replicas without an eligible gateway.",
    "registry_faults": "Announced replicas that are not valid.",
    "places_refused": "Gateways refused because their region or jurisdiction contradicts the operators' table.",
    "frozen": "1 while automatic failover and reassignment are suspended.",
    "store_failing": "1 while writing to the store fails.",
    "documents_pending": "Documents that wait for a write to the store.",
    "term": "Term of the leading controller.",
    "version": "Version of the last write to the store.",
    "ready": "1 while the readiness check `/ready` succeeds.",
    "leading": "1 while this controller holds the lease and leads.",
    "lease_seconds": "Time until the lease ends; infinite for a store without leases.",
    "records_version": "Version of the record tree that is known to be published; 0: unknown.",
    "records_failing": "1 while publishing the newest records fails.",
}
"""Meaning of each level that is read at a scrape."""


class ControllerMetrics(ServerWatch, HistoryWatch):
    """An observer of the driver and of the gateways' streams."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._conditions = self._tally(
            "condition_changes_total", "Changes of gateways' conditions, by the new condition.", ("condition",)
        )
        self._moved = self._tally("replicas_moved_total", "Replicas reassigned to another gateway.")
        self._pushes = self._tally("snapshots_pushed_total", "Snapshots sent to gateways.")
        self._rejections = self._tally("snapshots_rejected_total", "Snapshots that a gateway rejected.")
        self._refused = self._tally(
            "streams_refused_total", "Gateway streams refused by the controller, by reason.", ("reason",)
        )
        self._histories = self._tally(
            "pool_histories_total",
            "Histories of disaggregated pools: `kept`, `refused`, `skipped` since they came too fast, `handed_over` to "
            "the pool's next gateway.",
            ("result",),
        )
        self._store_errors = self._tally("store_errors_total", "Writes to the store that failed.")
        self._orders = self._tally(
            "orders_total",
            "Commands of operators, by command and result: `applied`, `refused`, `not known`, `not written`.",
            ("order", "result"),
        )
        self._recoveries = self._tally(
            "recoveries_total",
            "Recoveries of gateways that ended, by result: `done`, `failed`, `timed_out`, or `skipped` outside AWS.",
            ("result",),
        )
        self._restarts = self._tally(
            "loop_restarts_total", "Background tasks that failed and were restarted.", ("loop",)
        )
        self._lines_lost = self._tally(
            "log_lines_lost_total", "Log lines dropped because standard error was blocked for too long."
        )
        self._reloads = self._tally(
            "reloads_total",
            "Files reloaded while the controller runs, by result: `applied`, `refused`.",
            ("part", "result"),
        )
        self._sizes = Distribution(_PREFIX + "snapshot_bytes", "Encoded size of each snapshot sent.", _SIZES, ())
        self.registry.register(self._sizes)
        self._records = self._tally(
            "records_attempts_total",
            "Publications of the record tree, by result: `published`, `put_right` after a change by others, `refused`, "
            "`outdated`, `failed`.",
            ("result",),
        )
        self._record_calls = self._tally(
            "records_calls_total",
            "API calls of the record provider, by call and result: `done`, `failed`, `throttled`.",
            ("call", "result"),
        )
        self._in_sync = Distribution(
            _PREFIX + "records_in_sync_seconds",
            "Time from acceptance of a change until all servers of the record provider serve it.",
            _WAITS,
            (),
        )
        self.registry.register(self._in_sync)
        self._expiry = self._level(
            "certificate_expiry_seconds",
            "Time until a certificate in use expires; negative after it has expired.",
            ("role",),
        )
        self._reload_refused = self._level(
            "reload_refused", "1 while a changed file on disk is refused and the one before is in force.", ("part",)
        )
        self._journal_stopped = self._level(
            "journal_stopped", "1 after writing the journal failed; a restart begins a new one."
        )
        self._gateways = self._level(
            "gateways",
            "Registered gateways, by condition: `unknown`, `up`, `down`, `returning` or `alone`.",
            ("condition",),
        )
        self._read_at_scrape = {name: self._level(name, words) for name, words in _READ_AT_SCRAPE.items()}
        ProcessCollector(registry=self.registry)

    def render(self) -> bytes:
        """Return the metrics page, of CONTENT_TYPE."""
        return generate_latest(self.registry)

    def catalogue(self) -> list[Described]:
        return [described(family) for family in self.registry.collect()]

    def follow(
        self,
        manager: StateManager,
        attached: Callable[[], int],
        is_ready: Callable[[], bool],
        lease_left_s: Callable[[], float],
    ) -> None:
        """Follow the state that is read at each scrape."""
        core = manager.core
        for condition in Condition:
            self._gateways.follow(lambda wanted=condition: _conditions(manager)[wanted], condition)  # type: ignore[misc]
        for name, read in (
            ("gateways_attached", attached),
            ("replicas", lambda: len(manager.registry.replicas)),
            ("replicas_away", lambda: _away(manager)),
            ("replicas_orphaned", lambda: sum(n for n, _ in core.orphans.values())),
            ("registry_faults", lambda: len(manager.registry.faults)),
            ("places_refused", lambda: len(manager.places_refused)),
            ("frozen", lambda: bool(core.frozen)),
            ("store_failing", lambda: bool(manager.store_writer.fault)),
            ("documents_pending", lambda: manager.store_writer.pending),
            ("term", lambda: manager.store_writer.version.term),
            ("version", lambda: manager.store_writer.version.version),
            ("ready", is_ready),
            ("leading", lambda: lease_left_s() > 0),
            ("lease_seconds", lease_left_s),
        ):
            self._read_at_scrape[name].follow(read)

    def add(self, collectors: Iterable[Collector]) -> None:
        """Add the collectors of another part that counts by itself."""
        for each in collectors:
            self.registry.register(each)

    @property
    def subscriptions(self) -> ControllerSubscriptions:
        return {TellCondition: self._condition_told, KeepOwners: self._owners_kept}

    def _condition_told(self, _step: ControllerStep, effect: TellCondition) -> None:
        self._conditions.add(effect.condition)

    def _owners_kept(self, _step: ControllerStep, effect: KeepOwners) -> None:
        if effect.owners:
            self._moved.add(amount=len(effect.owners))

    def follow_records(self, published: Callable[[], int], is_failing: Callable[[], bool]) -> None:
        """Follow the publication of records."""
        self._read_at_scrape["records_version"].follow(published)
        self._read_at_scrape["records_failing"].follow(is_failing)

    def records_ended(self, result: str) -> None:
        self._records.add(result)

    def records_called(self, call: str, result: str) -> None:
        self._record_calls.add(call, result)

    def records_in_sync(self, seconds: float) -> None:
        self._in_sync.observe(seconds)

    def refused(self, reason: str) -> None:
        self._refused.add(reason)

    def pushed(self, size_bytes: int) -> None:
        self._pushes.add()
        self._sizes.observe(size_bytes)

    def rejected(self) -> None:
        self._rejections.add()

    def history(self, result: str) -> None:
        self._histories.add(result)

    def store_failed(self, _: Exception) -> None:
        self._store_errors.add()

    def ordered(self, order: str, result: str) -> None:
        self._orders.add(order, result)

    def recovered(self, result: str) -> None:
        self._recoveries.add(result)

    def restarted(self, loop: str) -> None:
        self._restarts.add(loop)

    def log_lines_lost(self, count: int) -> None:
        self._lines_lost.add(amount=count)

    def reloaded(self, part: str, is_in_force: bool) -> None:
        self._reloads.add(part, "applied" if is_in_force else "refused")
        self._reload_refused.set(not is_in_force, part)

    def journal_stopped(self) -> None:
        self._journal_stopped.set(1)

    def follow_certificate(self, role: str, left_s: Callable[[], float]) -> None:
        self._expiry.follow(left_s, role)

    def _tally(self, name: str, words: str, labels: tuple[str, ...] = ()) -> CounterSeries:
        tally = CounterSeries(_PREFIX + name.removesuffix("_total"), words, labels)
        self.registry.register(tally)
        return tally

    def _level(self, name: str, words: str, labels: tuple[str, ...] = ()) -> Level:
        level = Level(_PREFIX + name, words, labels)
        self.registry.register(level)
        return level


def _conditions(manager: StateManager) -> Counter[Condition]:
    return Counter(health.condition for health in manager.core.health.values())


def _away(manager: StateManager) -> int:
    replicas = manager.core.replicas
    return sum(owner != replicas[each].home for each, owner in manager.core.owners.items() if each in replicas)

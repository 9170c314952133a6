"""Simulated batches: the store of a region's files and results, and the gateways that send their lines.

Which lines are urgent, and which failures are tried again after what time, is decided by the code that gateways run.
The store takes results only from the gateway that holds a batch, and checks that no line has two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from gateway.core.kernel.residency import Verdict
from gateway.core.vocabulary import GatewayId, Outcome, RegionName, RequestId, ServiceClass, TenantName
from gateway.features.batches.classes import LineClasses
from gateway.features.batches.forecast import LineRate, Urgency, has_time_to_spare, may_be_urgent, urgent_lines
from gateway.features.batches.lines import wait_before_retry_s
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.batch_sections import BatchesSection, BatchSection
from loadgen.simulator.checkers import Broken
from loadgen.simulator.client_requests import TRY_MARK, ClientRequest
from loadgen.simulator.clients import Call, ClientGroup
from loadgen.simulator.gateways import SimGateway
from loadgen.workload import Program

_SECOND_NS = 1_000_000_000
_RENEWALS = 5
"""Looks at each holding in the length of a lease."""
_STATUS: dict[Outcome | None, int] = {
    None: 502,
    Outcome.FAILED_BEFORE_FIRST_BYTE: 502,
    Outcome.FAILED_MIDSTREAM: 502,
    Outcome.REJECTED_UNKNOWN_MODEL: 404,
    Outcome.REJECTED_QUEUE_FULL: 503,
    Outcome.REJECTED_DRAINING: 503,
    Outcome.REJECTED_TENANT_LIMIT: 429,
    Outcome.REJECTED_DEADLINE: 429,
    Outcome.REJECTED_TENANT_CONCURRENCY: 429,
    Outcome.REJECTED_TENANT_REQUEST_RATE: 429,
    Outcome.REJECTED_TENANT_TOKEN_RATE: 429,
    Outcome.EXPIRED_IN_QUEUE: 504,
    Outcome.EXPIRED_RUNNING: 504,
}
"""Status of an answer after which a line may be sent again; None: the connection broke."""
EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Outcome of one file. Times are those of the run."""

    section: BatchSection
    completed: int
    failed: int
    expired: int
    ended_ns: int | None
    """End of the batch; None: it had not ended with the run."""
    tries: int
    """Requests that were sent for its lines."""
    urgent: int
    """Requests that were sent as interactive."""
    takeovers: int

    @property
    def is_kept(self) -> bool:
        """True if each line has run within the window."""
        return self.ended_ns is not None and not self.expired


@dataclass(slots=True, eq=False)
class SimBatch:
    """One file, and what the store knows of it."""

    name: str
    section: BatchSection
    group: ClientGroup
    programs: Sequence[Program]
    results: list[str | None]
    """Result of each line that has one."""
    term: int = 0
    """Number of its holders so far; the store refuses the results of all but the last."""
    holder: _Holder | None = None
    renewed_ns: int = 0
    ended_ns: int | None = None
    sent: list[int] = field(default_factory=list)
    """Requests that were sent for each line."""
    urgent: int = 0

    @property
    def expires_ns(self) -> int:
        return self.section.at + self.section.window

    @property
    def left(self) -> int:
        return self.results.count(None)

    def report(self) -> BatchReport:
        count = self.results.count
        completed, expired = count(str(Outcome.COMPLETED)), count(EXPIRED)
        failed = len(self.results) - completed - expired - self.left
        takeovers = max(0, self.term - 1)
        return BatchReport(
            self.section, completed, failed, expired, self.ended_ns, sum(self.sent), self.urgent, takeovers
        )


@dataclass(slots=True, eq=False)
class _Held:
    """Batch as its holder knows it."""

    batch: SimBatch
    term: int
    waiting: deque[int]
    """Lines to be sent next."""
    rate: LineRate
    classes: LineClasses = field(default_factory=LineClasses)
    calls: dict[int, Call] = field(default_factory=dict)
    """Requests that run, by line."""
    again_ns: dict[int, int] = field(default_factory=dict)
    """Times at which lines that failed are sent again."""
    tries: dict[int, int] = field(default_factory=dict)


class _Holder:
    """One life of a gateway's process, and the batches that it holds."""

    def __init__(self, batches: SimBatches, gateway: SimGateway) -> None:
        self.gateway = gateway
        self._batches = batches
        self._agenda = batches.agenda
        self._life = gateway.life
        self._held: dict[str, _Held] = {}
        self._running = 0

    @property
    def is_alive(self) -> bool:
        return self.gateway.is_up and self.gateway.life == self._life

    @property
    def acts(self) -> bool:
        return self.is_alive and not self.gateway.is_stalled

    def take(self, batch: SimBatch) -> None:
        """Begin to send the lines that have no result."""
        self.drop(batch)
        waiting = deque(line for line, result in enumerate(batch.results) if result is None)
        self._held[batch.name] = _Held(batch, batch.term, waiting, LineRate(self._agenda.now_ns))

    def look(self) -> None:
        """Drop what another gateway has taken over, and send lines for which there are places."""
        if self.acts:
            for held in list(self._held.values()):
                if held.term != held.batch.term:
                    self.drop(held.batch)
            self._fill()

    def lost(self, batch: SimBatch) -> list[int]:
        """Lines of a batch without a result that are not in just one place from which they go on."""
        held, now_ns = self._held[batch.name], self._agenda.now_ns
        places = [*held.waiting, *held.calls, *(line for line, at_ns in held.again_ns.items() if at_ns >= now_ns)]
        return [line for line, result in enumerate(batch.results) if result is None and places.count(line) != 1]

    def drop(self, batch: SimBatch) -> None:
        """Give up the lines of a batch that run."""
        held = self._held.pop(batch.name, None)
        if held is not None:
            for call in list(held.calls.values()):
                call.leave()

    def _fill(self) -> None:
        for held in self._in_turn():
            self._send(held, held.waiting.popleft())

    def _in_turn(self) -> Iterator[_Held]:
        """Batches whose next line has a place, each in its turn."""
        while self._running < self._batches.section.requests_max:
            held = next((each for each in self._held.values() if each.waiting), None)
            if held is None:
                return
            self._held[held.batch.name] = self._held.pop(held.batch.name)
            yield held

    def _send(self, held: _Held, line: int) -> None:
        batch = held.batch
        self._batches.expect(
            "a line with a result is not sent again", batch.results[line] is None, f"{batch.name}:{line}"
        )
        tries = held.tries[line] = held.tries.get(line, 0) + 1
        served_as = held.classes.next(is_urgent=self._may_be_urgent(held))
        now_ns = self._agenda.now_ns
        left_s = (batch.expires_ns - now_ns) / _SECOND_NS
        request = batch.group.line(
            RequestId(f"{batch.name}:{line}{TRY_MARK}{batch.sent[line]}"),
            batch.programs[line],
            served_as,
            is_patient=has_time_to_spare(batch.left, held.rate, left_s, now_ns),
        )
        batch.sent[line] += 1
        batch.urgent += served_as is ServiceClass.INTERACTIVE
        held.classes.begin(served_as)
        self._running += 1

        def over(ended: ClientRequest) -> None:
            held.calls.pop(line, None)
            held.classes.end(served_as)
            self._running -= 1
            if self.is_alive and self._held.get(batch.name) is held:
                self._answered(held, line, tries, ended)

        held.calls[line] = batch.group.open(request, self.gateway, over)

    def _answered(self, held: _Held, line: int, tries: int, request: ClientRequest) -> None:
        wait_s = _wait_s(request.outcome, tries)
        if wait_s is None:
            if self._batches.put(held.batch, held.term, line, request):
                held.rate.add(1, self._agenda.now_ns)
        else:
            again_ns = held.again_ns[line] = self._agenda.now_ns + round(wait_s * _SECOND_NS)
            self._agenda.at(again_ns, self._again, held, line)
        if self.acts:
            self._agenda.after(0, self.look)

    def _again(self, held: _Held, line: int) -> None:
        del held.again_ns[line]
        held.waiting.append(line)
        self.look()

    def _may_be_urgent(self, held: _Held) -> bool:
        section = self._batches.section
        most = int(section.urgent_share * section.requests_max)
        running = {
            name: Urgency(TenantName(each.batch.section.tenant), each.classes.urgent, self._urgent_lines(each, most))
            for name, each in self._held.items()
        }
        return may_be_urgent(held.batch.name, running, most)

    def _urgent_lines(self, held: _Held, most: int) -> int:
        batch, now_ns = held.batch, self._agenda.now_ns
        if not held.rate.is_known(now_ns):
            return 0
        left_s, window_s = (batch.expires_ns - now_ns) // _SECOND_NS, batch.section.window // _SECOND_NS
        return urgent_lines(batch.left, held.rate.per_second(now_ns), left_s, window_s, most)


class SimBatches:
    """All files of a world, and the store of each region that keeps them. All files of a region run at once."""

    def __init__(
        self,
        section: BatchesSection,
        groups: Sequence[ClientGroup],
        programs: Sequence[Iterator[Program]],
        agenda: Agenda,
        gateways: Mapping[GatewayId, SimGateway],
        *,
        verdict: Callable[[RegionName, TenantName, RegionName], Verdict],
    ) -> None:
        """`groups` and `programs`: client and programs of each file; `verdict`: decision of a region's policy whether a
        tenant's requests may be processed in another one."""
        self.section = section
        self.agenda = agenda
        self._gateways = gateways
        self._verdict = verdict
        self._batches = [
            SimBatch(
                f"batch{number}",
                file,
                group,
                tuple(islice(each, file.lines)),
                [None] * file.lines,
                sent=[0] * file.lines,
            )
            for number, (file, group, each) in enumerate(zip(section.files, groups, programs, strict=True))
        ]
        self._holders: dict[tuple[GatewayId, int], _Holder] = {}

    @property
    def are_over(self) -> bool:
        return all(batch.ended_ns is not None for batch in self._batches)

    def start(self) -> None:
        self.agenda.after(0, self._look)

    def reports(self) -> tuple[BatchReport, ...]:
        return tuple(batch.report() for batch in self._batches)

    def expect(self, what: str, holds: bool, detail: str) -> None:
        """Raise Broken unless it holds."""
        if not holds:
            raise Broken(self.agenda.now_ns, what, detail)

    def expect_ended(self) -> None:
        """Check that each batch has ended and each of its lines has a result. Raises Broken."""
        for batch in self._batches:
            self.expect("each batch ends", batch.ended_ns is not None, batch.name)
            self.expect("each line has a result", not batch.left, f"{batch.name}: {batch.left} have none")

    def put(self, batch: SimBatch, term: int, line: int, request: ClientRequest) -> bool:
        """Store a result; False: the gateway that sent it does not hold the batch, or the batch has ended. Lines that
        stay in their region may do so while its policy cannot be read."""
        if term != batch.term or batch.ended_ns is not None:
            return False
        where = f"{batch.name}:{line}"
        self.expect("each line has one result", batch.results[line] is None, where)
        if request.ran_at is not None and request.ran_at.region != request.region:
            verdict = self._verdict(request.region, request.profile.tenant, request.ran_at.region)
            self.expect("each line runs where its policy allows", verdict.allowed, f"{where} ran in {request.ran_at}")
        batch.results[line] = str(request.outcome or request.detail)
        if not batch.left:
            batch.ended_ns = self.agenda.now_ns
        return True

    def _look(self) -> None:
        """Renew, end and pass on holdings, until all batches have ended."""
        for batch in self._batches:
            if batch.section.at <= self.agenda.now_ns and batch.ended_ns is None:
                self._look_at(batch)
        for holder in list(self._holders.values()):
            holder.look()
        if not self.are_over:
            self.agenda.after(self.section.lease // _RENEWALS, self._look)

    def _look_at(self, batch: SimBatch) -> None:
        now_ns, holder = self.agenda.now_ns, batch.holder
        if holder is not None and holder.acts:
            batch.renewed_ns = now_ns
        elif holder is None or now_ns - batch.renewed_ns > self.section.lease:
            holder = self._take_over(batch)
        if holder is not None and holder.acts and now_ns >= batch.expires_ns:
            lost = holder.lost(batch)
            self.expect("no line is lost", not lost, f"{batch.name}: {lost[:5]} and {len(lost)} in all")
            batch.results = [EXPIRED if result is None else result for result in batch.results]
            batch.ended_ns = now_ns
            holder.drop(batch)

    def _take_over(self, batch: SimBatch) -> _Holder | None:
        """Let a gateway of the region that is up hold the batch, each in its turn."""
        found = [each for each in self._gateways.values() if each.region == batch.section.region]
        turn = batch.term % max(1, len(found))
        for gateway in found[turn:] + found[:turn]:
            if gateway.is_up and not gateway.is_stalled:
                key = gateway.gateway_id, gateway.life
                batch.holder = self._holders.setdefault(key, _Holder(self, gateway))
                batch.term += 1
                batch.renewed_ns = self.agenda.now_ns
                batch.holder.take(batch)
                return batch.holder
        return None


def _wait_s(outcome: Outcome | None, tries: int) -> float | None:
    """Seconds before a line is sent again; None: its answer stands."""
    status = _STATUS.get(outcome)
    return None if status is None else wait_before_retry_s(status, 0.0, tries)

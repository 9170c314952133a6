"""Sends a workload to OpenAI-compatible endpoints, closed or open loop, and measures what each client sees.

Every request counts from the moment it was due, however late it was sent. The runner must never mend what it measures:
it does not retry, and it drops no failure.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from ssl import SSLContext

import aiohttp
from aiohttp.abc import AbstractResolver

from gateway.core.vocabulary import RegionName
from loadgen.live_client import (
    SESSION_HEADER,
    AddressedRequest,
    AnswerFailure,
    EndpointDialect,
    PartialAnswer,
    exchange,
)
from loadgen.report import RequestReport
from loadgen.vocabulary import RequestEnd
from loadgen.workload import Message, Program, Workload
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
_IDLE_CONNECTION_S = 4.0
"""Time that an idle connection is kept open: a little less than the keep-alive of servers that close soonest."""
_SAMPLES_MAX = 100_000
LEFT = "the client left"


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Fixed number of users, each starting a program when its previous one is done."""

    workload: Workload
    clients: int


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Programs that start when they are due, however slowly answers come."""

    schedule: Iterable[tuple[float, Program]]
    """Seconds since the run's start and the program that starts then, in order of time."""


@dataclass(frozen=True, slots=True)
class LiveClientGroup:
    """Users of one region, and the endpoints to which they send their requests."""

    region: RegionName
    urls: tuple[str, ...]
    """Base URLs without the path (`http://127.0.0.1:8080`), used in rotation."""
    load: ClosedLoop | OpenLoop
    key_of: Callable[[str], str | None] = lambda _: None
    """API key of a tenant; of the group itself for an empty tenant name."""
    patience_s: float | None = None
    """Time after which an impatient user abandons a request whose answer is incomplete."""
    impatient_share: float = 0.0
    """Share of requests whose user is impatient."""
    resolver: AbstractResolver | None = None
    """Resolver for the host names in `urls`, or None for the system's. Answers are cached only by the resolver
    itself."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Client groups, their request format, and how long they send."""

    groups: tuple[LiveClientGroup, ...]
    dialect: EndpointDialect
    load_s: float
    """Time during which new requests are sent."""
    drain_s: float
    """Time that requests still running after that may take to finish."""
    ramp_s: float = 1.0
    """Time over which the users of a closed loop start."""
    request_timeout_s: float = 120.0
    pause_after_failure_s: float = 1.0
    in_flight_max: int = 10_000
    """Maximum number of open requests. A further one fails without being sent, and is counted as failed."""
    sample_s: float = 1.0
    """Interval at which tallies are sampled for the plots."""
    seed: int = 1
    """Seed that decides which users are impatient."""
    tls: SSLContext | None = None


@dataclass(slots=True)
class ClientTally:
    """Counters of one region's clients at this moment."""

    waiting: int = 0
    """Requests sent whose first token has not arrived."""
    streaming: int = 0
    completed: int = 0
    failed: int = 0
    answered: int = 0
    """Requests for which the engine's region is known."""
    forwarded: int = 0
    """Answered requests whose engine is in another region than the client."""
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class TallySample:
    """Requests of one region waiting and streaming at one moment."""

    at_ns: int
    waiting: int
    streaming: int


@dataclass(slots=True)
class _Sent:
    """One request in flight."""

    due_ns: int
    left_ns: int
    answer: PartialAnswer = field(default_factory=PartialAnswer)
    first_token_ns: int | None = None
    tokens_in_time: int = 0


class _Errand:
    """Program being run: the replies so far, and whether any step has failed."""

    def __init__(self, group: LiveClientGroup, program: Program) -> None:
        self.group = group
        self.program = program
        self.children = program.children()
        self.replies: dict[int, str] = {}
        self.has_failed = False


class LiveRunner:
    """One run. `tallies` can be read while it runs; `records` holds every request, complete or not, once it has
    ended."""

    def __init__(
        self, plan: LoadPlan, *, clock: Clock, on_record: Callable[[RequestReport], None] | None = None
    ) -> None:
        self.records: list[RequestReport] = []
        regions = list(dict.fromkeys(group.region for group in plan.groups))
        self.tallies = {region: ClientTally() for region in regions}
        self.samples: dict[RegionName, list[TallySample]] = {region: [] for region in regions}
        self._plan = plan
        self._clock = clock
        self._on_record = on_record
        self._rng = random.Random(f"{plan.seed}/patience")
        self._turns = count()
        self._in_flight = 0
        self._unstarted: dict[int, tuple[RegionName, int, int]] = {}
        """Programs that are due but whose task has not run yet: region, due time and number of first requests."""
        self._started_ns = clock.now_ns()

    @property
    def planned_load_s(self) -> float:
        return self._plan.load_s

    @property
    def load_s(self) -> float:
        """Seconds for which load has been sent so far."""
        return min(self._plan.load_s, self._elapsed_ns() / _SECOND_NS)

    async def run(self) -> None:
        """Send the load and let it drain. Cancelling is safe: open requests are recorded as unfinished."""
        self._started_ns = self._clock.now_ns()
        try:
            async with AsyncExitStack() as stack:
                sessions = {
                    resolver: await stack.enter_async_context(self._session(resolver))
                    for resolver in dict.fromkeys(group.resolver for group in self._plan.groups)
                }
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._plan.load_s + self._plan.drain_s), self._sampling():
                        await self._send_all(sessions)
        finally:
            self._record_unstarted()

    @asynccontextmanager
    async def _session(self, resolver: AbstractResolver | None) -> AsyncIterator[aiohttp.ClientSession]:
        timeout = aiohttp.ClientTimeout(total=self._plan.request_timeout_s)
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=_IDLE_CONNECTION_S,
            ssl=self._plan.tls or True,
            resolver=resolver,
            use_dns_cache=resolver is None,
        )
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), request_class=AddressedRequest
        ) as session:
            yield session

    @asynccontextmanager
    async def _sampling(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            sampler = tasks.create_task(self._sample())
            try:
                yield
            finally:
                sampler.cancel()

    async def _sample(self) -> None:
        for number in range(_SAMPLES_MAX):
            if not await self._until(round(number * self._plan.sample_s * _SECOND_NS)):
                return
            for region, tally in self.tallies.items():
                self.samples[region].append(TallySample(self._elapsed_ns(), tally.waiting, tally.streaming))

    async def _send_all(self, sessions: Mapping[AbstractResolver | None, aiohttp.ClientSession]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for group in self._plan.groups:
                session = sessions[group.resolver]
                match group.load:
                    case ClosedLoop(workload, clients):
                        for number in range(clients):
                            tasks.create_task(self._user(session, group, workload, number, clients))
                    case OpenLoop(schedule):
                        tasks.create_task(self._arrivals(session, group, schedule, tasks))

    async def _user(
        self, session: aiohttp.ClientSession, group: LiveClientGroup, workload: Workload, number: int, clients: int
    ) -> None:
        """Run one closed-loop user until the time for new requests is over."""
        free_ns = round(self._plan.ramp_s * _SECOND_NS * number / clients)
        for program in workload.programs(f"{group.region}/{number}"):
            if not await self._until(free_ns):
                return
            is_whole = await self._run(session, group, program, free_ns)
            pause_s = 0.0 if is_whole else self._plan.pause_after_failure_s
            free_ns = self._elapsed_ns() + round(pause_s * _SECOND_NS)

    async def _arrivals(
        self,
        session: aiohttp.ClientSession,
        group: LiveClientGroup,
        schedule: Iterable[tuple[float, Program]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Start each program when it is due; overdue programs start at once, all of them."""
        for at_s, program in schedule:
            due_ns = round(at_s * _SECOND_NS)
            if not await self._until(due_ns):
                return
            key = next(self._turns)
            self._unstarted[key] = group.region, due_ns, len(program.roots())
            tasks.create_task(self._arrive(session, group, program, due_ns, key))

    async def _arrive(
        self, session: aiohttp.ClientSession, group: LiveClientGroup, program: Program, due_ns: int, key: int
    ) -> None:
        del self._unstarted[key]
        await self._run(session, group, program, due_ns)

    async def _run(
        self, session: aiohttp.ClientSession, group: LiveClientGroup, program: Program, free_ns: int
    ) -> bool:
        """Run all steps of a program; steps behind a failed one are not sent. Returns True if every step was
        answered."""
        errand = _Errand(group, program)
        await self._follow(session, errand, program.roots(), free_ns)
        return not errand.has_failed

    async def _follow(
        self, session: aiohttp.ClientSession, errand: _Errand, ready: Sequence[int], free_ns: int
    ) -> None:
        """Run the steps that are ready, and then the steps that wait for them."""
        while len(ready) == 1:
            (number,) = ready
            next_ns = await self._step(session, errand, number, free_ns)
            if next_ns is None:
                return
            ready, free_ns = errand.children.get(number, []), next_ns
        async with asyncio.TaskGroup() as tasks:
            for number in ready:
                tasks.create_task(self._branch(session, errand, number, free_ns))

    async def _branch(self, session: aiohttp.ClientSession, errand: _Errand, number: int, free_ns: int) -> None:
        next_ns = await self._step(session, errand, number, free_ns)
        if next_ns is not None:
            await self._follow(session, errand, errand.children.get(number, []), next_ns)

    async def _step(self, session: aiohttp.ClientSession, errand: _Errand, number: int, free_ns: int) -> int | None:
        """Run one step; returns the time from which the steps that wait for it may go on, or None if it failed."""
        step = errand.program.steps[number]
        due_ns = free_ns + round(step.think_s * _SECOND_NS)
        reply = None
        if await self._until(due_ns):
            messages = errand.program.messages(number, errand.replies)
            reply = await self._ask(session, errand, messages, step.output_tokens, due_ns)
        if reply is None:
            errand.has_failed = True
            return None
        errand.replies[number] = reply
        return max(self._elapsed_ns(), due_ns + round(step.answer_s_min * _SECOND_NS))

    async def _until(self, due_ns: int) -> bool:
        """Sleep until `due_ns`; returns False if the time for new requests ends first. Overdue is never too late."""
        load_ns = round(self._plan.load_s * _SECOND_NS)
        left_ns = min(due_ns, load_ns) - self._elapsed_ns()
        if left_ns > 0:
            await asyncio.sleep(left_ns / _SECOND_NS)
        return due_ns < load_ns

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        errand: _Errand,
        messages: list[Message],
        output_tokens: int,
        due_ns: int,
    ) -> str | None:
        """Send one request and read its whole answer; returns None if it failed."""
        group, tally = errand.group, self.tallies[errand.group.region]
        sent = _Sent(due_ns, self._elapsed_ns())
        tally.waiting += 1
        if self._in_flight >= self._plan.in_flight_max:
            detail = f"not sent: {self._plan.in_flight_max} requests were in flight"
            self._close(tally, self._record(group.region, sent, RequestEnd.FAILED, detail))
            return None
        self._in_flight += 1
        end, detail = RequestEnd.UNFINISHED, ""
        patience = asyncio.timeout(self._patience_s(group))
        try:
            async with patience:
                await self._exchange(session, errand, self._plan.dialect.body(messages, output_tokens), sent)
            end = RequestEnd.COMPLETED
        except AnswerFailure as failure:
            end, detail = RequestEnd.FAILED, str(failure)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            end, detail = RequestEnd.FAILED, LEFT if patience.expired() else f"{type(error).__name__}: {error}"
        finally:
            self._in_flight -= 1
            self._close(tally, self._record(group.region, sent, end, detail))
        return "".join(sent.answer.text) if end is RequestEnd.COMPLETED else None

    def _patience_s(self, group: LiveClientGroup) -> float | None:
        """Time after which this request is abandoned; None if its user waits to the end."""
        if group.patience_s is None or self._rng.random() >= group.impatient_share:
            return None
        return group.patience_s

    async def _exchange(self, session: aiohttp.ClientSession, errand: _Errand, body: bytes, sent: _Sent) -> None:
        group = errand.group
        headers = {SESSION_HEADER: errand.program.session_key}
        api_key = group.key_of(errand.program.tenant)
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        url = group.urls[next(self._turns) % len(group.urls)] + self._plan.dialect.api.path
        await exchange(
            session,
            url,
            headers=headers,
            body=body,
            answer=sent.answer,
            on_text=lambda: self._count_token(group.region, sent),
        )

    def _count_token(self, region: RegionName, sent: _Sent) -> None:
        tally, served_by = self.tallies[region], sent.answer.served_by
        elapsed_ns = self._elapsed_ns()
        if sent.first_token_ns is None:
            sent.first_token_ns = elapsed_ns
            tally.waiting -= 1
            tally.streaming += 1
            tally.answered += served_by is not None
            tally.forwarded += served_by not in (None, region)
        sent.tokens_in_time += elapsed_ns < self._plan.load_s * _SECOND_NS
        tally.tokens += 1

    def _record(self, region: RegionName, sent: _Sent, end: RequestEnd, detail: str) -> RequestReport:
        answer = sent.answer
        return RequestReport(
            client_region=region,
            end=end,
            sent_ns=sent.due_ns,
            ended_ns=self._elapsed_ns(),
            first_token_ns=sent.first_token_ns,
            served_by=answer.served_by,
            sent_to=answer.sent_to,
            output_tokens=answer.output_tokens,
            tokens_in_time=sent.tokens_in_time,
            prompt_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens,
            lag_ns=sent.left_ns - sent.due_ns,
            detail=detail,
        )

    def _close(self, tally: ClientTally, record: RequestReport) -> None:
        tally.waiting -= record.first_token_ns is None
        tally.streaming -= record.first_token_ns is not None
        tally.completed += record.end is RequestEnd.COMPLETED
        tally.failed += record.end is RequestEnd.FAILED
        self._keep(record)

    def _record_unstarted(self) -> None:
        """Record as unfinished each request that was due when the run stopped and had not been sent."""
        now_ns = self._elapsed_ns()
        for region, due_ns, requests in self._unstarted.values():
            for _ in range(requests):
                record = RequestReport(region, RequestEnd.UNFINISHED, due_ns, now_ns, lag_ns=now_ns - due_ns)
                self._keep(record)
        self._unstarted.clear()

    def _keep(self, record: RequestReport) -> None:
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)

    def _elapsed_ns(self) -> int:
        return self._clock.now_ns() - self._started_ns

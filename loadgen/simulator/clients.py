"""Simulated users: they run programs step by step, in a closed loop or as they arrive, and record what they observe.

Like the live runner they never retry and drop no failure; a request's way beyond the gateway is invisible to them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

from msgspec.structs import replace

from gateway.core.block_sizes import BLOCKS_MAX
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    Connector,
    ModelName,
    Notes,
    Outcome,
    RefusalReason,
    RegionName,
    RequestId,
    RequestProfile,
    ServiceClass,
    TenantName,
)
from loadgen.engine.tokens import ANSWER_BEGINS, ANSWER_ENDS, chat_turn
from loadgen.figures import tokens_by
from loadgen.report import RequestReport
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.checkers import InvariantWatch
from loadgen.simulator.chronicle import Chronicle
from loadgen.simulator.client_requests import ClientRequest, SimRanAt
from loadgen.simulator.gateways import SimGateway
from loadgen.simulator.network import Network, NetworkLine
from loadgen.simulator.prompts import Prompt, empty_prompt, passage_prompt, reply_text
from loadgen.simulator.scenario import ClientsSection
from loadgen.vocabulary import RequestEnd
from loadgen.workload import Program, Recorded, Workload, WorkloadStep, arrivals

_SECOND_NS = 1_000_000_000
_NONE: frozenset[Connector] = frozenset()
"""Connectors of requests with stored responses: none, as the engine that stores a response must have computed its
prompt."""
_CLOSED_LOOP_RAMP_NS = _SECOND_NS
_CRC32_END = 1 << 32
_NO_GATEWAY = "no gateway is up"
LEFT = "the client left"


class Call(Protocol):
    """A request in progress, as its client holds it."""

    def leave(self) -> None: ...


@dataclass(slots=True, eq=False)
class ClientWorld:
    """Shared state and settings of all users of a world."""

    agenda: Agenda
    network: Network
    watch: InvariantWatch
    chronicle: Chronicle
    ingress_of: Callable[[RegionName], SimGateway | None]
    """Gateway that DNS would name at present."""
    model: ModelName
    block_bytes: int
    blocks_per_hash: int
    load_end_ns: int
    pause_after_failure_ns: int
    has_disaggregated: bool = False
    """True if some pool is disaggregated: requests whose responses are stored must then run on one engine."""
    records: list[RequestReport] = field(default_factory=list)
    open_asks: dict[RequestId, ClientRequest] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    call_by_name: Callable[[ClientRequest, Callable[[ClientRequest], None]], Call] | None = None
    """Sender of requests for clients that know only the mesh's name; if None, clients know at once which gateway is
    up."""

    @property
    def is_sending(self) -> bool:
        return self.agenda.now_ns < self.load_end_ns


class _Errand:
    """A program in progress."""

    __slots__ = (
        "answers_due_ns",
        "children",
        "failed",
        "group",
        "on_done",
        "open",
        "opening",
        "program_id",
        "said",
        "session_key",
        "steps",
        "tenant",
        "to_go_on",
    )

    def __init__(self, group: ClientGroup, program: Program, on_done: Callable[[bool], None]) -> None:
        self.group = group
        self.program_id = program.program_id
        self.session_key = program.session_key
        self.tenant = program.tenant
        self.steps = dict(enumerate(program.steps))
        """Steps that have not been sent; sent ones live on in the prompts."""
        self.children = program.children()
        self.opening = group.empty(program.tenant)
        if program.opening:
            self.opening = self.opening.followed_by(chat_turn("system", program.opening))
        self.said: dict[int, Prompt] = {}
        """Conversation up to and including the answer, by step that others continue."""
        self.to_go_on: dict[int, int] = {}
        """Number of steps that have yet to continue each step in `said`."""
        self.answers_due_ns: dict[int, int] = {}
        self.open = 0
        self.failed = False
        self.on_done = on_done

    def start(self) -> None:
        self._plan([number for number, step in self.steps.items() if step.after is None], 0)

    def _plan(self, steps: list[int], delay_ns: int) -> None:
        agenda = self.group.town.agenda
        self.open += len(steps)
        for number in steps:
            think_ns = round(self.steps[number].think_s * _SECOND_NS)
            agenda.after(delay_ns + think_ns, self._ask, number)

    def _ask(self, number: int) -> None:
        town = self.group.town
        if not town.is_sending:
            self.failed = True
            self._step_done(number, None)
            return
        step = self.steps.pop(number)
        if step.answer_s_min:
            self.answers_due_ns[number] = town.agenda.now_ns + round(step.answer_s_min * _SECOND_NS)
        follows = "" if step.after is None or not self.group.stores_responses else self._request_id(step.after)
        self.group.send(
            self._request_id(number),
            self.tenant,
            self.session_key,
            self.prompt(step),
            step.output_tokens,
            on_end=lambda request: self._answered(number, request),
            follows=follows,
        )

    def _request_id(self, number: int) -> RequestId:
        return RequestId(f"{self.group.number}:{self.program_id}#{number}")

    def prompt(self, step: WorkloadStep) -> Prompt:
        """Prompt of a step as an engine sees it: each turn between the marks of the chat template."""
        if step.passage is not None:
            return passage_prompt(self.group.empty(self.tenant), step.passage)
        question = chat_turn("user", step.text) + ANSWER_BEGINS
        if step.after is None:
            return self.opening.followed_by(question)
        return self._said_before(step.after).followed_by(ANSWER_ENDS + question)

    def _said_before(self, number: int) -> Prompt:
        """Conversation that a step continues; dropped with the last such step."""
        self.to_go_on[number] -= 1
        if self.to_go_on[number]:
            return self.said[number]
        del self.to_go_on[number]
        return self.said.pop(number)

    def _answered(self, number: int, request: ClientRequest) -> None:
        is_whole = request.outcome is Outcome.COMPLETED
        self.failed |= not is_whole
        self._step_done(number, request.whole if is_whole else None)

    def _step_done(self, number: int, said: Prompt | None) -> None:
        """Finish a step and plan those that follow it; those after a failed step are never sent."""
        if said is not None:
            children = self.children.get(number, [])
            if to_go_on := sum(self.steps[child].passage is None for child in children):
                self.said[number], self.to_go_on[number] = said, to_go_on
            self._plan(children, self._left_of_answer_ns(number))
        self.open -= 1
        if not self.open:
            self.on_done(self.failed)

    def _left_of_answer_ns(self, number: int) -> int:
        """Nanoseconds until the answer's recorded minimum duration is over."""
        due_ns = self.answers_due_ns.pop(number, 0)
        return max(0, due_ns - self.group.town.agenda.now_ns)


class _Call:
    """One request as its client holds it: the near end of a line to a gateway."""

    __slots__ = ("_line", "_on_end", "_request", "_town")

    def __init__(
        self,
        town: ClientWorld,
        request: ClientRequest,
        gateway: SimGateway,
        on_end: Callable[[ClientRequest], None],
    ) -> None:
        self._town = town
        self._request = request
        self._on_end = on_end
        request_id = request.request_id
        line: NetworkLine = town.network.connect(
            request.region, gateway.region, self.broke, lambda _: gateway.upstream_left(line, request_id)
        )
        self._line = line
        line.far_process = gateway.process
        line.to_far(gateway.request_arrives, request, line, self)

    def forward_accepted(self) -> None:
        raise AssertionError("a client forwards nothing")

    def forward_refused(self, reason: RefusalReason, detail: str) -> None:
        raise AssertionError(f"a client forwards nothing: {reason}, {detail}")

    def first_token(self, ran_at: SimRanAt) -> None:
        request, now_ns = self._request, self._town.agenda.now_ns
        self._town.watch.client_heard(request, now_ns)
        request.first_token_ns = now_ns
        request.ran_at = ran_at

    def ended(self, outcome: Outcome, detail: str, notes: Notes) -> None:  # noqa: ARG002 - clients do not count
        self._line.finish()
        self._end(outcome, detail)

    def broke(self, detail: str) -> None:
        self._end(None, detail)

    def leave(self) -> None:
        if self._request.ended_ns is None:
            self._line.close_near(LEFT)
            self._end(None, LEFT)

    def _end(self, outcome: Outcome | None, detail: str) -> None:
        request, town = self._request, self._town
        request.outcome, request.detail = outcome, detail
        town.watch.client_ended(request, outcome, town.agenda.now_ns)
        request.ended_ns = town.agenda.now_ns
        finish(town, request)
        self._on_end(request)


def finish(town: ClientWorld, request: ClientRequest) -> None:
    """Record how a request ended."""
    del town.open_asks[request.request_id]
    how = str(request.outcome or request.detail)
    town.outcomes[how] = town.outcomes.get(how, 0) + 1
    town.chronicle.note(town.agenda.now_ns, f"client {request.request_id} {how}")
    if not request.is_last_check:
        town.records.append(record_of(request, town))


def record_of(request: ClientRequest, town: ClientWorld) -> RequestReport:
    end = RequestEnd.COMPLETED if request.outcome is Outcome.COMPLETED else RequestEnd.FAILED
    if request.ended_ns is None:
        end = RequestEnd.UNFINISHED
    ended_ns = town.agenda.now_ns if request.ended_ns is None else request.ended_ns
    tokens = request.output_tokens if end is RequestEnd.COMPLETED else 0
    return RequestReport(
        client_region=request.region,
        end=end,
        sent_ns=request.sent_ns,
        ended_ns=ended_ns,
        first_token_ns=request.first_token_ns,
        served_by=request.ran_at.region if request.ran_at else None,
        output_tokens=tokens,
        tokens_in_time=tokens_by(
            town.load_end_ns, first_token_ns=request.first_token_ns, ended_ns=ended_ns, tokens=tokens
        ),
        prompt_tokens=request.prompt_tokens,
        cached_tokens=request.ran_at.cached_tokens if request.ran_at else None,
        detail="" if end is not RequestEnd.FAILED else str(request.outcome or request.detail),
        tries=request.tries,
        failed_by=request.failed_by,
        tenant=request.profile.tenant,
        service_class=request.profile.service_class,
        breaks=request.told.breaks,
        pause_ns=request.told.pause_ns,
    )


class ClientGroup:
    """Users of one region with one kind of programs. With neither `clients` nor `arrivals` they come at recorded
    times."""

    def __init__(
        self, number: int, section: ClientsSection, workload: Workload, town: ClientWorld, rng: random.Random
    ) -> None:
        self.number = number
        self.stores_responses = section.stores_responses
        self.town = town
        self._section = section
        self._region = RegionName(section.region)
        self._tenant = TenantName(section.tenant)
        self._empty: dict[TenantName, Prompt] = {}
        self._workload = workload
        self._rng = rng
        self._arrivals: Iterator[tuple[float, Program]] = iter(())

    def start(self) -> None:
        clients = self._section.clients
        if clients is not None:
            for number in range(clients):
                programs = self._workload.programs(f"{self._region}/{number}")
                delay_ns = _CLOSED_LOOP_RAMP_NS * number // clients
                self.town.agenda.after(delay_ns, self._next_program, programs, False)
        else:
            self._arrivals = self._open_loop()
            self._await_arrival()

    def empty(self, tenant: str) -> Prompt:
        """Prompt from which a program of this tenant starts; without a name, the group's own tenant."""
        name = TenantName(tenant) if tenant else self._tenant
        if name not in self._empty:
            self._empty[name] = empty_prompt(self.town.model, name, self.town.block_bytes)
        return self._empty[name]

    def send(
        self,
        request_id: RequestId,
        tenant_name: str,
        session_key: str,
        prompt: Prompt,
        output_tokens: int,
        *,
        on_end: Callable[[ClientRequest], None],
        follows: str = "",
    ) -> None:
        """Send a request, of the group's own tenant if no other is named."""
        tenant = TenantName(tenant_name) if tenant_name else self._tenant
        request, gateway = self._ask(request_id, tenant, session_key, prompt, output_tokens, follows=follows)
        self._dispatch(request, gateway, on_end)

    def line(
        self, request_id: RequestId, program: Program, service_class: ServiceClass, *, is_patient: bool
    ) -> ClientRequest:
        """First request of a program as a batch sends it: of one class, for an answer in one piece."""
        step = next(each for each in program.steps if each.after is None)
        prompt = _Errand(self, program, lambda _: None).prompt(step)
        tenant = TenantName(program.tenant) if program.tenant else self._tenant
        request, _ = self._ask(request_id, tenant, program.session_key, prompt, step.output_tokens)
        yields = service_class is not ServiceClass.INTERACTIVE
        request.profile = replace(
            request.profile,
            service_class=service_class,
            stream=False,
            keeps_yielding=yields,
            is_patient=yields and is_patient,
        )
        return request

    def open(self, request: ClientRequest, gateway: SimGateway, on_end: Callable[[ClientRequest], None]) -> Call:
        """Send a request to a gateway, whatever the name says."""
        request.gateway_id = gateway.gateway_id
        self._note(request)
        return _Call(self.town, request, gateway, on_end)

    def check_service(self, on_end: Callable[[ClientRequest], None]) -> None:
        """Send one small interactive request, which must be answered: others may be refused where nothing is idle."""
        request_id = RequestId(f"{self.number}:last-check")
        prompt = self.empty("").followed_by(b"are you there?")
        request, gateway = self._ask(request_id, self._tenant, "last-check", prompt, 4)
        request.is_last_check = True
        request.profile = replace(request.profile, service_class=ServiceClass.INTERACTIVE)
        self._dispatch(request, gateway, on_end)

    def _next_program(self, programs: Iterator[Program], has_failed: bool) -> None:
        """Start a user's next program; after a failure only after a pause."""
        if not self.town.is_sending:
            return
        if has_failed:
            self.town.agenda.after(self.town.pause_after_failure_ns, self._next_program, programs, False)
            return
        _Errand(self, next(programs), lambda failed: self._next_program(programs, failed)).start()

    def _open_loop(self) -> Iterator[tuple[float, Program]]:
        """Times of arrival in seconds and their programs: at a rate, or as recorded."""
        section = self._section.arrivals
        if section is None:
            assert isinstance(self._workload, Recorded), "without a rate, the workload knows when"
            yield from self._workload.recorded()
            return
        until_s = self.town.load_end_ns / _SECOND_NS
        times = arrivals(section.as_curve(), self._rng, until_s=until_s, variation=section.variation)
        for number, at_s in enumerate(times):
            yield at_s, next(self._workload.programs(f"{self._region}/{number}"))

    def _await_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            at_s, program = arrival
            self.town.agenda.at(max(self.town.agenda.now_ns, round(at_s * _SECOND_NS)), self._arrive, program)

    def _arrive(self, program: Program) -> None:
        _Errand(self, program, lambda _: None).start()
        self._await_arrival()

    def _ask(
        self,
        request_id: RequestId,
        tenant: TenantName,
        session_key: str,
        prompt: Prompt,
        output_tokens: int,
        *,
        follows: str = "",
    ) -> tuple[ClientRequest, SimGateway | None]:
        town = self.town
        gateway = None if town.call_by_name is not None else town.ingress_of(self._region)
        profile = RequestProfile(
            request_id,
            town.model,
            tenant,
            prompt.size_bytes,
            prompt.chain(town.blocks_per_hash, BLOCKS_MAX),
            town.block_bytes * town.blocks_per_hash,
            session_key,
            stream=crc32(request_id.encode()) >= self._section.whole_share * _CRC32_END,
            output_tokens_max=output_tokens,
            follows=follows,
            connectors=_NONE if self.stores_responses and town.has_disaggregated else ALL_CONNECTORS,
            service_class=self._section.service_class,
        )
        whole = prompt.followed_by(reply_text(request_id, output_tokens))
        ingress_id = gateway.gateway_id if gateway is not None else None
        request = ClientRequest(
            profile,
            prompt.tokens,
            whole,
            output_tokens,
            self._region,
            ingress_id,
            town.agenda.now_ns,
            self.number,
            is_stored=self.stores_responses,
        )
        return request, gateway

    def _dispatch(
        self, request: ClientRequest, gateway: SimGateway | None, on_end: Callable[[ClientRequest], None]
    ) -> None:
        town = self.town
        self._note(request)
        call: Call
        if town.call_by_name is not None:
            call = town.call_by_name(request, on_end)
        elif gateway is None:
            request.detail = _NO_GATEWAY
            request.ended_ns = town.agenda.now_ns
            finish(town, request)
            town.agenda.after(0, on_end, request)
            return
        else:
            call = _Call(town, request, gateway, on_end)
        patience_ns = self._section.patience
        if patience_ns is not None and not request.is_last_check and self._rng.random() < self._section.impatient_share:
            town.agenda.after(patience_ns, call.leave)

    def _note(self, request: ClientRequest) -> None:
        town = self.town
        assert request.request_id not in town.open_asks, "request ids are used once"
        town.open_asks[request.request_id] = request
        town.chronicle.note(town.agenda.now_ns, f"client {request.request_id} asks {request.gateway_id}")

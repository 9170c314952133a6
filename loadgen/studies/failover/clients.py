"""Runs the real OpenAI SDK as a client of the mesh's one name: with its own retries, and a resolver passed in through
its HTTP client. It must never mend what it measures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import httpx2
from openai import NOT_GIVEN, APIStatusError, AsyncOpenAI, OpenAIError

from gateway.core.vocabulary import RegionName
from loadgen.names import NameResolver
from mesh.clock import Clock

_ANSWER_TOKENS = 12
_PAUSE_S = 0.02
REGION_HEADER = "x-nightside-region"
GATEWAY_HEADER = "x-nightside-gateway"
REQUEST_ID_HEADER = "x-request-id"


@dataclass(slots=True)
class SdkCall:
    """One call of the SDK, with all of its retries."""

    region: RegionName
    left_ns: int
    ended_ns: int | None = None
    """Time of the call's end; not set (None) if it had not ended when the run was over."""
    first_ns: int | None = None
    """Time of the answer's first part; None: none has arrived."""
    pause_ns: int = 0
    """Longest time between two parts of the answer."""
    fault: str = ""
    """Empty for a complete answer."""
    is_refused: bool = False
    """The last response was a gateway's own error, before any answer."""
    request_id: str = ""
    """Id by which the gateways know the last try; empty where no head has arrived."""
    gateway: str = ""
    """Gateway that answered the last try, as its head says."""
    ran_in: str = ""
    """Region whose engine answered, as the head says."""

    @property
    def has_begun(self) -> bool:
        """True once part of the answer has arrived."""
        return self.first_ns is not None


@dataclass(slots=True)
class Answers:
    """Time and engine region of every answer that began."""

    seen: list[tuple[int, RegionName]] = field(default_factory=list)
    rejected_ns: list[int] = field(default_factory=list)
    """Times of gateways' errors, after which the SDK asks again or gives up."""
    refused_ns: list[int] = field(default_factory=list)
    """Times at which nothing accepted a connection, after which the next address is tried."""

    def first(self, region: RegionName, since_ns: int) -> int | None:
        return min((at_ns for at_ns, each in self.seen if each == region and at_ns >= since_ns), default=None)


class OneName(httpx2.AsyncBaseTransport):
    """Transport that connects to the addresses of the name, one after the other, as HTTP clients do with a resolver's
    answer."""

    def __init__(
        self, resolver: NameResolver, on_answer: Callable[[httpx2.Response], None], on_refusal: Callable[[], None]
    ) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self._resolver = resolver
        self._on_answer = on_answer
        self._on_refusal = on_refusal

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        try:
            addresses = await self._resolver.addresses(url.host)
        except OSError as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        for address in addresses:
            request.url = url.copy_with(host=address)
            try:
                response = await self._inner.handle_async_request(request)
            except httpx2.ConnectError:
                self._on_refusal()
                continue
            self._on_answer(response)
            return response
        tried = ", ".join(f"'{each}'" for each in addresses)
        raise httpx2.ConnectError(f"no process listens at {tried}", request=request)

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass(slots=True)
class Clients:
    """Users of one region, each asking again as soon as it was answered. `asked` has every call."""

    region: RegionName
    url: str
    """URL with the one name."""
    model: str
    resolver: NameResolver
    clock: Clock
    asked: list[SdkCall] = field(default_factory=list)
    answers: Answers = field(default_factory=Answers)
    is_over: bool = False
    timeout_s: float | None = None
    """Longest wait for the next part of an answer; None: the SDK's own, ten minutes."""
    pause_s: float = _PAUSE_S
    answer_tokens: int = _ANSWER_TOKENS
    prompt_bytes: int = 0
    """Length that questions are filled up to."""

    async def run(self, users: int) -> None:
        """Send requests until `is_over` is set, or until cancelled; open calls then stay without an end."""
        transport = OneName(self.resolver, self._note, self._note_refusal)
        async with httpx2.AsyncClient(transport=transport) as http:
            timeout = NOT_GIVEN if self.timeout_s is None else self.timeout_s
            async with AsyncOpenAI(
                base_url=f"{self.url}/v1", api_key="unused", http_client=http, timeout=timeout
            ) as client:
                async with asyncio.TaskGroup() as tasks:
                    for number in range(users):
                        tasks.create_task(self._user(client, number))

    def _note(self, response: httpx2.Response) -> None:
        now_ns = self.clock.now_ns()
        if response.is_error:
            self.answers.rejected_ns.append(now_ns)
        else:
            self.answers.seen.append((now_ns, RegionName(response.headers.get(REGION_HEADER, ""))))

    def _note_refusal(self) -> None:
        self.answers.refused_ns.append(self.clock.now_ns())

    async def _user(self, client: AsyncOpenAI, number: int) -> None:
        turn = 0
        while not self.is_over:
            turn += 1
            asked = SdkCall(self.region, self.clock.now_ns())
            self.asked.append(asked)
            try:
                question = f"{number}/{turn} of {self.region}: how are you?"
                await self._ask(client, asked, question.ljust(self.prompt_bytes, "."))
            except (OpenAIError, httpx2.HTTPError) as error:
                asked.fault = "; ".join(_chain(error))
                if isinstance(error, APIStatusError):
                    asked.is_refused = True
                    _note_sender(asked, error.response.headers)
            asked.ended_ns = self.clock.now_ns()
            await asyncio.sleep(self.pause_s)

    async def _ask(self, client: AsyncOpenAI, asked: SdkCall, question: str) -> None:
        stream = await client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": question}],
            max_tokens=self.answer_tokens,
            stream=True,
        )
        headers = stream.response.headers
        _note_sender(asked, headers)
        asked.ran_in = headers.get(REGION_HEADER, "")
        reason, last_ns = None, 0
        async for chunk in stream:
            now_ns = self.clock.now_ns()
            if asked.first_ns is None:
                asked.first_ns = last_ns = now_ns
            asked.pause_ns, last_ns = max(asked.pause_ns, now_ns - last_ns), now_ns
            reason = chunk.choices[0].finish_reason if chunk.choices else reason
        if reason is None:
            asked.fault = "the answer has no end"


def _note_sender(asked: SdkCall, headers: Mapping[str, str]) -> None:
    """Note the request's id and gateway, which every answer of a gateway names in its head."""
    asked.request_id, asked.gateway = headers.get(REQUEST_ID_HEADER, ""), headers.get(GATEWAY_HEADER, "")


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__

"""Runs the real OpenAI SDK as a client of the mesh's one name: with its own retries, and a resolver passed in through
its HTTP client. It must never mend what it measures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx2
from openai import APIStatusError, AsyncOpenAI, OpenAIError

from gateway.core.vocabulary import RegionName
from loadgen.names import NameResolver
from mesh.clock import Clock

_ANSWER_TOKENS = 12
_PAUSE_S = 0.02
REGION_HEADER = "x-nightside-region"


@dataclass(slots=True)
class SdkCall:
    """One call of the SDK, with all of its retries."""

    region: RegionName
    left_ns: int
    ended_ns: int | None = None
    """Time of the call's end; not set (None) if it had not ended when the run was over."""
    has_begun: bool = False
    """True once part of the answer has arrived."""
    fault: str = ""
    """Empty for a complete answer."""
    is_refused: bool = False
    """The last response was a gateway's own error, before any answer."""


@dataclass(slots=True)
class Answers:
    """Time and engine region of every answer that began."""

    seen: list[tuple[int, RegionName]] = field(default_factory=list)

    def first(self, region: RegionName, since_ns: int) -> int | None:
        return min((at_ns for at_ns, each in self.seen if each == region and at_ns >= since_ns), default=None)


class OneName(httpx2.AsyncBaseTransport):
    """Transport that connects to the addresses of the name, one after the other, as HTTP clients do with a resolver's
    answer."""

    def __init__(self, resolver: NameResolver, on_answer: Callable[[str], None]) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self._resolver = resolver
        self._on_answer = on_answer

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
                continue
            self._on_answer(response.headers.get(REGION_HEADER, ""))
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

    async def run(self, users: int) -> None:
        """Send requests until `is_over` is set, or until cancelled; open calls then stay without an end."""
        transport = OneName(self.resolver, self._note)
        async with httpx2.AsyncClient(transport=transport) as http:
            async with AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", http_client=http) as client:
                async with asyncio.TaskGroup() as tasks:
                    for number in range(users):
                        tasks.create_task(self._user(client, number))

    def _note(self, region: str) -> None:
        self.answers.seen.append((self.clock.now_ns(), RegionName(region)))

    async def _user(self, client: AsyncOpenAI, number: int) -> None:
        turn = 0
        while not self.is_over:
            turn += 1
            asked = SdkCall(self.region, self.clock.now_ns())
            self.asked.append(asked)
            try:
                await self._ask(client, asked, f"{number}/{turn} of {self.region}: how are you?")
            except (OpenAIError, httpx2.HTTPError) as error:
                asked.fault = "; ".join(_chain(error))
                asked.is_refused = isinstance(error, APIStatusError)
            asked.ended_ns = self.clock.now_ns()
            await asyncio.sleep(_PAUSE_S)

    async def _ask(self, client: AsyncOpenAI, asked: SdkCall, question: str) -> None:
        stream = await client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": question}], max_tokens=_ANSWER_TOKENS, stream=True
        )
        reason = None
        async for chunk in stream:
            asked.has_begun = True
            reason = chunk.choices[0].finish_reason if chunk.choices else reason
        if reason is None:
            asked.fault = "the answer has no end"


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{type(error).__name__}: {error}"
        error = error.__cause__
